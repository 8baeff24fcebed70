"""Which word of a text is which of those that were heard."""

from collections.abc import Sequence

import numpy as np

_MATCH, _MISMATCH, _GAP = 2, -1, -1
_REACH_SHARE, _LEAST_REACH = 0.1, 600


def match_words(heard: Sequence[str], text: Sequence[str]) -> list[int]:
    """For each word of the text its place among those heard, or -1: global alignment (Needleman and Wunsch, 1970)
    within a tenth of the text, or 600 words, about the diagonal.
    """
    rows, columns = len(heard), len(text)
    if not rows or not columns:
        return [-1] * columns
    reach = int(max(_LEAST_REACH, _REACH_SHARE * columns))
    width = min(columns + 1, 2 * reach + 2)
    low = np.clip(np.round(np.arange(rows + 1) * columns / rows).astype(int) - reach, 0, columns + 1 - width)
    ids = {word: number for number, word in enumerate(dict.fromkeys([*text, *heard]))}
    coded = np.array([-1, *(ids[word] for word in text)])  # before column 1 nothing can match
    moves = np.zeros((rows + 1, width), np.uint8)
    slope = -_GAP * np.arange(width)
    scores = _GAP * (low[0] + np.arange(width)).astype(np.int32)
    for row in range(1, rows + 1):
        # Column c of a row is boundary low + c of the text; below the band nothing can be reached.
        padded = np.concatenate([[-(10**9)], scores, np.full(low[row] - low[row - 1], -(10**9))])
        before = padded[low[row] - low[row - 1] :][: width + 1]
        equal = coded[low[row] : low[row] + width] == ids[heard[row - 1]]
        match = before[:-1] + np.where(equal, _MATCH, _MISMATCH)
        if low[row] == 0:
            match[0] = -(10**9)
        best = np.maximum(match, before[1:] + _GAP)
        scores = np.maximum.accumulate(best + slope) - slope
        moves[row] = np.where(scores > best, 2, np.where(best == match, np.where(equal, 3, 1), 0))
    places, row, column = [-1] * columns, rows, columns
    while row and column:
        move = moves[row, column - low[row]]
        if move == 3:
            places[column - 1] = row - 1
        row, column = row - (move != 2), column - (move != 0)
    return places

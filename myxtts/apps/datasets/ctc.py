"""Forced alignment: when each symbol of a known text is spoken, by the probabilities of a CTC network.

The most probable path through the symbols with blanks between them (Graves et al., "Connectionist temporal
classification", 2006, section 4.1, with maxima for sums), within a band about where the text is expected. Memory does
not grow with the band: of the scores only every so many frames are kept, and what lies between is computed again.
"""

from dataclasses import dataclass

import numpy as np

_KEPT_EVERY = 1024
OPEN_LOG_PROBABILITY = -1.0
"""Of a frame between sentences at least: speech that is in no text has its place there, and costs a little."""


@dataclass(frozen=True, eq=False)
class Trellis:
    """The states that a path goes through: every symbol, and a blank before, between and after them.

    Attributes:
        symbols: Ids, `(S,)`; S is odd, even places are blanks.
        floors: The least log-probability of each state in a frame, `(S,)`; -inf where the network alone counts.
        may_skip: Whether the blank before a state may be left out, `(S,)` bool: between two different symbols.
    """

    symbols: np.ndarray
    floors: np.ndarray
    may_skip: np.ndarray

    @classmethod
    def of(cls, texts: list[list[int]], blank: int) -> "Trellis":
        """States of texts, ids each, with room for other speech before, between and after them."""
        ids = np.array([one for text in texts for one in text], np.int64)
        symbols = np.full(2 * len(ids) + 1, blank, np.int64)
        symbols[1::2] = ids
        floors = np.full(len(symbols), -np.inf)
        floors[2 * np.concatenate([[0], np.cumsum([len(text) for text in texts])])] = OPEN_LOG_PROBABILITY
        may_skip = np.zeros(len(symbols), bool)
        may_skip[3::2] = ids[1:] != ids[:-1]
        return cls(symbols, floors, may_skip)

    @classmethod
    def of_words(cls, words: list[list[int]], blank: int) -> "Trellis":
        """States of one text in which letters follow each other without blanks, which are only about its words."""
        ids = [[blank], *(one for word in words for one in (word, [blank]))]
        symbols = np.array([one for some in ids for one in some], np.int64)
        may_skip = np.zeros(len(symbols), bool)
        # Words may follow each other without a pause.
        may_skip[3:] = (symbols[2:-1] == blank) & (symbols[3:] != blank)
        return cls(symbols, np.full(len(symbols), -np.inf), may_skip)


def best_path(log_probabilities: np.ndarray, trellis: Trellis, first: np.ndarray, width: int) -> np.ndarray:
    """The state of each frame on the most probable path from the first blank or symbol to the last.

    Args:
        log_probabilities: `(T, V)`.
        first: The first state of the band in each frame, `(T,)`, never falling.
        width: States of the band.

    Returns:
        `(T,)`; empty where no path leads through the band.
    """
    frames, size = len(log_probabilities), len(trellis.symbols)
    width = min(width, size)
    first = np.maximum.accumulate(np.clip(first, 0, size - width))
    scores, kept = np.full(width, -np.inf), {}
    begins = 2 - first[0]
    scores[: max(0, begins)] = _emitted(log_probabilities[0], trellis, first[0], width)[: max(0, begins)]
    for frame in range(1, frames):
        if (frame - 1) % _KEPT_EVERY == 0:
            kept[frame - 1] = scores
        scores, _ = _step(scores, log_probabilities[frame], trellis, first[frame - 1], first[frame])
    ends = [state for state in (size - 1, size - 2) if 0 <= state - first[-1] < width]
    state = max(ends, key=lambda one: scores[one - first[-1]], default=None)
    if state is None or not np.isfinite(scores[state - first[-1]]):
        return np.zeros(0, np.int64)
    path = np.zeros(frames, np.int64)
    path[-1] = state
    for start in sorted(kept, reverse=True):
        scores, backs = kept[start], []
        for frame in range(start + 1, min(start + 1 + _KEPT_EVERY, frames)):
            scores, back = _step(scores, log_probabilities[frame], trellis, first[frame - 1], first[frame])
            backs.append(back)
        for offset in range(len(backs) - 1, -1, -1):
            state -= int(backs[offset][state - first[start + 1 + offset]])
            path[start + offset] = state
    return path


def _step(scores, frame, trellis, before, now):
    """Scores of the band one frame later, `(W,)`, and how many states each came from below, `(W,)` uint8."""
    width = len(scores)
    padded = np.concatenate([[-np.inf, -np.inf], scores, np.full(now - before, -np.inf)])[now - before :][: width + 2]
    stay, next_one, skip = padded[2:], padded[1:-1], padded[:-2]
    skip = np.where(trellis.may_skip[now : now + width], skip, -np.inf)
    best = np.maximum(np.maximum(stay, next_one), skip)
    back = np.where(best == stay, 0, np.where(best == next_one, 1, 2)).astype(np.uint8)
    return best + _emitted(frame, trellis, now, width), back


def _emitted(frame, trellis, start, width):
    return np.maximum(frame[trellis.symbols[start : start + width]], trellis.floors[start : start + width])

"""Which stretches of speech hold which pieces of text, by the times of the pieces and the length of both.

Times of cues are off by some tenths of a second, and those of recognized words by one. What follows from them without
doubt becomes a group; where a boundary is not clear, its two sides stay one group, whose text is right all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from myxtts.apps.datasets.pieces import Piece

_NEAR_SECONDS = 0.25  # speech so close to a piece may belong to it
_SHARE_OF_SPEECH, _SHARE_OF_TEXT, _LINKED_SECONDS = 0.3, 0.5, 0.6
_TOUCHED_SHARE_OF_TEXT, _TOUCHED_SECONDS = 0.25, 0.3
_MOST_DEVIATION = 3.5
_TELLING_PIECES, _TELLING_GROUPS, _MOST_PRICE = 12, 4, 14.0
_SHARE_OF_CHANCE = 0.3  # right texts have 0.04 to 0.21, those in a wrong order 0.4 or more
# Of the logarithm of seconds a character: measured on LJSpeech, VCTK and a German corpus, and a fifth more.
_RATE_VARIANCE, _RATE_VARIANCE_OF_ONE = 0.006, 0.6


@dataclass(frozen=True)
class Group:
    """Stretches `[first, last)` and pieces `[first_piece, last_piece)` that belong together.

    `doubt` says what is uncertain between them; "" where the text is that of the speech.
    """

    first: int
    last: int
    first_piece: int
    last_piece: int
    doubt: str = ""

    @property
    def has_both(self) -> bool:
        """Whether there is speech and text in it."""
        return self.first < self.last and self.first_piece < self.last_piece


def align(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> list[Group]:
    """Aligns pieces with stretches of speech.

    Args:
        starts, ends: Of each stretch, `(N,)` seconds.
        pieces: In the order in which they are spoken, with times in the recording.

    Returns:
        Groups in order, which cover all stretches and all pieces.
    """
    links, touches = _links(starts, ends, pieces)
    blocks: list[list[int]] = []
    for i, (first, last) in links.items():
        if blocks and first < blocks[-1][3]:
            blocks[-1] = [blocks[-1][0], i + 1, blocks[-1][2], max(last, blocks[-1][3])]
        else:
            blocks.append([i, i + 1, first, last])
    groups, i, j = [], 0, 0
    for first, last, first_piece, last_piece in [*blocks, [len(starts), len(starts), len(pieces), len(pieces)]]:
        groups += [Group(k, k + 1, j, j) for k in range(i, first)]  # speech that is in no text
        if j < first_piece:
            groups.append(Group(first, first, j, first_piece))  # text that is not spoken
        if first < last:
            groups.append(Group(first, last, first_piece, last_piece))
        i, j = last, last_piece
    of_stretch = {k: one for one in groups for k in range(one.first, one.last)}
    of_piece = {k: one for one in groups for k in range(one.first_piece, one.last_piece)}
    told, seconds, counts = _lengths(groups, starts, ends, pieces)
    away = np.abs(_deviations(seconds, counts)) if told else ()
    doubted = {one for one, far in zip(told, away) if far > _MOST_DEVIATION}
    for i, j in touches:
        spoken, written = of_stretch[i], of_piece[j]
        # Speech in no text, or a text that is not spoken, that touches the other side of a group may be a part of it.
        if spoken.first_piece == spoken.last_piece or written.first == written.last:
            doubted |= {spoken, written}
    return [replace(one, doubt="doubtful text") if one in doubted and one.has_both else one for one in groups]


def fits_better_than_chance(
    groups: Sequence[Group], starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]
) -> bool:
    """Whether the lengths of texts and speech agree far better than in two other orders; else they do not belong.

    Too few cannot tell, and are believed.
    """
    told, seconds, counts = _lengths(groups, starts, ends, pieces)
    if len(pieces) < _TELLING_PIECES or len(told) < _TELLING_GROUPS:
        return True
    score = lambda counts: np.minimum(0.5 * _deviations(seconds, counts) ** 2, _MOST_PRICE).mean()
    others = np.roll(counts, len(counts) // 3), counts[::-1]
    return score(counts) < _SHARE_OF_CHANCE * min(map(score, others))


def _lengths(groups, starts, ends, pieces):
    """Groups with speech and text, their seconds of speech and their characters."""
    told = [one for one in groups if one.has_both]
    seconds = [(ends[one.first : one.last] - starts[one.first : one.last]).sum() for one in told]
    counts = [sum(piece.num_characters for piece in pieces[one.first_piece : one.last_piece]) for one in told]
    return told, np.array(seconds, float), np.array(counts, float)


def _deviations(seconds, counts):
    """How far the seconds a character of each group are from the usual, in standard deviations."""
    paces = np.log(seconds / counts)
    return (paces - np.median(paces)) / np.sqrt(_RATE_VARIANCE + _RATE_VARIANCE_OF_ONE / counts)


def _links(starts, ends, pieces):
    """By stretch the range of pieces that it holds a part of; and pairs `(stretch, piece)` that touch each other."""
    times = np.array([(piece.start, piece.end) for piece in pieces]).reshape(-1, 2)
    latest = np.maximum.accumulate(times[:, 1])
    links, touches = {}, []
    for i, (start, end) in enumerate(zip(starts, ends)):
        first = int(np.searchsorted(latest, start - _NEAR_SECONDS))
        last = int(np.searchsorted(times[:, 0], end + _NEAR_SECONDS))
        near, length = times[first:last], end - start
        inside = np.clip(np.minimum(near[:, 1], end) - np.maximum(near[:, 0], start), 0, None)
        around = np.minimum(near[:, 1] + _NEAR_SECONDS, end) - np.maximum(near[:, 0] - _NEAR_SECONDS, start)
        whole = np.maximum(near[:, 1] - near[:, 0], 1e-3)
        held = (inside >= _SHARE_OF_SPEECH * length) | (inside >= _SHARE_OF_TEXT * whole) | (inside >= _LINKED_SECONDS)
        held = np.flatnonzero(held if held.any() else around >= 0.5 * length)
        if len(held):
            links[i] = first + int(held[0]), first + int(held[-1]) + 1
        touched = np.flatnonzero((around > _TOUCHED_SECONDS) | (inside >= _TOUCHED_SHARE_OF_TEXT * whole))
        touches += [(i, first + int(k)) for k in touched]
    return links, touches

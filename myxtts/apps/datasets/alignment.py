"""Alignment of speech segments with pieces of text, by their times and lengths.

Cues are off by some tenths of a second, recognized words by a second. Segments and texts whose boundary is uncertain
stay in one group.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from myxtts.apps.datasets.speech import Atom
from myxtts.apps.datasets.texts import Piece, count_letters

LOW_CONFIDENCE = "low-confidence text"
"""Reason to drop an atom."""
_NEAR_SECONDS = 0.25  # tolerance around the times of a piece
_SHARE_OF_SPEECH, _SHARE_OF_TEXT, _LINKED_SECONDS = 0.3, 0.5, 0.6
_TOUCHED_SHARE_OF_TEXT, _TOUCHED_SECONDS = 0.25, 0.3
_MOST_DEVIATION = 3.5
_TELLING_PIECES, _TELLING_GROUPS, _MOST_PRICE = 12, 4, 14.0
_SHARE_OF_CHANCE = 0.3  # correct texts have 0.04 to 0.21, those in a wrong order 0.4 or more
# Variance of log(seconds per character), a fifth above that of LJSpeech, VCTK and a German corpus.
_RATE_VARIANCE, _RATE_VARIANCE_OF_ONE = 0.006, 0.6


def align(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> list[Atom]:
    """Aligns pieces with segments of speech.

    Args:
        starts, ends: Times of the segments, `(N,)` seconds.
        pieces: Texts in spoken order, with times in the recording.

    Returns:
        Atoms in order that cover all segments and pieces. Texts that are not spoken are atoms without segments; speech
        without text and low-confidence texts have a `reason`.
    """
    links, touches = _links(starts, ends, pieces)
    blocks: list[list[int]] = []  # segments [first, last) with pieces [first, last)
    for i, (first, last) in links.items():
        if blocks and first < blocks[-1][3]:
            blocks[-1][1:] = i + 1, blocks[-1][2], max(last, blocks[-1][3])
        else:
            blocks.append([i, i + 1, first, last])
    groups, i, j = [], 0, 0
    for first, last, first_piece, last_piece in [*blocks, [len(starts), len(starts), len(pieces), len(pieces)]]:
        groups += [(k, k + 1, j, j) for k in range(i, first)]  # speech without text
        groups += [(first, first, k, k + 1) for k in range(j, first_piece)]  # texts that are not spoken
        if first < last:
            groups.append((first, last, first_piece, last_piece))
        i, j = last, last_piece
    atoms = [_to_atom(first, last, pieces[low:high]) for first, last, low, high in groups]
    paired = [k for k, one in enumerate(atoms) if _has_both(one)]
    away = np.abs(_deviations(*_lengths([atoms[k] for k in paired], starts, ends))) if paired else ()
    flagged = {k for k, far in zip(paired, away) if far > _MOST_DEVIATION}
    of_stretch = {i: k for k, (first, last, _, _) in enumerate(groups) for i in range(first, last)}
    of_piece = {j: k for k, (_, _, first, last) in enumerate(groups) for j in range(first, last)}
    for i, j in touches:
        # Unmatched speech or text that touches a group may be a part of it.
        if not (atoms[of_stretch[i]].text and atoms[of_piece[j]].last > atoms[of_piece[j]].first):
            flagged |= {of_stretch[i], of_piece[j]}
    for k in filter(lambda k: _has_both(atoms[k]), flagged):
        atoms[k] = replace(atoms[k], reason=LOW_CONFIDENCE)
    return atoms


def _to_atom(first, last, pieces):
    reason = next((piece.fault for piece in pieces if piece.fault), "") if pieces else "speech without text"
    text = " ".join(piece.text for piece in pieces)
    return Atom(first, last, text, bool(pieces) and pieces[-1].ends_sentence, reason)


def _has_both(atom):
    return atom.first < atom.last and bool(atom.text)


def fits_better_than_chance(atoms: Sequence[Atom], starts: np.ndarray, ends: np.ndarray, num_pieces: int) -> bool:
    """Whether text lengths match speech lengths clearly better than the same texts do in two wrong orders.

    True if there are too few pieces to tell.
    """
    paired = [one for one in atoms if _has_both(one)]
    if num_pieces < _TELLING_PIECES or len(paired) < _TELLING_GROUPS:
        return True
    seconds, counts = _lengths(paired, starts, ends)
    score = lambda counts: np.minimum(0.5 * _deviations(seconds, counts) ** 2, _MOST_PRICE).mean()
    others = np.roll(counts, len(counts) // 3), counts[::-1]
    return score(counts) < _SHARE_OF_CHANCE * min(map(score, others))


def _lengths(atoms, starts, ends):
    """Returns the seconds of speech and the number of letters of each atom, `(A,)`."""
    seconds = [(ends[one.first : one.last] - starts[one.first : one.last]).sum() for one in atoms]
    return np.array(seconds, float), np.array([count_letters(one.text) for one in atoms], float)


def _deviations(seconds, counts):
    """Returns the deviation of seconds per character from the median, in standard deviations."""
    paces = np.log(seconds / counts)
    return (paces - np.median(paces)) / np.sqrt(_RATE_VARIANCE + _RATE_VARIANCE_OF_ONE / counts)


def _links(starts, ends, pieces):
    """Returns the range of pieces that overlap each segment, and pairs (segment, piece) that touch."""
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

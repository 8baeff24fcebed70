"""Where a recording is cut: in pauses only, chosen by dynamic programming, at their quietest point."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.apps.datasets.voice_activity import Stretch, smooth_levels

_IDEAL_SECONDS, _SPREAD_SECONDS2 = 6.0, 6.0
_DROP_COST, _DROP_COST_PER_SECOND = 60.0, 5.0
_SHORT_PAUSE_SECONDS, _SHORT_PAUSE_COST = 0.4, 15.0
_MID_SENTENCE_COST = 4.0
_LONG_PAUSE_SECONDS, _LONG_PAUSE_COST = 0.7, 4.0
_LONGEST_PAUSE_SECONDS = 1.5
"""A longer silence within a clip would be learned."""
_SHARED_PAUSE_SECONDS = 0.56  # shorter pauses are cut at one point, longer ones near either end
_AFTER_SPEECH_SECONDS = (0.1, 0.3)  # the sound of a room dies away; the next clip begins much closer to its speech
_BEFORE_SPEECH_SECONDS = (0.1, 0.25)
_MARGIN_SECONDS = 0.08
_LEAST_PAD_SECONDS = 0.03  # of a pause, on either side of a clip that would be too long with more
_QUIET_FRAMES = 5
_DIP_SECONDS = 0.5


@dataclass(frozen=True)
class Atom:
    """Stretches `[first, last)` that stay together: between them no boundary of the text is known.

    `reason` says why it is left out, in a few words; "" if it may become part of a clip.
    """

    first: int
    last: int
    text: str = ""
    ends_sentence: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Clip:
    """Atoms `[first, last)` of a list that are cut out together, as frames `[start, end)`."""

    first: int
    last: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Edges:
    """Where stretches start and end, where a clip begins before each and finishes after it, `(N,)` frames each.

    `pauses` has N + 1 lengths in seconds, with infinity at both ends.
    """

    starts: np.ndarray
    ends: np.ndarray
    begins: np.ndarray
    finishes: np.ndarray
    pauses: np.ndarray


def find_edges(stretches: Sequence[Stretch], levels_db: np.ndarray, frame_seconds: float) -> Edges:
    """The quietest point of each pause. Long pauses are left out but for what clips keep of them on either side."""
    levels, begins, finishes, pauses = smooth_levels(levels_db, _QUIET_FRAMES), [], [], []
    frames = lambda seconds: max(1, round(seconds / frame_seconds))
    after, before = (list(map(frames, pair)) for pair in (_AFTER_SPEECH_SECONDS, _BEFORE_SPEECH_SECONDS))
    for left, right in zip([None, *stretches], [*stretches, None]):
        low, high = left.end if left else 0, right.start if right else len(levels)
        pauses.append((high - low) * frame_seconds if left and right else np.inf)
        if left and right and high - low < frames(_SHARED_PAUSE_SECONDS):
            margin = min(frames(_MARGIN_SECONDS), (high - low) // 3)
            point = _quietest(levels, low + margin, high - margin)
            finishes.append(point)
            begins.append(point)
            continue
        if left:
            finishes.append(_quietest(levels, min(low + after[0], high), min(low + after[1], high)))
        if right:
            begins.append(_quietest(levels, max(high - before[1], low), max(high - before[0], low)))
    starts, ends = ([getattr(one, side) for one in stretches] for side in ("start", "end"))
    return Edges(*map(np.array, (starts, ends, begins, finishes, pauses)))


def choose_clips(
    atoms: Sequence[Atom], edges: Edges, frame_seconds: float, min_seconds: float, max_seconds: float
) -> list[Clip]:
    """Packs atoms that follow each other into clips, so that the sum of costs is least.

    Six seconds are best; cuts in short pauses and within sentences cost, and so do long pauses inside. What cannot be
    part of any clip stays out.
    """
    best, choice = [0.0], [None]
    longest = max_seconds - 2 * _LEAST_PAD_SECONDS
    for end in range(1, len(atoms) + 1):
        atom = atoms[end - 1]
        seconds = (edges.finishes[atom.last - 1] - edges.begins[atom.first]) * frame_seconds
        dropped = 0.0 if atom.reason else _DROP_COST + _DROP_COST_PER_SECOND * seconds
        cost, chosen = best[end - 1] + dropped, None
        cut = _cut_cost(atom, edges.pauses[atom.last])
        inside = 0.0
        for first in range(end - 1, -1, -1):
            if atoms[first].reason or (first < end - 1 and atoms[first].last != atoms[first + 1].first):
                break
            if first < end - 1:
                inside += _inside_cost(edges.pauses[atoms[first].last])
            length = (edges.finishes[atom.last - 1] - edges.begins[atoms[first].first]) * frame_seconds
            speech = (edges.ends[atom.last - 1] - edges.starts[atoms[first].first]) * frame_seconds
            if speech > longest or not np.isfinite(inside):
                break
            if length >= min_seconds:
                total = best[first] + (length - _IDEAL_SECONDS) ** 2 / _SPREAD_SECONDS2 + cut + inside
                if total < cost:
                    cost, chosen = total, first
        best.append(cost)
        choice.append(chosen)
    clips, end, most = [], len(atoms), int(max_seconds / frame_seconds)
    while end:
        if choice[end] is not None:
            begin, finish = _within(edges, atoms[choice[end]].first, atoms[end - 1].last - 1, most)
            clips.append(Clip(choice[end], end, begin, finish))
        end = end - 1 if choice[end] is None else choice[end]
    return clips[::-1]


def force_cuts(
    stretches: Sequence[Stretch], levels_db: np.ndarray, frame_seconds: float, max_seconds: float
) -> list[Stretch]:
    """Splits stretches longer than `max_seconds` at all points that are the quietest 100 ms of half a second around."""
    levels, reach = smooth_levels(levels_db, max(1, round(0.1 / frame_seconds))), round(_DIP_SECONDS / frame_seconds)
    split: list[Stretch] = []
    for one in stretches:
        points = [one.start, one.end]
        if (one.end - one.start) * frame_seconds > max_seconds:
            inner = range(one.start + reach, one.end - reach)
            points[1:1] = [k for k in inner if k == k - reach + int(levels[k - reach : k + reach + 1].argmin())]
        split += [Stretch(start, end) for start, end in zip(points, points[1:])]
    return split


def _within(edges, first, last, most):
    """Frames of a clip, with less of the pauses around it where it would be too long."""
    before, after = edges.starts[first] - edges.begins[first], edges.finishes[last] - edges.ends[last]
    excess = edges.finishes[last] - edges.begins[first] - most
    if excess > 0:
        share = before / max(1, before + after)
        before, after = before - int(np.ceil(share * excess)), after - int(np.ceil((1 - share) * excess))
    return int(edges.starts[first] - before), int(edges.ends[last] + after)


def _cut_cost(atom, pause):
    short = max(0.0, _SHORT_PAUSE_SECONDS - pause) * _SHORT_PAUSE_COST
    return short + (0.0 if atom.ends_sentence else _MID_SENTENCE_COST)


def _inside_cost(pause):
    if pause > _LONGEST_PAUSE_SECONDS:
        return np.inf
    return max(0.0, pause - _LONG_PAUSE_SECONDS) * _LONG_PAUSE_COST


def _quietest(levels, low, high):
    """The quietest frame of `[low, high)`; of equal ones that in the middle."""
    if high <= low:
        return low
    part = levels[low:high]
    quiet = np.flatnonzero(part <= part.min() + 0.1)
    return low + int(quiet[len(quiet) // 2])

"""Detects segments of speech in a recording, and combines them into clips that are cut at quiet points of pauses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.ndimage import binary_dilation, binary_propagation, uniform_filter1d

SILENCE_DB = -90.0
"""Level of silence in dBFS, about the amplitude of one step in 16-bit audio. Lower levels are raised to this value."""


@dataclass(frozen=True)
class Atom:
    """Smallest unit of a clip. It consists of the segments of speech with indices `[first, last)`, and their text.

    `reason` tells why the atom is left out of clips, or is "". The segments of an atom are never separated.
    """

    first: int
    last: int
    text: str = ""
    ends_sentence: bool = True
    reason: str = ""


class Edges(NamedTuple):
    """Boundaries of N segments of speech, as frame numbers in `(N,)` arrays.

    Segment i of speech is `[starts[i], ends[i])`. `begins` and `finishes` are frames before and after each segment, in
    the pauses, where a clip can be cut: a clip of segments i to j is `[begins[i], finishes[j])`. `pauses` are the
    durations of the pauses around the segments, `(N + 1,)` seconds; the first and last are infinite."""

    starts: np.ndarray
    ends: np.ndarray
    begins: np.ndarray
    finishes: np.ndarray
    pauses: np.ndarray


def find_speech(levels_db: np.ndarray, probabilities: np.ndarray | None, frame_seconds: float) -> np.ndarray:
    """Returns which frames contain speech, `(F,)` bool, from their levels and optional network output (both `(F,)`).

    Speech is a run of frames above a low threshold that has at least one frame above a high threshold. The thresholds
    follow the levels in the 30 s around a frame: the 10th percentile is the noise floor, the 95th the speech level. The
    high threshold is 12 dB above the noise floor, or less at low SNR. It is never more than 38 dB below the speech
    level; otherwise noise after digital silence would count as speech. The low threshold is at most 4 dB lower. If
    a network's speech `probabilities` are given, frames that are not near probable speech are excluded."""
    levels = smooth_levels(levels_db, 3)
    window, step = (max(1, round(seconds / frame_seconds)) for seconds in (30.0, 1.0))
    centers, both = np.arange(0, len(levels), step), (10, 95)
    starts = np.clip(centers - window // 2, 0, max(0, len(levels) - window))
    found = np.array([np.percentile(levels[start : start + window], both) for start in starts])
    floor, loud = (np.interp(np.arange(len(levels)), centers, side) for side in found.T)
    begins = np.maximum(floor + np.minimum(12.0, 0.45 * np.maximum(loud - floor, 5.0)), loud - 38.0)
    speech = _hysteresis(levels, begins, np.maximum(begins - 4.0, floor + 0.5 * (begins - floor)))
    if probabilities is None:
        return speech
    likely = _hysteresis(probabilities, 0.5, 0.3)
    # Silero's windows last 32 ms, with a delay of two or three windows.
    return speech & binary_dilation(likely, iterations=max(1, round(0.15 / frame_seconds)))


def to_stretches(speech: np.ndarray, frame_seconds: float) -> np.ndarray:
    """Converts voice activity `(F,)` to `(N, 2)` start and end frames of speech; ignores short pauses and clicks."""
    runs = np.flatnonzero(np.diff(np.concatenate([[0], speech.astype(np.int8), [0]]))).reshape(-1, 2)
    is_pause = (runs[1:, 0] - runs[:-1, 1]) * frame_seconds >= 0.2  # every plosive begins with a shorter silence
    starts, ends = runs[:1, 0], runs[-1:, 1]
    segments = np.stack([np.append(starts, runs[1:, 0][is_pause]), np.append(runs[:-1, 1][is_pause], ends)], axis=1)
    return segments[(segments[:, 1] - segments[:, 0]) * frame_seconds >= 0.08]  # shorter sounds are clicks


def _hysteresis(values, begins, ends):
    """Returns a mask `(F,)`: True in each run of values above `ends` in which at least one value is above `begins`."""
    return binary_propagation((values > begins) & (values > ends), mask=values > ends)


def smooth_levels(levels_db: np.ndarray, frames: int) -> np.ndarray:
    """Smooths levels by a moving average of their power over `frames` frames; returns `(F,)` dB."""
    return 10 * np.log10(np.maximum(uniform_filter1d(10 ** (levels_db / 10), frames, mode="nearest"), 1e-12))


def find_edges(segments: np.ndarray, levels_db: np.ndarray, frame_seconds: float) -> Edges:
    """Returns the `Edges` of segments `(N, 2)`. Cuts are at quiet frames: one in a short pause, two in a long pause."""
    frames = lambda seconds: max(1, round(seconds / frame_seconds))
    before, after = (list(map(frames, pair)) for pair in ((0.1, 0.25), (0.1, 0.3)))  # longer after, for reverberation
    levels, begins, finishes = smooth_levels(levels_db, 5), [], []
    starts, ends = segments.T
    pauses = np.concatenate([[np.inf], (starts[1:] - ends[:-1]) * frame_seconds, [np.inf]])
    for low, high, pause in zip([0, *ends], [*starts, len(levels)], pauses):
        if pause < np.inf and high - low < frames(0.56):  # longer pauses are cut near both ends
            margin = min(frames(0.08), (high - low) // 3)
            finishes.append(_quietest(levels, low + margin, high - margin))
            begins.append(finishes[-1])
        else:
            finishes.append(_quietest(levels, min(low + after[0], high), min(low + after[1], high)))
            begins.append(_quietest(levels, max(high - before[1], low), max(high - before[0], low)))
    return Edges(starts, ends, np.array(begins[:-1]), np.array(finishes[1:]), pauses)


def choose_clips(
    atoms: Sequence[Atom], edges: Edges, frame_seconds: float, min_seconds: float, max_seconds: float
) -> list[tuple[int, int, int, int]]:
    """Combines neighboring atoms (see `Atom`) into clips by dynamic programming, so that the total cost is minimal.

    A clip costs more if it is much shorter or longer than six seconds, is cut in a short pause or within a sentence, or
    contains a long pause. Returns `(first, last, start, end)` for each clip: it consists of the atoms with the indices
    `[first, last)` and of the frames `[start, end)`.
    """
    best, choice, longest = [0.0], [None], max_seconds - 2 * 0.03  # with a pause on both sides
    for end in range(1, len(atoms) + 1):
        atom = atoms[end - 1]
        seconds = (edges.finishes[atom.last - 1] - edges.begins[atom.first]) * frame_seconds
        cost = best[end - 1] + (0.0 if atom.reason else 60.0 + 5.0 * seconds)
        cut = max(0.0, 0.4 - edges.pauses[atom.last]) * 15.0 + (0.0 if atom.ends_sentence else 4.0)
        inside, chosen = 0.0, None
        for first in range(end - 1, -1, -1):
            is_parted = first < end - 1 and atoms[first].last != atoms[first + 1].first
            pause = edges.pauses[atoms[first].last] if first < end - 1 else 0.0
            if atoms[first].reason or is_parted or pause > 1.5:  # the model would learn longer pauses
                break
            inside += max(0.0, pause - 0.7) * 4.0
            length = (edges.finishes[atom.last - 1] - edges.begins[atoms[first].first]) * frame_seconds
            if (edges.ends[atom.last - 1] - edges.starts[atoms[first].first]) * frame_seconds > longest:
                break
            total = best[first] + (length - 6.0) ** 2 / 6.0 + cut + inside
            if length >= min_seconds and total < cost:
                cost, chosen = total, first
        best.append(cost)
        choice.append(chosen)
    clips, end, most = [], len(atoms), int(max_seconds / frame_seconds)
    while end:
        if (first := choice[end]) is not None:
            left, right = atoms[first].first, atoms[end - 1].last - 1
            before, after = edges.starts[left] - edges.begins[left], edges.finishes[right] - edges.ends[right]
            excess = edges.finishes[right] - edges.begins[left] - most
            if excess > 0:  # shorten the pauses around the clip
                share = before / max(1, before + after)
                before, after = before - int(np.ceil(share * excess)), after - int(np.ceil((1 - share) * excess))
            clips.append((first, end, int(edges.starts[left] - before), int(edges.ends[right] + after)))
        end = end - 1 if first is None else first
    return clips[::-1]


def force_cuts(segments: np.ndarray, levels_db: np.ndarray, frame_seconds: float, max_seconds: float) -> np.ndarray:
    """Splits segments that are longer than `max_seconds` at each frame that is the quietest within ±0.5 s. `segments`,
    `(N, 2)`, and the result, `(M, 2)`, are start and end frames of speech."""
    levels, reach = smooth_levels(levels_db, max(1, round(0.1 / frame_seconds))), round(0.5 / frame_seconds)
    split: list[tuple[int, int]] = []
    for start, end in segments.tolist():
        points = [start, end]
        if (end - start) * frame_seconds > max_seconds:
            is_lowest = lambda k: levels[k - reach : k + reach + 1].argmin() == reach
            points[1:1] = filter(is_lowest, range(start + reach, end - reach))
        split += zip(points, points[1:])
    return np.array(split).reshape(-1, 2)


def _quietest(levels, low, high):
    """Returns the quietest frame in `[low, high)`, or the middle frame of several that are equally quiet."""
    if high <= low:
        return low
    quiet = np.flatnonzero(levels[low:high] <= levels[low:high].min() + 0.1)
    return low + int(quiet[len(quiet) // 2])

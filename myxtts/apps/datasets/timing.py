"""Synchronization of subtitles with a recording: offset, drift, and whether they match."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.signal import correlate, find_peaks
from scipy.stats import theilslopes

from myxtts.apps.datasets.texts import Piece

# Ratios of frame rates: equal, and 25 to 24 and 23.976. Smaller differences are found as drift.
_FRAME_RATE_RATIOS = (1.0, 25 / 24, 24 / 25, 25 * 1.001 / 24, 24 / 25 / 1.001)
_RATE = 20  # Hz, of the correlated signals
_WINDOW_SECONDS, _MAX_WINDOWS = 240.0, 14
_MAX_OFFSET_SECONDS = 600.0
_MAX_DRIFT = 0.006
_PEAKS = 4  # hypotheses of a window
_NEAR_SECONDS = 0.2
_MOST_SLOPES = 400  # cues in the robust fit
_TELLING_CUES = 10


@dataclass(frozen=True)
class Timing:
    """`recording = cue * (1 + drift) + offset`, in seconds.

    Attributes:
        end_lag: Time that cues stay after the speech, in seconds.
        matched: Share of cues that begin with speech.
        chance: The same for the cues in reverse order.
        num_cues: Number of cues.
        length_seconds: End of the last cue.
    """

    offset: float
    drift: float
    end_lag: float
    matched: float
    chance: float = 0.0
    num_cues: int = 0
    length_seconds: float = 0.0

    @property
    def belongs(self) -> bool:
        """Whether the cues match the speech better than chance; always True for few cues."""
        least = self.chance + 0.12 + 0.6 / np.sqrt(self.num_cues)
        return self.num_cues < _TELLING_CUES or self.matched > least

    def move(self, piece: Piece) -> Piece:
        """Returns the piece with times in the recording."""
        start, end = (time * (1 + self.drift) + self.offset for time in (piece.start, piece.end))
        return replace(piece, start=start, end=max(end - self.end_lag, start + 0.1))

    def describe(self) -> str:
        """Describes the correction; "" below a tenth of a second."""
        parts = []
        if abs(self.offset) >= 0.1:
            parts.append(f"{abs(self.offset):.2f} s {'early' if self.offset > 0 else 'late'}")
        if abs(self.drift) * self.length_seconds >= 0.1:
            direction = "fast" if self.drift > 0 else "slow"
            parts.append(f"{100 * abs(self.drift):.3f} % too {direction}")
        return f"the subtitles are {' and '.join(parts)}; corrected" if parts else ""


def fit_timing(cues: Sequence[Piece], starts: np.ndarray, ends: np.ndarray) -> Timing:
    """Estimates offset and drift of cues against segments of speech, in seconds.

    Windows of four minutes are correlated with the speech, by activity and by beginnings. A robust line through the
    peaks is then refined on the beginnings. The same fit for the cues in reverse gives the matches by chance.
    """
    times = np.array([[cue.start, cue.end] for cue in cues])
    offset, drift, matched = _fit(times, starts, ends)
    late = _nearest(times[:, 1] * (1 + drift) + offset, ends)
    lag = -np.median(late[np.abs(late) < 1.0]) if (np.abs(late) < 1.0).any() else 0.0
    chance = _fit(np.sort(times.max() - times[:, ::-1], axis=0), starts, ends)[2]
    figures = offset, drift, np.clip(lag, -0.5, 1.0), matched, chance
    return Timing(*map(float, figures), len(cues), float(times.max()))


def _fit(times, starts, ends):
    """Returns offset, drift and share of matching cues of the best candidate."""
    found = [_fit_line(times, starts, *line) for line in _lines(times, starts, ends)]
    return max(found or [_fit_line(times, starts, 0.0, 0.0)], key=lambda line: line[2])


def _lines(times, starts, ends):
    """Yields candidates (offset, drift), the line with most window peaks for each ratio of frame rates."""
    seconds = max(times.max() * max(_FRAME_RATE_RATIOS), ends.max()) + 1
    speech, slopes = _signals(starts, ends, seconds), np.linspace(-_MAX_DRIFT, _MAX_DRIFT, 121)
    for ratio in _FRAME_RATE_RATIOS:
        peaks = [peak for part in _windows(times * ratio) for peak in _window_peaks(part, speech)]
        if not peaks:
            continue
        centers, offsets, scores = np.array(peaks).T
        found = []
        for slope in slopes if np.ptp(centers) > 0 else [0.0]:
            at_zero = offsets - slope * centers
            near = np.abs(at_zero[:, np.newaxis] - at_zero) < 0.4
            support = near @ scores
            best = near[support.argmax()]
            found.append((support.max(), np.average(at_zero[best], weights=scores[best]), slope))
        _, offset, slope = max(found, key=lambda one: one[0])
        yield offset, ratio * (1 + slope) - 1


def _windows(times):
    count = max(1, round(np.ptp(times) / _WINDOW_SECONDS))
    edges = np.linspace(times.min(), times.max() + 1e-6, count + 1)
    for chosen in np.unique(np.linspace(0, count - 1, _MAX_WINDOWS).astype(int)):
        part = times[(times[:, 0] >= edges[chosen]) & (times[:, 0] < edges[chosen + 1])]
        if len(part) > 1:
            yield part


def _signals(starts, ends, seconds):
    """Returns zero-mean activity and smoothed beginnings, `(T,)` each at `_RATE`."""
    size = int(np.ceil(seconds * _RATE)) + 1
    begins, finishes = (
        np.bincount(np.clip((edges * _RATE).astype(int), 0, size), minlength=size + 1)[:size].astype(float)
        for edges in (starts, ends)
    )
    active = (np.cumsum(begins - finishes) > 0).astype(float)
    return active - active.mean(), gaussian_filter1d(begins, 2.0)


def _window_peaks(part, speech):
    """Returns the best offsets of a window of cues as (center, offset, score)."""
    origin = part.min()
    own = _signals(part[:, 0] - origin, part[:, 1] - origin, np.ptp(part) + 0.5)
    first = int(max(0.0, origin - _MAX_OFFSET_SECONDS) * _RATE)
    last = int((part.max() + _MAX_OFFSET_SECONDS) * _RATE)
    if first >= len(speech[0]):
        return []
    found = [correlate(theirs[first:last], mine - mine.mean(), "full", "fft") for mine, theirs in zip(own, speech)]
    total = sum(one / (one.std() or 1.0) for one in found)
    offsets = (first + np.arange(len(total)) - (len(own[0]) - 1)) / _RATE - origin
    peaks = find_peaks(total, height=0.0, distance=_RATE // 2)[0]
    best = peaks[np.argsort(-total[peaks])[:_PEAKS]]
    return [(part.mean(), offsets[one], total[one] ** 2) for one in best]


def _fit_line(times, starts, offset, drift):
    """Refines offset and drift on the beginnings within narrowing limits; returns them and the share of matches."""
    cues = times[:, 0]
    late_by = lambda: _nearest(cues * (1 + drift) + offset, starts)
    for near in (1.0, 0.6, 0.4, 0.25, 0.25, 0.15, 0.15):
        late = late_by()
        used = np.abs(late - np.median(late[np.abs(late) < near])) < near if (np.abs(late) < near).any() else []
        if np.count_nonzero(used) < 2:
            break
        x, y = cues[used], late[used]
        slope = 0.0
        if len(x) >= _TELLING_CUES and np.ptp(x) > 0:
            few = np.linspace(0, len(x) - 1, min(len(x), _MOST_SLOPES)).astype(int)
            slope = theilslopes(y[few], x[few]).slope
        offset, drift = offset + np.median(y - slope * x), drift + slope
    if not _is_certain(cues, late_by(), drift):
        drift = 0.0
    late = late_by()
    if drift and np.count_nonzero(near := np.abs(late) < 0.15) >= _TELLING_CUES:
        slope, shift = np.polyfit(cues[near], late[near], 1)  # finer than medians
        offset, drift = offset + shift, drift + slope
    elif not drift and (near := np.abs(late) < 0.5).any():
        offset += np.median(late[near])
    return offset, drift, np.mean(np.abs(late_by()) < _NEAR_SECONDS)


def _is_certain(x, late, drift):
    """Whether a drift exceeds twice its standard error."""
    near = np.abs(late) < _NEAR_SECONDS
    if np.count_nonzero(near) < _TELLING_CUES:
        return False
    spread = 1.5 * np.median(np.abs(late[near])) + 0.005
    return abs(drift) > 2 * spread / (np.std(x[near]) * np.sqrt(np.count_nonzero(near)) + 1e-9)


def _nearest(times, edges):
    """Returns the distance of each time to the nearest edge, in seconds."""
    right = np.searchsorted(edges, times)
    left, right = edges[np.maximum(right - 1, 0)] - times, edges[np.minimum(right, len(edges) - 1)] - times
    return np.where(np.abs(left) < np.abs(right), left, right)

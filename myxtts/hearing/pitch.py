"""The fundamental frequency of a voice: YIN's candidates, joined by the cheapest course through them."""

import numpy as np
import soxr

SAMPLE_RATE = 11025
"""In Hz: no voice's pitch needs more."""
LOW_HZ, HIGH_HZ = 60.0, 500.0
WINDOW_SAMPLES = 368
"""Two periods of the lowest pitch."""
CANDIDATES = 6
UNVOICED_PRICE = 0.5
"""Of a frame without pitch. A candidate costs how much of the power one period later does not repeat."""
SWITCH_PRICE = 0.15
"""Of a frame that begins or ends a voiced stretch."""
OCTAVE_PRICE = 1.0
"""Of an octave from one frame to the next, and of less in proportion."""
HALVING_PRICE = 0.02
"""For each octave below the highest pitch: two periods repeat as well as one."""
SILENT_DB = -45.0
"""Below the loudest frame there is no voice."""


def track_pitch(samples: np.ndarray, sample_rate: int, hop_length: int) -> np.ndarray:
    """F0 of each frame in Hz, `(1 + S // hop_length,)`, 0 where there is none.

    Candidates are minima of YIN's cumulative mean normalized difference (de Cheveigné and Kawahara 2002), of which the
    course is chosen by dynamic programming as in RAPT (Talkin 1995).

    Args:
        samples: `(S,)` float32 at `sample_rate` Hz, a multiple of `SAMPLE_RATE`.
        hop_length: From frame to frame, in these samples; a multiple of the ratio of both rates.
    """
    ratio = sample_rate // SAMPLE_RATE
    sound = soxr.resample(samples, sample_rate, SAMPLE_RATE) if ratio > 1 else samples
    count = 1 + len(samples) // hop_length
    lags = np.arange(int(SAMPLE_RATE / HIGH_HZ) - 1, int(SAMPLE_RATE / LOW_HZ) + 2)
    frames = _frames(np.asarray(sound, np.float64), count, hop_length // ratio, WINDOW_SAMPLES + lags[-1] + 1)
    differences = _normalized_differences(frames, lags[-1] + 1)
    hertz, prices = _candidates(differences[:, lags[0] : lags[-1] + 1], lags)
    power = np.mean(frames**2, axis=1)
    loud = 10 * np.log10(power + 1e-12) > 10 * np.log10(power.max() + 1e-12) + SILENT_DB
    return _cheapest(hertz, prices + np.where(loud, 0.0, 1.0)[:, None])


def _frames(sound, count, hop, length):
    """Centered on multiples of the hop: `(count, length)`."""
    # The two stretches that are compared lie around the middle for a lag in the middle of the range.
    padded = np.pad(sound, ((WINDOW_SAMPLES + SAMPLE_RATE // 120) // 2, length + hop))
    return np.lib.stride_tricks.sliding_window_view(padded, length)[: count * hop : hop][:count]


def _normalized_differences(frames, num_lags):
    """YIN's d', `(F, num_lags)` by lag in samples."""
    window = WINDOW_SAMPLES
    size = 1 << (frames.shape[1] + window - 1).bit_length()
    spectra = np.fft.rfft(frames, size), np.fft.rfft(frames[:, :window], size)
    products = np.fft.irfft(spectra[0] * spectra[1].conj(), size)[:, :num_lags]
    sums = np.cumsum(np.pad(frames**2, ((0, 0), (1, 0))), axis=1)
    powers = sums[:, window : window + num_lags] - sums[:, :num_lags]
    differences = np.maximum(powers[:, :1] + powers - 2 * products, 0)
    differences[:, 0] = 0
    means = np.cumsum(differences, axis=1) / np.maximum(np.arange(num_lags), 1)
    return np.where(means > 1e-12, differences / np.maximum(means, 1e-12), 1.0)


def _candidates(differences, lags):
    """The deepest minima of each frame: pitch in Hz and price, `(F, CANDIDATES)`; unused ones cost infinitely much."""
    left, middle, right = differences[:, :-2], differences[:, 1:-1], differences[:, 2:]
    is_minimum = (middle < left) & (middle <= right)
    depth = np.where(is_minimum, middle, np.inf)
    chosen = np.argsort(depth, axis=1)[:, :CANDIDATES]
    pick = lambda values: np.take_along_axis(values, chosen, axis=1)
    low, value, high = pick(left), pick(middle), pick(right)
    curvature = np.maximum(low + high - 2 * value, 1e-9)
    shift = np.clip(0.5 * (low - high) / curvature, -0.5, 0.5)
    hertz = SAMPLE_RATE / (lags[1:-1][chosen] + shift)
    prices = pick(depth) + HALVING_PRICE * np.log2(HIGH_HZ / hertz)
    return hertz, prices


def _cheapest(hertz, prices):
    """The course through the candidates and, at a price of its own, no pitch: F0 by frame."""
    octaves = np.log2(hertz)
    totals = np.append(prices[0], UNVOICED_PRICE)
    came_from = np.zeros((len(hertz), totals.size), int)
    steps = np.full((totals.size, totals.size), SWITCH_PRICE)
    steps[-1, -1] = 0.0
    for frame in range(1, len(hertz)):
        steps[:-1, :-1] = OCTAVE_PRICE * np.abs(octaves[frame - 1][:, None] - octaves[frame])
        ways = totals[:, None] + steps
        came_from[frame] = ways.argmin(axis=0)
        totals = ways.min(axis=0) + np.append(prices[frame], UNVOICED_PRICE)
    place, course = int(totals.argmin()), []
    for frame in range(len(hertz) - 1, -1, -1):
        course.append(place)
        place = came_from[frame, place]
    with_none = np.pad(hertz, ((0, 0), (0, 1)))
    return with_none[np.arange(len(hertz)), course[::-1]].astype(np.float32)

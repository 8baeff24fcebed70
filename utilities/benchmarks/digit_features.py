"""What the judge of spoken digits sees of a clip: mel features, and those of the clip in another room."""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_extra import import_extra  # noqa: E402  a neighbor of this file

SAMPLE_RATE = 8000  # of the recordings: nothing above 4 kHz can be learned, so nothing above is listened to
N_FFT = 256
HOP_LENGTH = 80
NUM_BINS = N_FFT // 2 + 1
NUM_MELS = 40
SILENT_PEAK = 1e-4  # three steps of a 16-bit sample
WINDOW_FRAMES = 80  # 0.8 s; 99 % of the recordings are shorter once silence is cut off
SILENCE_DB = -35.0  # frames this far below the loudest one are silence at the edges
FLOOR_DB = -50.0  # of the features, below the clip's loud frames


def power_spectrum(samples: np.ndarray) -> np.ndarray:
    """Power spectrum of a clip at `SAMPLE_RATE`, without the silence at its ends and scaled to a peak sample of 1.

    Returns:
        `(T, NUM_BINS)` float32 with `T <= WINDOW_FRAMES`: of a longer clip, its most energetic stretch. `T` is 0 for a
        clip whose peak is below `SILENT_PEAK`.
    """
    peak = np.abs(samples).max(initial=0.0)
    if peak < SILENT_PEAK:
        return np.zeros((0, NUM_BINS), np.float32)
    padded = np.pad(samples / peak, N_FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP_LENGTH]
    power = (np.abs(np.fft.rfft(frames * np.hanning(N_FFT + 1)[:-1])) ** 2).astype(np.float32)
    # Bins below 94 Hz hold mains hum, not speech.
    energy_db = 10 * np.log10(power[:, 3:].sum(axis=1) + 1e-9)
    loud = np.flatnonzero(energy_db > energy_db.max() + SILENCE_DB)
    power = power[max(loud[0] - 2, 0) : loud[-1] + 3]
    if len(power) > WINDOW_FRAMES:
        total = np.concatenate([[0.0], np.cumsum(power.sum(axis=1))])
        start = int(np.argmax(total[WINDOW_FRAMES:] - total[:-WINDOW_FRAMES]))
        power = power[start : start + WINDOW_FRAMES]
    return power


def place(spectra: Sequence[np.ndarray], starts: Sequence[int]) -> np.ndarray:
    """Lays each spectrum `(T, bins)` into a silent window at its start: `(B, WINDOW_FRAMES, bins)`."""
    windows = np.zeros((len(spectra), WINDOW_FRAMES, NUM_BINS), np.float32)
    for window, spectrum, start in zip(windows, spectra, starts, strict=True):
        window[start : start + len(spectrum)] = spectrum
    return windows


@cache
def mel_filters() -> np.ndarray:
    """Mel filters, `(bins, NUM_MELS)`; 60 Hz and 3900 Hz keep clear of hum and of the resampler's slope."""
    filters = import_extra("librosa").filters
    return filters.mel(sr=SAMPLE_RATE, n_fft=N_FFT, n_mels=NUM_MELS, fmin=60, fmax=3900).T.astype(np.float32)


def mel_to_features(mel: np.ndarray) -> np.ndarray:
    """Decibels below the clip's ten loudest frames, from `FLOOR_DB` to 0, mapped to -1 to 1.

    Args:
        mel: Mel power, `(B, WINDOW_FRAMES, NUM_MELS)`.

    Returns:
        The network's input, `(B, WINDOW_FRAMES, NUM_MELS, 1)` float32.
    """
    loudest_db = np.sort(10 * np.log10(mel.sum(axis=-1) + 1e-9), axis=1)[:, -10:].mean(axis=1)
    decibels = 10 * np.log10(mel + 1e-9) - loudest_db[:, None, None]
    return (2 * np.maximum(decibels, FLOOR_DB) / -FLOOR_DB + 1).astype(np.float32)[..., None]


def blur(mel: np.ndarray, side_weight: np.ndarray, axis: int) -> np.ndarray:
    """Mixes each value with its two neighbors along `axis`, weighing each of them `side_weight` `(B, 1, 1)`."""
    places = np.arange(mel.shape[axis])
    neighbors = mel.take(places - 1, axis, mode="clip") + mel.take(places + 1, axis, mode="clip")
    return mel * (1 - 2 * side_weight) + side_weight * neighbors


def augmented_features(spectra: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Features of clips as another microphone in another room would have caught them.

    In order: rougher cuts at the ends, a random place in the window, equalization, fluctuation of single bins, noise
    8 to 50 dB below, blur in time and frequency, masked stripes (SpecAugment, Park et al. 2019, section 2).
    """
    count = len(spectra)
    cut = [s[rng.integers(0, 4) : len(s) - rng.integers(0, 4)] if rng.random() < 0.3 else s for s in spectra]
    lengths = np.array([len(s) for s in cut])
    power = place(cut, rng.integers(0, WINDOW_FRAMES - lengths + 1))

    knots_db = rng.normal(0, 3, (count, 6))
    curve_db = np.stack([np.interp(np.linspace(0, 5, NUM_BINS), np.arange(6), knots) for knots in knots_db])
    power *= (10 ** (curve_db / 10)).astype(np.float32)[:, None]
    # A phase guessed by Griffin-Lim lets neighboring bins beat against each other; so does a room.
    spread = rng.uniform(0, 1, (count, 1, 1)).astype(np.float32)
    power *= np.exp(spread * rng.standard_normal(power.shape, dtype=np.float32))
    # The power of Gaussian noise in one bin of a spectrum is exponentially distributed.
    slope_db = rng.uniform(-15, 5, (count, 1)) * np.linspace(0, 1, NUM_BINS)
    noise_shape = 10 ** (slope_db / 10)
    noise_shape /= noise_shape.sum(axis=1, keepdims=True)
    noise_power = power.sum(axis=(1, 2)) / lengths * 10 ** (-rng.uniform(8, 50, count) / 10)
    noise_level = (noise_shape * noise_power[:, None]).astype(np.float32)[:, None]
    power += noise_level * rng.standard_exponential(power.shape, dtype=np.float32)

    def side_weight(largest: float, share: float) -> np.ndarray:
        chosen = rng.random((count, 1, 1)) < share
        return (rng.uniform(0, largest, (count, 1, 1)) * chosen).astype(np.float32)

    mel = blur(power @ mel_filters(), side_weight(1 / 3, 0.7), axis=1)
    features = mel_to_features(blur(mel, side_weight(0.25, 0.5), axis=2))
    for window in features:
        for stripes, widest in ((window, 7), (window.swapaxes(0, 1), 4)):
            width = rng.integers(0, widest + 1)
            start = rng.integers(0, len(stripes) - width)
            stripes[start : start + width] = -1
    return features

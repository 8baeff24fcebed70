"""What the judge of spoken digits sees of a clip, in two ways, and what it sees of the clip in another room."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import scipy.fft

SAMPLE_RATE = 8000  # of the recordings: nothing above 4 kHz can be learned, so nothing above is listened to
N_FFT = 256
HOP_LENGTH = 80
NUM_BINS = N_FFT // 2 + 1
NUM_MELS = 40
NUM_BANDS, NUM_CEPSTRA = 24, 20
NUM_LAGS = 24
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


def triangles(edges_hz: np.ndarray) -> np.ndarray:
    """Filters `(bins, N)`, each rising from one of `N + 2` edges to the next and falling to the one after."""
    hertz = np.linspace(0, SAMPLE_RATE / 2, NUM_BINS)[:, None]
    low, center, high = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    rise, fall = (hertz - low) / (center - low), (high - hertz) / (high - center)
    return np.maximum(np.minimum(rise, fall), 0).astype(np.float32)


@cache
def mel_filters() -> np.ndarray:
    """Triangles of equal width in mel, `(bins, NUM_MELS)`; 60 Hz and 3900 Hz keep clear of hum and of resamplers."""
    edges_mel = np.linspace(*(2595 * np.log10(1 + np.array([60, 3900]) / 700)), NUM_MELS + 2)
    filters = triangles(700 * (10 ** (edges_mel / 2595) - 1))
    # The lowest are narrower than a bin: each hears at least the nearest.
    centers = np.round((700 * (10 ** (edges_mel / 2595) - 1))[1:-1] / (SAMPLE_RATE / 2) * (NUM_BINS - 1)).astype(int)
    filters[centers, np.arange(NUM_MELS)] = np.maximum(filters[centers, np.arange(NUM_MELS)], 0.5)
    return filters / filters.sum(axis=0)


@cache
def linear_filters() -> np.ndarray:
    """`NUM_BANDS` triangles of equal width in Hz, `(bins, NUM_BANDS)`."""
    return triangles(np.linspace(60, 3900, NUM_BANDS + 2))


@cache
def lag_cosines() -> np.ndarray:
    """What turns a power spectrum into its autocorrelation at lags of 1/330 to 1/70 s, `(bins, NUM_LAGS)`."""
    lags = np.geomspace(SAMPLE_RATE / 330, SAMPLE_RATE / 70, NUM_LAGS)
    return np.cos(2 * np.pi * np.arange(NUM_BINS)[:, None] * lags / N_FFT).astype(np.float32)


def decibels(power: np.ndarray) -> np.ndarray:
    """Bands of power, `(B, T, bands)`, in decibels below the clip's ten loudest frames, `FLOOR_DB` to 0 as -1 to 1."""
    loudest_db = np.sort(10 * np.log10(power.sum(axis=-1) + 1e-9), axis=1)[:, -10:].mean(axis=1)
    below = 10 * np.log10(power + 1e-9) - loudest_db[:, None, None]
    return (2 * np.maximum(below, FLOOR_DB) / -FLOOR_DB + 1).astype(np.float32)


def cepstra_and_pitch(power: np.ndarray) -> np.ndarray:
    """Cepstra of bands of equal width beside the autocorrelation, `(B, T, bins)` to `(B, T, NUM_CEPSTRA + NUM_LAGS)`.

    Where mel bands crowd at low frequencies, these give fricatives their full share (Sahidullah, Kinnunen and Hanilçi,
    "A comparison of features for synthetic speech detection", 2015); the autocorrelation shows the pitch of the voice.
    """
    cepstra = scipy.fft.dct(decibels(power @ linear_filters()), norm="ortho")[..., :NUM_CEPSTRA]
    energy = power.sum(axis=-1, keepdims=True)
    floor = 1e-4 * energy.max(axis=1, keepdims=True) + 1e-9
    return np.concatenate([cepstra, power @ lag_cosines() / (energy + floor)], axis=-1).astype(np.float32)


def views(power: np.ndarray) -> list[np.ndarray]:
    """The two networks' inputs, of power spectra `(B, WINDOW_FRAMES, bins)`: mel bands, cepstra and pitch."""
    return [decibels(power @ mel_filters()), cepstra_and_pitch(power)]


def blur(mel: np.ndarray, side_weight: np.ndarray, axis: int) -> np.ndarray:
    """Mixes each value with its two neighbors along `axis`, weighing each of them `side_weight` `(B, 1, 1)`."""
    places = np.arange(mel.shape[axis])
    neighbors = mel.take(places - 1, axis, mode="clip") + mel.take(places + 1, axis, mode="clip")
    return mel * (1 - 2 * side_weight) + side_weight * neighbors


def in_another_room(spectra: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Power spectra as another microphone in another room would have caught them, `(B, WINDOW_FRAMES, NUM_BINS)`.

    In order: rougher cuts at the ends, a random place in the window, equalization, fluctuation of single bins, noise
    5 to 50 dB below.
    """
    count = len(spectra)
    cut = [
        s[rng.integers(0, 4) : len(s) - rng.integers(0, 4)] if rng.random() < 0.3 and len(s) > 6 else s for s in spectra
    ]
    lengths = np.array([len(s) for s in cut])
    power = place(cut, rng.integers(0, WINDOW_FRAMES - lengths + 1))

    knots_db = rng.normal(0, 3, (count, 6))
    curve_db = np.stack([np.interp(np.linspace(0, 5, NUM_BINS), np.arange(6), knots) for knots in knots_db])
    power *= (10 ** (curve_db / 10)).astype(np.float32)[:, None]
    # A phase guessed by Griffin-Lim lets neighboring bins beat against each other; so does a room.
    spread = rng.uniform(0, 1, (count, 1, 1)).astype(np.float32)
    power *= np.exp(spread * rng.standard_normal(power.shape, dtype=np.float32))
    return add_noise(power, lengths, rng.uniform(5, 50, count), rng)


def add_noise(power: np.ndarray, lengths: np.ndarray, snr_db: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Spectra `(B, T, NUM_BINS)` with noise that rises or falls over frequency, `snr_db` below their mean power."""
    slope_db = rng.uniform(-15, 5, (len(power), 1)) * np.linspace(0, 1, NUM_BINS)
    noise_shape = 10 ** (slope_db / 10)
    noise_shape /= noise_shape.sum(axis=1, keepdims=True)
    noise_power = power.sum(axis=(1, 2)) / lengths * 10 ** (-snr_db / 10)
    noise_level = (noise_shape * noise_power[:, None]).astype(np.float32)[:, None]
    # The power of Gaussian noise in one bin of a spectrum is exponentially distributed.
    return power + noise_level * rng.standard_exponential(power.shape, dtype=np.float32)


def augmented_views(spectra: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """`views` of clips in another room, blurred a little, with masked stripes (SpecAugment, Park et al. 2019, 2)."""
    power = in_another_room(spectra, rng)

    def side_weight(largest: float, share: float) -> np.ndarray:
        chosen = rng.random((len(power), 1, 1)) < share
        return (rng.uniform(0, largest, (len(power), 1, 1)) * chosen).astype(np.float32)

    power = blur(power, side_weight(1 / 3, 0.7), axis=1)
    mel = decibels(blur(power @ mel_filters(), side_weight(0.25, 0.5), axis=2))
    other = cepstra_and_pitch(power)
    for window in mel:
        mask(window, 7, -1, rng)
        mask(window.T, 4, -1, rng)
    for window in other:
        mask(window, 5, 0, rng)
        mask(window.T[NUM_CEPSTRA:], 6, 0, rng)
    return [mel, other]


def mask(rows: np.ndarray, widest: int, value: float, rng: np.random.Generator) -> None:
    """Overwrites 0 to `widest` neighboring rows with `value`."""
    width = rng.integers(0, widest + 1)
    start = rng.integers(0, len(rows) - width)
    rows[start : start + width] = value

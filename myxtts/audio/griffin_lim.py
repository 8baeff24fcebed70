"""Griffin-Lim vocoder: non-negative mel inversion and fast Griffin-Lim."""

from typing import Any

import numpy as np
import scipy.fft

from myxtts.audio.mel import DVAE_MEL

_INVERSION_ITERATIONS = 20
_TINY = np.float32(1e-10)


def log_mel_to_wav(log_mel: Any, num_iterations: int = 60, momentum: float = 0.99, seed: int = 0) -> np.ndarray:
    """Estimates a waveform from its log-mel spectrogram.

    A non-negative linear power spectrum is estimated from the mel bands, and its phase by fast Griffin-Lim (Perraudin,
    Balazs and Søndergaard, "A fast Griffin-Lim algorithm", 2013). As the mel bands do not determine the spectrum, the
    second half of the iterations replaces its magnitudes by those of the current signal, corrected towards the given
    mel. That more than halves the final mel error.

    Args:
        log_mel: Natural logarithm of power by `DVAE_MEL`, not divided by `mel_stats`, `(F, num_mels)`.
        momentum: Weight of the last change of the spectrum; 0 is plain Griffin-Lim, above 1 it may diverge.
        seed: Seed of the initial phases.

    Returns:
        Waveform at 22 050 Hz, `((F - 1) * hop_length,)` float32, not clipped.
    """
    log_mel = np.asarray(log_mel, "float32")
    min_frames = 2 + DVAE_MEL.n_fft // 2 // DVAE_MEL.hop_length  # the reflected ends
    if log_mel.ndim != 2 or len(log_mel) < min_frames or log_mel.shape[1] != DVAE_MEL.num_mels:
        shape = f"({min_frames} or more, {DVAE_MEL.num_mels})"
        raise ValueError(f"log_mel must have the shape {shape}. Received: {log_mel.shape}.")
    if not np.isfinite(log_mel).all():
        raise ValueError("log_mel must be finite. Received: NaN or infinity. The model may have diverged.")
    mel, filters = np.maximum(np.exp(log_mel), _TINY), DVAE_MEL.filterbank()
    mean_power = mel / filters.sum(axis=0)
    # Bins outside all filters keep zero power.
    power = mean_power @ filters.T / np.maximum(filters.sum(axis=1), _TINY)
    for _ in range(_INVERSION_ITERATIONS):
        power = _pooling_to(mel, filters, power)
    magnitude = np.sqrt(power)
    phase = np.random.default_rng(seed).random(magnitude.shape, dtype="float32") * np.float32(2 * np.pi)
    spectrum = magnitude * (np.cos(phase) + 1j * np.sin(phase))
    window = DVAE_MEL.window_values()
    energy = np.maximum(_overlap_add(np.broadcast_to(np.square(window), (len(mel), len(window)))), _TINY)
    previous = 0.0
    for iteration in range(num_iterations):
        consistent = _wav_to_spectrum(_spectrum_to_wav(spectrum, window, energy), window)
        if iteration >= num_iterations // 2:
            magnitude = np.sqrt(_pooling_to(mel, filters, np.square(consistent.real) + np.square(consistent.imag)))
        accelerated = consistent + np.float32(momentum) * (consistent - previous) if iteration else consistent
        previous = consistent
        spectrum = accelerated * (magnitude / np.maximum(np.abs(accelerated), _TINY))
    return _spectrum_to_wav(spectrum, window, energy)


def _pooling_to(mel, filters, power):
    """Updates non-negative power spectra, `(F, 1 + n_fft // 2)`, once towards those that pool to `mel`.

    The multiplicative update lowers the Kullback-Leibler divergence (Lee and Seung, "Algorithms for non-negative matrix
    factorization", 2001, with fixed filters). Unlike least squares, it weighs quiet bands like loud ones and keeps the
    spectrum smooth.
    """
    ratio = mel / np.maximum(power @ filters, _TINY)
    return power * (ratio @ filters.T / np.maximum(filters.sum(axis=1), _TINY))


def _wav_to_spectrum(wav, window):
    """`(S,)` to complex spectra, `(F, 1 + n_fft // 2)`, by the transform of `MelSpectrogram`."""
    padded = np.pad(wav, len(window) // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, len(window))[:: DVAE_MEL.hop_length]
    return scipy.fft.rfft(frames * window)


def _spectrum_to_wav(spectrum, window, energy):
    """Complex spectra, `(F, 1 + n_fft // 2)`, to the closest `(S,)` (Griffin and Lim, 1984, equation 6)."""
    frames = scipy.fft.irfft(spectrum, n=len(window)) * window
    start, num_samples = len(window) // 2, (len(spectrum) - 1) * DVAE_MEL.hop_length
    return (_overlap_add(frames) / energy)[start : start + num_samples]


def _overlap_add(frames):
    """`(F, n_fft)` to `((F - 1) * hop + n_fft,)`."""
    hop = DVAE_MEL.hop_length
    overlap = frames.shape[1] // hop
    total = np.zeros((len(frames) + overlap - 1, hop), "float32")
    for i in range(overlap):
        total[i : i + len(frames)] += frames[:, i * hop : (i + 1) * hop]
    return total.reshape(-1)

"""Waveforms from log-mel spectrograms without a neural vocoder: non-negative mel inversion and fast Griffin-Lim."""

from typing import Any

import numpy as np
import scipy.fft

from myxtts.audio.mel import DVAE_MEL

_INVERSION_ITERATIONS = 20
_TINY = np.float32(1e-10)


def log_mel_to_wav(log_mel: Any, num_iterations: int = 60, momentum: float = 0.99, seed: int = 0) -> np.ndarray:
    """Finds a waveform whose log-mel spectrogram is close to the given one.

    The linear power spectrum is first estimated from the mel bands under the constraint that it is not negative; its
    phase then comes from fast Griffin-Lim (Perraudin, Balazs and Søndergaard, "A fast Griffin-Lim algorithm", 2013).
    The mel bands do not fix the linear spectrum, so in the second half of the iterations the magnitudes are no longer
    held: those of the current signal are taken and corrected until they pool to the given mel. That more than halves
    the final mel error.

    Args:
        log_mel: Log-mel by the recipe `DVAE_MEL`, without the division by `mel_stats`, `(F, num_mels)`, natural
            logarithm of power. NumPy or anything that converts to it.
        momentum: Weight of the last change of the spectrum; 0 is plain Griffin-Lim, above 1 it may diverge.
        seed: Seed of the initial phases. The same seed gives the same waveform.

    Returns:
        Waveform at 22 050 Hz, `((F - 1) * hop_length,)` float32. Not clipped.
    """
    log_mel = np.asarray(log_mel, "float32")
    min_frames = 2 + DVAE_MEL.n_fft // 2 // DVAE_MEL.hop_length  # the reflected ends
    if log_mel.ndim != 2 or len(log_mel) < min_frames or log_mel.shape[1] != DVAE_MEL.num_mels:
        shape = f"({min_frames} frames or more, {DVAE_MEL.num_mels})"
        raise ValueError(f"log_mel must have the shape {shape}. Received: shape {log_mel.shape}.")
    if not np.isfinite(log_mel).all():
        raise ValueError("log_mel must be finite. Received: NaN or infinity; the model that made it has diverged.")
    transform = _ShortTimeFourierTransform(len(log_mel))
    inversion = _MelInversion(np.exp(log_mel))
    magnitude = np.sqrt(inversion.solve())
    phase = np.random.default_rng(seed).random(magnitude.shape, dtype="float32") * np.float32(2 * np.pi)
    spectrum = magnitude * (np.cos(phase) + 1j * np.sin(phase))
    previous = 0.0
    for iteration in range(num_iterations):
        consistent = transform.forward(transform.inverse(spectrum))
        if iteration >= num_iterations // 2:
            magnitude = np.sqrt(inversion.correct(np.square(consistent.real) + np.square(consistent.imag)))
        accelerated = consistent + np.float32(momentum) * (consistent - previous) if iteration else consistent
        previous = consistent
        spectrum = accelerated * (magnitude / np.maximum(np.abs(accelerated), _TINY))
    return transform.inverse(spectrum)


class _MelInversion:
    """Non-negative power spectra that pool to a given mel spectrogram, by multiplicative updates.

    The updates lower the Kullback-Leibler divergence (Lee and Seung, "Algorithms for non-negative matrix
    factorization", 2001, with the filters held fixed). Against least squares, quiet bands count as much as loud ones,
    and the solution stays smooth across frequency.
    """

    def __init__(self, mel):
        self._mel = np.maximum(mel, _TINY)
        self._filters = DVAE_MEL.filterbank()
        # Bins that no filter sees keep zero power.
        self._bin_weight = np.maximum(self._filters.sum(axis=1), _TINY)

    def solve(self):
        """Power spectra, `(F, 1 + n_fft // 2)`, pooled by the filters to the mel within a fraction of a percent."""
        mean_power = self._mel / self._filters.sum(axis=0)
        power = mean_power @ self._filters.T / self._bin_weight
        for _ in range(_INVERSION_ITERATIONS):
            power = self.correct(power)
        return power

    def correct(self, power):
        """One multiplicative update of `power` towards the mel."""
        ratio = self._mel / np.maximum(power @ self._filters, _TINY)
        return power * (ratio @ self._filters.T / self._bin_weight)


class _ShortTimeFourierTransform:
    """The transform that `MelSpectrogram` is built on, and its least-squares inverse, for `num_frames` frames."""

    def __init__(self, num_frames):
        self._n_fft, self._hop_length, self._num_frames = DVAE_MEL.n_fft, DVAE_MEL.hop_length, num_frames
        self._window = DVAE_MEL.window_values()
        squared_window = np.broadcast_to(np.square(self._window), (num_frames, self._n_fft))
        self._window_energy = np.maximum(self._overlap_add(squared_window), _TINY)

    def forward(self, wav):
        """`(S,)` to complex spectra, `(F, 1 + n_fft // 2)`."""
        padded = np.pad(wav, self._n_fft // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self._n_fft)[:: self._hop_length]
        return scipy.fft.rfft(frames * self._window)

    def inverse(self, spectrum):
        """Complex spectra, `(F, 1 + n_fft // 2)`, to the closest `(S,)` (Griffin and Lim, 1984, equation 6)."""
        frames = scipy.fft.irfft(spectrum, n=self._n_fft) * self._window
        start, num_samples = self._n_fft // 2, (self._num_frames - 1) * self._hop_length
        return (self._overlap_add(frames) / self._window_energy)[start : start + num_samples]

    def _overlap_add(self, frames):
        """`(F, n_fft)` to `((F - 1) * hop + n_fft,)`."""
        overlap = self._n_fft // self._hop_length
        total = np.zeros((self._num_frames + overlap - 1, self._hop_length), "float32")
        for i in range(overlap):
            total[i : i + self._num_frames] += frames[:, i * self._hop_length : (i + 1) * self._hop_length]
        return total.reshape(-1)

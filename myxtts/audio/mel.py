"""Log-mel spectrograms for training and inference, resampling in graphs, and the Griffin-Lim vocoder.

`DVAE_MEL` describes the input and output of the DVAE, `CONDITIONING_MEL` the input of the conditioning encoder, and
`SPEAKER_MEL` the input of the speaker encoder.
"""

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.fft
from keras import ops

from myxtts.config.checks import require
from myxtts.config.rates import MEL_FLOOR, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE, NUM_MELS, SPEAKER_SAMPLE_RATE


@dataclass(frozen=True)
class MelSpec:
    """Settings of a log-mel spectrogram: power spectra of centered, reflect-padded frames, pooled by triangular filters
    on the HTK mel scale, then compressed as `ln(max(x, log_floor) + log_offset)`."""

    sample_rate: int
    """Sample rate of the waveform, in Hz."""
    n_fft: int
    """FFT length, in samples."""
    win_length: int
    """Length of the analysis window, in samples; the window is centered in `n_fft`."""
    hop_length: int
    """Hop between frames, in samples."""
    num_mels: int
    f_max: float = 8000.0
    """Upper edge of the highest band, in Hz; the lowest band starts at 0 Hz."""
    window: str = "hann"
    """Periodic analysis window, `"hann"` or `"hamming"`."""
    filter_norm: str | None = "slaney"
    """`"slaney"` for filters of unit area, None for unit height."""
    log_floor: float = MEL_FLOOR
    """Minimum power before the logarithm."""
    log_offset: float = 0.0
    """Power added before the logarithm."""
    preemphasis: float = 0.0
    """Coefficient `a` of the filter `y[t] = x[t] - a x[t-1]` before the transform; 0 for none."""

    def window_values(self) -> np.ndarray:
        """Returns the analysis window, `(win_length,)` float32."""
        return (np.hamming if self.window == "hamming" else np.hanning)(self.win_length + 1)[:-1].astype("float32")

    def band_at(self, hz: float) -> float:
        """Converts a frequency to a fractional band number; the center of band `i` is `i + 0.5`."""
        return _hz_to_mel(hz) / _hz_to_mel(self.f_max) * (self.num_mels + 1) - 0.5

    def filterbank(self) -> np.ndarray:
        """Returns the mel filters, `(1 + n_fft // 2, num_mels)` float32.

        The mel scale is HTK's, `mel = 2595 log10(1 + f / 700)`. Scaling to unit area (`filter_norm`) follows Slaney's
        Auditory Toolbox. Filters are computed in float32, as in torchaudio; float64 would differ by up to 5e-6.
        """
        bin_hz = _float32_ramp(self.sample_rate / 2, 1 + self.n_fft // 2)
        exponent = _float32_ramp(_hz_to_mel(self.f_max), self.num_mels + 2) / np.float32(2595.0)
        edge_hz = np.float32(700.0) * (np.power(10.0, exponent, dtype="float64").astype("float32") - np.float32(1.0))
        distance, width = edge_hz - bin_hz[:, np.newaxis], np.diff(edge_hz)
        filters = np.maximum(np.float32(0.0), np.minimum(-distance[:, :-2] / width[:-1], distance[:, 2:] / width[1:]))
        if self.filter_norm == "slaney":
            filters *= np.float32(2.0) / (edge_hz[2:] - edge_hz[:-2])
        return filters


def _hz_to_mel(hz):
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def _float32_ramp(stop, count):
    """Returns evenly spaced float32 values from 0 to `stop`, with the rounding of `torch.linspace`."""
    stop, index = np.float32(stop), np.arange(count)
    step = np.float64(stop / np.float32(count - 1))
    return np.where(2 * index < count, step * index, stop - step * (count - 1 - index)).astype("float32")


DVAE_MEL = MelSpec(MODEL_SAMPLE_RATE, n_fft=1024, win_length=1024, hop_length=MEL_HOP_SAMPLES, num_mels=NUM_MELS)
CONDITIONING_MEL = replace(DVAE_MEL, n_fft=2048)
_SPEAKER_FORM = {"window": "hamming", "filter_norm": None, "log_floor": 0.0, "log_offset": 1e-6, "preemphasis": 0.97}
SPEAKER_MEL = MelSpec(SPEAKER_SAMPLE_RATE, n_fft=512, win_length=400, hop_length=160, num_mels=64, **_SPEAKER_FORM)
_LOWPASS_WIDTH = 6  # zero crossings of the sinc on each side
_MOMENTUM = np.float32(0.99)  # weight of the last change of the spectrum; 0 is plain Griffin-Lim, above 1 may diverge
_TINY = np.float32(1e-10)


def _pooled(filters):
    """Crops `filters` `(bins, bands)` to the bins that any band uses. Returns the slice of bins and the new filters."""
    reached = np.flatnonzero(filters.any(axis=1))
    bins = slice(int(reached[0]), int(reached[-1]) + 1)
    return bins, filters[bins]


class MelSpectrogram:
    """Computes log-mel spectrograms in float32, eagerly or in a graph.

    Zero padding of a waveform changes only the frames whose window extends beyond the end of the waveform.
    """

    def __init__(self, spec: MelSpec):
        self.spec = spec
        self._window = spec.window_values()
        self._window_blocks = -(-spec.win_length // spec.hop_length)
        filters = spec.filterbank()
        self._filters = [_pooled(filters)]
        # Low bands cover few bins, so three groups of bands need a third of the multiplications.
        ends = [spec.num_mels // 2, spec.num_mels * 4 // 5]
        self._filter_groups = [_pooled(group) for group in np.split(filters, ends, axis=1)]

    def __call__(self, wav: Any, by_clip: bool = False) -> Any:
        """Computes the log-mel spectrogram.

        Args:
            wav: Waveforms, `(B, S)` in [-1, 1] at `spec.sample_rate`; `S` must be more than half a window.
            by_clip: Whether to process one clip after the other, which is faster on a CPU and slower on a GPU.

        Returns log-mel, `(B, 1 + S // hop_length, num_mels)` float32.
        """
        blocks, num_frames = self._blocks(wav)
        if not by_clip:
            return self._log_mel(self._frames(blocks, num_frames), self._filters)
        return ops.map(lambda clip: self._log_mel(self._frames(clip[None], num_frames)[0], self._filter_groups), blocks)

    def _log_mel(self, frames, filter_groups):
        """Converts frames `(..., F, win_length)` to log-mel `(..., F, num_mels)`, with filters from `_pooled`."""
        spec = self.spec
        # The window is at the start of n_fft, not centered, which changes only the phase.
        real, imaginary = ops.rfft(frames * self._window, fft_length=spec.n_fft)
        power = ops.square(real) + ops.square(imaginary)
        mel = ops.concatenate([ops.matmul(power[..., bins], filters) for bins, filters in filter_groups], axis=-1)
        return ops.log(ops.maximum(mel, spec.log_floor) + spec.log_offset)

    def _blocks(self, wav):
        """Reflect-pads waveforms `(B, S)`. Returns them as N blocks, `(B, N, hop_length)`, and the number of frames."""
        spec, hop_length, win_length = self.spec, self.spec.hop_length, self.spec.win_length
        wav = ops.convert_to_tensor(wav, "float32")
        before, after = win_length // 2, win_length - win_length // 2
        fits = wav.shape[1] is None or wav.shape[1] > before
        rule = f"longer than half a window, {before} samples"
        require(fits, "A waveform", rule, wav.shape[1], "Pad it with zeros.", ValueError)
        if spec.preemphasis:
            wav = wav - spec.preemphasis * ops.concatenate([wav[:, 1:2], wav[:, :-1]], axis=1)
        num_frames = 1 + ops.shape(wav)[1] // hop_length
        # Concatenation is faster than padding with the mode "reflect".
        start, end = (ops.flip(part, axis=1) for part in (wav[:, 1 : before + 1], wav[:, -after - 1 : -1]))
        rest = ops.zeros((ops.shape(wav)[0], self._window_blocks * hop_length - win_length))
        padded = ops.concatenate([start, wav, end, rest], axis=1)
        num_blocks = num_frames - 1 + self._window_blocks
        return ops.reshape(padded[:, : num_blocks * hop_length], (-1, num_blocks, hop_length)), num_frames

    def _frames(self, blocks, num_frames):
        """Joins blocks `(B, blocks, hop_length)` into overlapping frames `(B, num_frames, win_length)`."""
        parts = [blocks[:, i : i + num_frames] for i in range(self._window_blocks)]
        last = self.spec.win_length - (self._window_blocks - 1) * self.spec.hop_length
        return ops.concatenate([*parts[:-1], parts[-1][..., :last]], axis=-1)


def resample(wav: Any, from_rate: int, to_rate: int) -> Any:
    """Resamples waveforms like coqui-tts: with a Hann-windowed sinc, as one strided convolution, eagerly or in a graph.

    This is Smith's band-limited interpolation ("Digital Audio Resampling Home Page") with torchaudio's defaults.

    `wav` is `(B, S)`, and the result `(B, ceil(S * to_rate / from_rate))` float32. Rates are in Hz. They should have a
    large common divisor: if p / q is the reduced ratio of the rates, the kernel size grows with p * q.
    """
    wav = ops.convert_to_tensor(wav, "float32")
    kernel, stride, pad = _sinc_kernel(from_rate, to_rate)
    padded = ops.pad(wav, [[0, 0], [pad, pad + stride]])
    # One output channel per phase: (B, S / stride, num_phases), read row by row, is the waveform.
    phases = ops.conv(padded[:, :, None], kernel, strides=stride, padding="valid", data_format="channels_last")
    num_phases = kernel.shape[2]
    interleaved = ops.reshape(phases, (-1, ops.shape(phases)[1] * num_phases))
    return interleaved[:, : (ops.shape(wav)[1] * num_phases + stride - 1) // stride]


@functools.lru_cache(maxsize=32)
def _sinc_kernel(from_rate, to_rate):
    """Returns torchaudio's float32 kernel `(taps, 1, num_phases)`, its stride, and the padding at the start."""
    stride, num_phases = Fraction(from_rate, to_rate).as_integer_ratio()
    base = 0.99 * min(stride, num_phases)  # cutoff as a fraction of the lower Nyquist frequency
    pad = math.ceil(_LOWPASS_WIDTH * stride / base)
    position = np.arange(-pad, pad + stride, dtype="float32") / np.float32(stride)
    delay = np.arange(0, -num_phases, -1, dtype="float32") / np.float32(num_phases)
    t = (delay[np.newaxis, :] + position[:, np.newaxis]) * np.float32(base)
    t = np.clip(t, np.float32(-_LOWPASS_WIDTH), np.float32(_LOWPASS_WIDTH))
    window = np.square(np.cos(t * np.float32(np.pi) / np.float32(2 * _LOWPASS_WIDTH)))
    return (np.sinc(t) * window * np.float32(base / stride))[:, np.newaxis, :], stride, pad


def log_mel_to_wav(log_mel: Any, num_iterations: int = 60) -> np.ndarray:
    """Estimates a waveform from its log-mel spectrogram.

    Estimates the magnitudes from the mel bands, and the phases by fast Griffin-Lim (Perraudin, Balazs and Søndergaard,
    "A fast Griffin-Lim algorithm", 2013). In the second half of the iterations, the magnitudes are taken from the
    current waveform and corrected towards the given mel. This more than halves the mel error.

    `log_mel` `(F, num_mels)`, with F of at least 4, has the format `DVAE_MEL` and is not normalized (see
    `XTTS.denormalize_mel`). Returns a waveform at 22 050 Hz, `((F - 1) * hop_length,)` float32, not clipped.
    """
    log_mel = np.asarray(log_mel, "float32")
    if log_mel.shape[1:] != (DVAE_MEL.num_mels,) or len(log_mel) < 4:
        raise ValueError(f"log_mel must have the shape (4 or more, {DVAE_MEL.num_mels}). Received: {log_mel.shape}.")
    if not np.isfinite(log_mel).all():
        raise ValueError("log_mel must be finite. Received: NaN or infinity. The model may have diverged.")
    mel, filters = np.maximum(np.exp(log_mel), _TINY), DVAE_MEL.filterbank()
    # Bins outside all filters keep zero power.
    power = (mel / filters.sum(axis=0)) @ filters.T / np.maximum(filters.sum(axis=1), _TINY)
    for _ in range(20):
        power = _pooling_to(mel, filters, power)
    magnitude = np.sqrt(power)
    phase = np.random.default_rng(0).random(magnitude.shape, dtype="float32") * np.float32(2 * np.pi)
    spectrum = magnitude * (np.cos(phase) + 1j * np.sin(phase))
    window = DVAE_MEL.window_values()
    energy = np.maximum(_overlap_add(np.broadcast_to(np.square(window), (len(mel), len(window)))), _TINY)
    previous = 0.0
    for iteration in range(num_iterations):
        padded = np.pad(_spectrum_to_wav(spectrum, window, energy), len(window) // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, len(window))[:: DVAE_MEL.hop_length]
        consistent = scipy.fft.rfft(frames * window)
        if iteration >= num_iterations // 2:
            magnitude = np.sqrt(_pooling_to(mel, filters, np.square(consistent.real) + np.square(consistent.imag)))
        accelerated = consistent + _MOMENTUM * (consistent - previous) if iteration else consistent
        previous = consistent
        spectrum = accelerated * (magnitude / np.maximum(np.abs(accelerated), _TINY))
    return _spectrum_to_wav(spectrum, window, energy)


def _pooling_to(mel, filters, power):
    """Corrects power spectra `power`, `(F, 1 + n_fft // 2)`, so that their mel bands become closer to `mel`."""
    # The multiplicative update decreases the Kullback-Leibler divergence (Lee and Seung, "Algorithms for non-negative
    # matrix factorization", 2001). Unlike least squares, it weights all bands equally and keeps the spectrum smooth.
    ratio = mel / np.maximum(power @ filters, _TINY)
    return power * (ratio @ filters.T / np.maximum(filters.sum(axis=1), _TINY))


def _spectrum_to_wav(spectrum, window, energy):
    """Returns the waveform `(S,)` whose spectra are closest to `spectrum`, `(F, 1 + n_fft // 2)` complex (Griffin and
    Lim 1984, eq. 6). `energy` is the overlap-added square of the window."""
    start, num_samples = len(window) // 2, (len(spectrum) - 1) * DVAE_MEL.hop_length
    return (_overlap_add(scipy.fft.irfft(spectrum, n=len(window)) * window) / energy)[start : start + num_samples]


def _overlap_add(frames):
    """Overlap-adds frames `(F, n_fft)` to a waveform `((F - 1) * hop + n_fft,)`."""
    hop = DVAE_MEL.hop_length
    overlap = frames.shape[1] // hop
    total = np.zeros((len(frames) + overlap - 1, hop), "float32")
    for i in range(overlap):
        total[i : i + len(frames)] += frames[:, i * hop : (i + 1) * hop]
    return total.reshape(-1)

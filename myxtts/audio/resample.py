"""Windowed-sinc resampling as one strided convolution, eagerly or in a graph."""

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from keras import ops

_LOWPASS_WIDTH = 6
"""Zero crossings of the sinc on each side."""
_ROLLOFF = 0.99
"""Cutoff as a fraction of the lower Nyquist frequency."""


def resample(wav: Any, from_rate: int, to_rate: int) -> Any:
    """Changes the sample rate of waveforms.

    Band-limited interpolation (Smith, "Digital Audio Resampling Home Page") with torchaudio's default, the
    Hann-windowed sinc, which the reference uses everywhere.

    Args:
        wav: Waveforms, `(B, S)`.
        from_rate, to_rate: Sample rates in Hz. They should have a large common divisor: the kernel grows with the
            numerator times the denominator of their ratio.

    Returns:
        Waveforms, `(B, num_resampled(S, from_rate, to_rate))` float32. `wav` itself when the rates are equal.
    """
    wav = ops.convert_to_tensor(wav, "float32")
    if from_rate == to_rate:
        return wav
    kernel, stride, pad = _sinc_kernel(from_rate, to_rate)
    padded = ops.pad(wav, [[0, 0], [pad, pad + stride]])
    # One output channel per phase: (B, S / stride, num_phases), read row by row, is the waveform.
    phases = ops.conv(padded[:, :, None], kernel, strides=stride, padding="valid", data_format="channels_last")
    interleaved = ops.reshape(phases, (-1, ops.shape(phases)[1] * kernel.shape[2]))
    return interleaved[:, : num_resampled(ops.shape(wav)[1], from_rate, to_rate)]


def num_resampled(num_samples: Any, from_rate: int, to_rate: int) -> Any:
    """Returns the length of `num_samples`, an int, an array or a tensor, after resampling."""
    stride, num_phases = Fraction(from_rate, to_rate).as_integer_ratio()
    return (num_samples * num_phases + stride - 1) // stride


@functools.lru_cache(maxsize=32)
def _sinc_kernel(from_rate, to_rate):
    """Returns the kernel `(taps, 1, num_phases)`, its stride and its left padding, in float32 as torchaudio does."""
    stride, num_phases = Fraction(from_rate, to_rate).as_integer_ratio()
    base = _ROLLOFF * min(stride, num_phases)
    pad = math.ceil(_LOWPASS_WIDTH * stride / base)
    position = np.arange(-pad, pad + stride, dtype="float32") / np.float32(stride)
    delay = np.arange(0, -num_phases, -1, dtype="float32") / np.float32(num_phases)
    t = (delay[np.newaxis, :] + position[:, np.newaxis]) * np.float32(base)
    t = np.clip(t, np.float32(-_LOWPASS_WIDTH), np.float32(_LOWPASS_WIDTH))
    window = np.square(np.cos(t * np.float32(np.pi) / np.float32(2 * _LOWPASS_WIDTH)))
    angle = t * np.float32(np.pi)
    sinc = np.where(angle == 0, np.float32(1), np.sin(angle) / np.where(angle == 0, np.float32(1), angle))
    kernel = sinc * window * np.float32(base / stride)
    return kernel[:, np.newaxis, :].astype("float32"), stride, pad

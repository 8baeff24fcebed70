"""Multi-period and multi-resolution discriminators for training waveform decoders.

Kong, Kim and Bae, "HiFi-GAN" (2020), section 2.3; Siuzdak, "Vocos" (2023), section 3.3, after Jang et al., "UnivNet"
(2021).
"""

from collections.abc import Sequence
from itertools import pairwise

import keras
import numpy as np
from keras import ops

from myxtts.models.layers import Conv1D, Layer, Tensor, built


def short_time_spectrum(wav: Tensor, n_fft: int) -> tuple[Tensor, Tensor]:
    """Computes real and imaginary parts of a Hann-windowed STFT with a hop of a quarter window.

    Reflection padding of 3/8 window at both ends gives one frame per hop, as in the code of Kong et al. 2020.

    Args:
        wav: `(B, S)` float32; S must be a multiple of `n_fft // 4` and above `3 n_fft // 8`.
        n_fft: Window and transform length, a multiple of 8.

    Returns:
        Two tensors `(B, 4 S // n_fft, n_fft // 2 + 1)` float32.
    """
    hop, margin = n_fft // 4, 3 * n_fft // 8
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype("float32")
    start, end = ops.flip(wav[:, 1 : margin + 1], axis=1), ops.flip(wav[:, -margin - 1 : -1], axis=1)
    blocks = ops.concatenate([start, wav, end], axis=1)
    blocks = ops.reshape(blocks, (ops.shape(wav)[0], -1, hop))
    num_frames = ops.shape(blocks)[1] - 3
    frames = ops.concatenate([blocks[:, i : i + num_frames] for i in range(4)], axis=-1)
    return ops.rfft(frames * window, fft_length=n_fft)


PERIODS = (2, 3, 5, 7, 11)
"""Period of each period discriminator, in samples."""
RESOLUTIONS = (512, 1024, 2048)
"""Fourier transform length of each spectrum discriminator, in samples."""
PERIOD_CHANNELS = (32, 128, 512, 1024, 1024)
SPECTRUM_CHANNELS = (32, 32, 32, 32, 32)
FEWEST_CHANNELS = 4
"""Minimum channels of a layer, for any divisor."""
_SLOPE = 0.1


class PeriodDiscriminator(Layer):
    """Convolutions over every `period`-th sample: `(B, S)` to feature maps `(B, period, T, C)`; the last is the score.

    Args:
        channels: Channels of each convolution; all but the last have a stride of 3.
    """

    def __init__(self, period: int, channels: Sequence[int] = PERIOD_CHANNELS, **kwargs):
        super().__init__(**kwargs)
        self.period, self.convolutions = period, []
        for index, widths in enumerate(pairwise((1, *channels))):
            options = dict(stride=1 if index == len(channels) - 1 else 3, padding=2, dtype=self.dtype_policy)
            self.convolutions.append(Conv1D(*widths, 5, name=f"conv_{index}", **options))
        self.score = Conv1D(channels[-1], 1, 3, dtype=self.dtype_policy, name="score")

    def call(self, wav: Tensor) -> list[Tensor]:
        rest = -wav.shape[1] % self.period  # reflection padding
        wav = ops.concatenate([wav, ops.flip(wav[:, -rest - 1 : -1], axis=1)], axis=1) if rest else wav
        rows = ops.reshape(wav, (-1, wav.shape[1] // self.period, self.period))
        x = ops.cast(ops.reshape(ops.transpose(rows, (0, 2, 1)), (-1, rows.shape[1], 1)), self.compute_dtype)
        maps = []
        for convolution in self.convolutions:
            x = ops.leaky_relu(convolution(x), _SLOPE)
            maps.append(x)
        maps.append(self.score(x))
        return [ops.reshape(one, (-1, self.period, one.shape[1], one.shape[2])) for one in maps]


class SpectrumDiscriminator(Layer):
    """Convolutions over the complex spectrum: `(B, S)` to feature maps `(B, T, bins, C)`; the last is the score.

    Args:
        n_fft: See `short_time_spectrum`.
        channels: Channels of each convolution; those between the first and the last halve the bins.
    """

    def __init__(self, n_fft: int, channels: Sequence[int] = SPECTRUM_CHANNELS, **kwargs):
        super().__init__(**kwargs)
        self.n_fft, self.convolutions, last = n_fft, [], len(channels) - 1
        options = dict(padding="same", dtype=self.dtype_policy)
        for index, (before, width) in enumerate(pairwise((2, *channels))):
            strides = (1, 2) if 0 < index < last else (1, 1)
            conv = keras.layers.Conv2D(width, (3, 3 if index == last else 9), strides, name=f"conv_{index}", **options)
            self.convolutions.append(built(conv, (None, None, None, before)))
        self.score = built(keras.layers.Conv2D(1, 3, name="score", **options), (None, None, None, channels[-1]))

    def call(self, wav: Tensor) -> list[Tensor]:
        spectrum = ops.stack(short_time_spectrum(ops.cast(wav, "float32"), self.n_fft), axis=-1)
        x, maps = ops.cast(spectrum, self.compute_dtype), []
        for convolution in self.convolutions:
            x = ops.leaky_relu(convolution(x), _SLOPE)
            maps.append(x)
        return [*maps, self.score(x)]


class Discriminators(Layer):
    """All discriminators: `(B, S)`, S known and a multiple of 512, to a list with the feature maps of each.

    Args:
        divisor: Divides the channels of the papers, since discriminators are most of the cost of a training step.
        periods, resolutions: One discriminator each.
    """

    def __init__(
        self, divisor: int = 1, periods: Sequence[int] = PERIODS, resolutions: Sequence[int] = RESOLUTIONS, **kwargs
    ):
        super().__init__(**kwargs)
        narrow = lambda channels: tuple(max(FEWEST_CHANNELS, wide // divisor) for wide in channels)
        dtype, of_periods, of_spectra = self.dtype_policy, narrow(PERIOD_CHANNELS), narrow(SPECTRUM_CHANNELS)
        parts = [PeriodDiscriminator(n, of_periods, dtype=dtype, name=f"period_{n}") for n in periods]
        parts += [SpectrumDiscriminator(n, of_spectra, dtype=dtype, name=f"spectrum_{n}") for n in resolutions]
        self.parts = parts

    def call(self, wav: Tensor) -> list[list[Tensor]]:
        return [part(wav) for part in self.parts]

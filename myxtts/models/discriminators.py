"""Multi-period and multi-resolution discriminators for training waveform decoders.

HiFi-GAN (Kong, Kim and Bae 2020, section 2.3); Vocos (Siuzdak 2023, section 3.3), after UnivNet (Jang et al. 2021).
"""

from collections.abc import Sequence
from itertools import pairwise

import keras
import numpy as np
from keras import ops

from myxtts.models.layers import Conv1D, Layer, Tensor, built


def short_time_spectrum(wav: Tensor, n_fft: int) -> tuple[Tensor, Tensor]:
    """Computes the real and the imaginary part of an STFT with a Hann window and a hop of a quarter window.

    Reflection padding of 3/8 window at each end gives exactly one frame per hop, as in the code of Kong et al. 2020.

    `wav` is `(B, S)` float32; S must be a multiple of `n_fft // 4` and above `3 n_fft // 8`. `n_fft`, the length of
    window and transform, must be a multiple of 8. Each part is `(B, 4 S // n_fft, n_fft // 2 + 1)` float32.
    """
    hop, margin = n_fft // 4, 3 * n_fft // 8
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype("float32")
    start, end = ops.flip(wav[:, 1 : margin + 1], axis=1), ops.flip(wav[:, -margin - 1 : -1], axis=1)
    blocks = ops.reshape(ops.concatenate([start, wav, end], axis=1), (ops.shape(wav)[0], -1, hop))
    num_frames = ops.shape(blocks)[1] - 3
    frames = ops.concatenate([blocks[:, i : i + num_frames] for i in range(4)], axis=-1)
    return ops.rfft(frames * window, fft_length=n_fft)


PERIODS = (2, 3, 5, 7, 11)  # in samples
RESOLUTIONS = (512, 1024, 2048)
"""FFT lengths of the spectrum discriminators, in samples."""
PERIOD_CHANNELS = (32, 128, 512, 1024, 1024)
SPECTRUM_CHANNELS = (32, 32, 32, 32, 32)


class PeriodDiscriminator(Layer):
    """Discriminator of samples that are `period` apart: audio `(B, S)` to a list of feature maps `(B, period, T, C)`.

    The last feature map is the score. `channels` has one entry per convolution; all but the last have a stride of 3.
    """

    def __init__(self, period: int, channels: Sequence[int] = PERIOD_CHANNELS, **kwargs):
        super().__init__(**kwargs)
        self.period, self.convolutions = period, []
        for index, widths in enumerate(pairwise((1, *channels))):
            stride = 1 if index == len(channels) - 1 else 3
            self.convolutions.append(Conv1D(*widths, 5, stride, dtype=self.dtype_policy, name=f"conv_{index}"))
        self.score = Conv1D(channels[-1], 1, 3, dtype=self.dtype_policy, name="score")

    def call(self, wav: Tensor) -> list[Tensor]:
        rest = -wav.shape[1] % self.period  # reflection padding
        wav = ops.concatenate([wav, ops.flip(wav[:, -rest - 1 : -1], axis=1)], axis=1) if rest else wav
        rows = ops.reshape(wav, (-1, wav.shape[1] // self.period, self.period))
        x = ops.cast(ops.reshape(ops.transpose(rows, (0, 2, 1)), (-1, rows.shape[1], 1)), self.compute_dtype)
        maps = _feature_maps(x, self.convolutions, self.score)
        return [ops.reshape(one, (-1, self.period, one.shape[1], one.shape[2])) for one in maps]


class SpectrumDiscriminator(Layer):
    """Discriminator over the complex spectrum: audio `(B, S)` to a list of feature maps `(B, T, bins, C)`.

    The last feature map is the score. `n_fft` is the FFT length of the spectrum in samples. `channels` has one entry
    per convolution; all convolutions but the first and the last halve the number of bins.
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
        return _feature_maps(ops.cast(spectrum, self.compute_dtype), self.convolutions, self.score)


def _feature_maps(x, convolutions, score):
    """Returns a list: the output of each convolution after a leaky ReLU, followed by the output of `score`."""
    maps = [x]
    for convolution in convolutions:
        maps.append(ops.leaky_relu(convolution(maps[-1]), 0.1))
    return [*maps[1:], score(maps[-1])]


class Discriminators(Layer):
    """All discriminators: audio `(B, S)` to one list of feature maps per discriminator.

    S must be static and a multiple of 512.

    Args:
        divisor: Divisor of the papers' channel counts (minimum result: 4). A larger divisor speeds up training.
        periods: Period of each `PeriodDiscriminator`.
        resolutions: FFT length of each `SpectrumDiscriminator`.
    """

    def __init__(self, divisor=1, periods: Sequence[int] = PERIODS, resolutions: Sequence[int] = RESOLUTIONS, **kwargs):
        super().__init__(**kwargs)
        narrow = lambda channels: tuple(max(4, wide // divisor) for wide in channels)
        dtype, of_periods, of_spectra = self.dtype_policy, narrow(PERIOD_CHANNELS), narrow(SPECTRUM_CHANNELS)
        parts = [PeriodDiscriminator(n, of_periods, dtype=dtype, name=f"period_{n}") for n in periods]
        parts += [SpectrumDiscriminator(n, of_spectra, dtype=dtype, name=f"spectrum_{n}") for n in resolutions]
        self.parts = parts

    def call(self, wav: Tensor) -> list[list[Tensor]]:
        return [part(wav) for part in self.parts]

"""HiFi-GAN waveform decoder: GPT latents and a speaker vector to sound.

Kong, Kim and Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity speech synthesis" (2020),
with the speaker vector added before the first and after every transposed convolution, as in XTTS v2.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.models.layers.convolution import Conv1D, ConvTranspose1D
from myxtts.models.layers.linear import built
from myxtts.models.layers.tensor import Shape, Tensor

_SLOPE = 0.1
_LAST_SLOPE = 0.01
"""The reference leaves the last leaky ReLU at its library's default slope; released weights were trained so."""


class ResidualStack(keras.layers.Layer):
    """Dilated residual convolutions, `(B, T, C)` to the same shape (section 2.2 of the paper, "ResBlock1").

    Args:
        kernel_size: Taps of every convolution, odd.
        dilations: Dilation of the first convolution of each residual step; the second has none.

    Call arguments: `x`.
    """

    def __init__(self, kernel_size: int, dilations: Sequence[int], **kwargs):
        super().__init__(**kwargs)
        self.kernel_size, self.dilations = kernel_size, tuple(dilations)

    def build(self, input_shape: Shape):
        def conv(name, dilation=1):
            layer = Conv1D(input_shape[-1], self.kernel_size, dilation=dilation, dtype=self.dtype_policy, name=name)
            return built(layer, input_shape)

        self.dilated = [conv(f"dilated_{i}", dilation) for i, dilation in enumerate(self.dilations)]
        self.plain = [conv(f"plain_{i}") for i in range(len(self.dilations))]

    def call(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(ops.leaky_relu(dilated(ops.leaky_relu(x, _SLOPE)), _SLOPE))
        return x


class HifiganGenerator(keras.layers.Layer):
    """Latents `(B, n, width)` and speaker vectors `(B, D)` to a waveform, `(B, num_samples(n))` float32 in [-1, 1].

    Latents are first interpolated to one frame per `hop_length` output samples. Weights are plain: weight norm is
    folded when a checkpoint is converted, see `coqui.fold_weight_norm`. The whole batch is computed as given, padding
    included; cut the waveform of `n` latents at `num_samples(n)`.

    Args:
        channels: Width of the first convolution; each stage halves it.
        upsampling: Length factor of each stage and taps of its transposed convolution; the product of the factors is
            `hop_length`.
        kernel_sizes: Taps of the residual stacks that are averaged in each stage.
        dilations: Dilations within each residual stack.
        code_stride: Samples at `MODEL_SAMPLE_RATE` that one latent stands for.
    """

    def __init__(
        self,
        channels: int = 512,
        upsampling: Sequence[tuple[int, int]] = DECODER_UPSAMPLING,
        kernel_sizes: Sequence[int] = DECODER_KERNELS,
        dilations: Sequence[int] = DECODER_DILATIONS,
        code_stride: int = CODE_STRIDE_SAMPLES,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if channels % (divisor := 2 ** len(upsampling)):
            reason = f"since each of the {len(upsampling)} stages halves them"
            raise ValueError(f"channels must be a multiple of {divisor}, {reason}. Received: {channels}.")
        self.channels, self.code_stride = channels, code_stride
        self.upsampling = tuple(tuple(stage) for stage in upsampling)
        self.kernel_sizes, self.dilations = tuple(kernel_sizes), tuple(dilations)
        self.hop_length = math.prod(factor for factor, _ in self.upsampling)

    def build(self, latents_shape: Shape, speaker_shape: Shape):
        dtype, width = self.dtype_policy, self.channels

        def condition(name):
            return built(keras.layers.Dense(width, dtype=dtype, name=name), speaker_shape)

        self.conv_pre = built(Conv1D(width, 7, dtype=dtype, name="conv_pre"), latents_shape)
        self.condition_pre = condition("condition_pre")
        self.upsamples, self.conditions, self.stacks = [], [], []
        for i, (factor, taps) in enumerate(self.upsampling):
            upsample = ConvTranspose1D(width // 2, taps, factor, dtype=dtype, name=f"upsample_{i}")
            self.upsamples.append(built(upsample, (None, None, width)))
            width //= 2
            self.conditions.append(condition(f"condition_{i}"))
            options = [dict(kernel_size=size, name=f"stack_{i}_{j}") for j, size in enumerate(self.kernel_sizes)]
            stage = [ResidualStack(dilations=self.dilations, dtype=dtype, **one) for one in options]
            self.stacks.append([built(stack, (None, None, width)) for stack in stage])
        self.conv_post = built(Conv1D(1, 7, use_bias=False, dtype=dtype, name="conv_post"), (None, None, width))

    def call(self, latents: Tensor, speaker: Tensor) -> Tensor:
        speaker = speaker[:, None, :]
        x = self.conv_pre(self.latents_to_frames(latents)) + self.condition_pre(speaker)
        for upsample, condition, stage in zip(self.upsamples, self.conditions, self.stacks, strict=True):
            x = upsample(ops.leaky_relu(x, _SLOPE)) + condition(speaker)
            x = sum(stack(x) for stack in stage) / len(stage)
        x = self.conv_post(ops.leaky_relu(x, _LAST_SLOPE))
        return ops.tanh(ops.cast(x[..., 0], "float32"))

    def latents_to_frames(self, latents: Tensor) -> Tensor:
        """Interpolates latents, `(B, n, width)`, to frames, `(B, num_frames(n), width)`."""
        for factor in self._factors():
            latents = interpolate_linearly(latents, factor)
        return latents

    def num_samples(self, num_latents: int | Tensor) -> int | Tensor:
        """Length, in samples, of the waveform of `num_latents` latents."""
        for factor in self._factors():
            num_latents = _scaled_length(num_latents, factor)
        return num_latents * self.hop_length

    def _factors(self):
        return self.code_stride / self.hop_length, DECODER_SAMPLE_RATE / MODEL_SAMPLE_RATE


def interpolate_linearly(x: Tensor, factor: float) -> Tensor:
    """Stretches a sequence in time by linear interpolation, with PyTorch's rule for a given factor.

    Output sample `j` lies at `max((j + 0.5) / factor - 0.5, 0)`, with the factor as given and not as rounded to whole
    samples; past the last input sample the last value holds.

    Args:
        x: `(B, L, C)`.
        factor: Output samples per input sample, above 0.

    Returns:
        `(B, floor(L factor), C)`, of the dtype of `x`.
    """
    length = ops.shape(x)[1]
    position = ops.arange(_scaled_length(length, factor), dtype="float32")
    position = ops.maximum((position + 0.5) * np.float32(1.0 / factor) - 0.5, 0.0)
    left = ops.minimum(ops.cast(position, "int32"), length - 1)
    right = ops.minimum(left + 1, length - 1)
    blend = ops.cast(position - ops.cast(left, "float32"), x.dtype)[None, :, None]
    return ops.take(x, left, axis=1) * (1 - blend) + ops.take(x, right, axis=1) * blend


def _scaled_length(length, factor):
    """`floor(length factor)` of an int or of a scalar tensor, in double precision like the reference."""
    if isinstance(length, int):
        return math.floor(length * factor)
    return ops.cast(ops.floor(ops.cast(length, "float64") * factor), "int32")

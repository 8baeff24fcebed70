"""HiFi-GAN waveform decoder: GPT latents and a speaker vector to sound.

Kong, Kim and Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity speech synthesis" (2020),
with the speaker vector added before the first and after every transposed convolution, as in XTTS v2.
"""

import math

import keras
import numpy as np
from keras import ops

from myxtts.models.layers.convolution import Conv1D, ConvTranspose1D

_SLOPE = 0.1
_LAST_SLOPE = 0.01
"""The reference leaves the last leaky ReLU at its library's default slope; released weights were trained so."""


class ResidualStack(keras.layers.Layer):
    """Dilated residual convolutions, `(B, T, C)` to the same shape (section 2.2 of the paper, "ResBlock1").

    Args:
        kernel_size: Taps of every convolution, odd.
        dilations: Dilation of the first convolution of each residual step; the second has none.

    Call arguments: `x`; `fewer_products` as of `Conv1D`.
    """

    def __init__(self, kernel_size, dilations, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = kernel_size
        self.dilations = tuple(dilations)

    def build(self, input_shape):
        channels = input_shape[-1]
        self.dilated = [
            Conv1D(channels, self.kernel_size, dilation=dilation, dtype=self.dtype_policy, name=f"dilated_{i}")
            for i, dilation in enumerate(self.dilations)
        ]
        self.plain = [
            Conv1D(channels, self.kernel_size, dtype=self.dtype_policy, name=f"plain_{i}")
            for i in range(len(self.dilations))
        ]
        for layer in self.dilated + self.plain:
            layer.build(input_shape)

    def call(self, x, fewer_products=False):
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            hidden = dilated(ops.leaky_relu(x, _SLOPE), fewer_products=fewer_products)
            x = x + plain(ops.leaky_relu(hidden, _SLOPE), fewer_products=fewer_products)
        return x

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {"kernel_size": self.kernel_size, "dilations": self.dilations}


class HifiganGenerator(keras.layers.Layer):
    """Latents `(B, n, width)` and speaker vectors `(B, D)` to a waveform, `(B, num_samples(n))` float32 in [-1, 1].

    Latents are first interpolated to one frame per `hop_length` output samples. Weights are plain: weight norm is
    folded when a checkpoint is converted, see `coqui.fold_weight_norm`. The whole batch is computed as given, padding
    included; cut the waveform of `n` latents at `num_samples(n)`. The call argument `fewer_products` is that of `Conv1D`.

    Args:
        channels: Width of the first convolution; each stage halves it.
        upsample_rates: Length factor of each stage; their product is `hop_length`.
        upsample_kernel_sizes: Taps of the transposed convolution of each stage.
        resblock_kernel_sizes: Taps of the residual stacks that are averaged in each stage.
        resblock_dilations: Dilations within each residual stack.
        code_stride: Samples at `input_sample_rate` that one latent stands for.
        input_sample_rate: Sample rate, in Hz, that latents refer to.
        output_sample_rate: Sample rate, in Hz, of the waveform.
    """

    def __init__(
        self,
        channels=512,
        upsample_rates=(8, 8, 2, 2),
        upsample_kernel_sizes=(16, 16, 4, 4),
        resblock_kernel_sizes=(3, 7, 11),
        resblock_dilations=(1, 3, 5),
        code_stride=1024,
        input_sample_rate=22050,
        output_sample_rate=24000,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if len(upsample_rates) != len(upsample_kernel_sizes):
            raise ValueError(
                "upsample_rates and upsample_kernel_sizes must have one value per stage. "
                f"Received: {upsample_rates} and {upsample_kernel_sizes}."
            )
        if channels % 2 ** len(upsample_rates):
            raise ValueError(
                f"channels must be a multiple of {2 ** len(upsample_rates)}, since each of the {len(upsample_rates)} "
                f"stages halves them. Received: {channels}."
            )
        self.channels = channels
        self.upsample_rates = tuple(upsample_rates)
        self.upsample_kernel_sizes = tuple(upsample_kernel_sizes)
        self.resblock_kernel_sizes = tuple(resblock_kernel_sizes)
        self.resblock_dilations = tuple(resblock_dilations)
        self.code_stride = code_stride
        self.input_sample_rate = input_sample_rate
        self.output_sample_rate = output_sample_rate
        self.hop_length = math.prod(self.upsample_rates)

    def build(self, latents_shape, speaker_shape):
        dtype = self.dtype_policy
        self.conv_pre = Conv1D(self.channels, 7, dtype=dtype, name="conv_pre")
        self.conv_pre.build(latents_shape)
        self.condition_pre = keras.layers.Dense(self.channels, dtype=dtype, name="condition_pre")
        self.condition_pre.build(speaker_shape)
        self.upsamples, self.conditions, self.stacks = [], [], []
        width = self.channels
        for i, (rate, kernel_size) in enumerate(zip(self.upsample_rates, self.upsample_kernel_sizes, strict=True)):
            upsample = ConvTranspose1D(width // 2, kernel_size, rate, dtype=dtype, name=f"upsample_{i}")
            upsample.build((None, None, width))
            self.upsamples.append(upsample)
            width //= 2
            condition = keras.layers.Dense(width, dtype=dtype, name=f"condition_{i}")
            condition.build(speaker_shape)
            self.conditions.append(condition)
            stage = [
                ResidualStack(size, self.resblock_dilations, dtype=dtype, name=f"stack_{i}_{j}")
                for j, size in enumerate(self.resblock_kernel_sizes)
            ]
            for stack in stage:
                stack.build((None, None, width))
            self.stacks.append(stage)
        self.conv_post = Conv1D(1, 7, use_bias=False, dtype=dtype, name="conv_post")
        self.conv_post.build((None, None, width))

    def call(self, latents, speaker, fewer_products=False):
        x = self.latents_to_frames(latents)
        speaker = speaker[:, None, :]
        x = self.conv_pre(x, fewer_products=fewer_products) + self.condition_pre(speaker)
        for upsample, condition, stage in zip(self.upsamples, self.conditions, self.stacks, strict=True):
            x = upsample(ops.leaky_relu(x, _SLOPE)) + condition(speaker)
            x = sum(stack(x, fewer_products=fewer_products) for stack in stage) / len(stage)
        x = self.conv_post(ops.leaky_relu(x, _LAST_SLOPE))
        return ops.tanh(ops.cast(x[..., 0], "float32"))

    def latents_to_frames(self, latents):
        """Interpolates latents, `(B, n, width)`, to vocoder frames, `(B, num_frames(n), width)`."""
        for factor in self._factors():
            latents = interpolate_linearly(latents, factor)
        return latents

    def num_samples(self, num_latents):
        """Length, in samples, of the waveform of `num_latents` latents."""
        for factor in self._factors():
            num_latents = _scaled_length(num_latents, factor)
        return num_latents * self.hop_length

    def _factors(self):
        return self.code_stride / self.hop_length, self.output_sample_rate / self.input_sample_rate

    def compute_output_shape(self, latents_shape, speaker_shape):
        batch, num_latents, _ = latents_shape
        return (batch, None if num_latents is None else self.num_samples(num_latents))

    def compute_output_spec(self, latents, speaker, fewer_products=False):
        return keras.KerasTensor(self.compute_output_shape(latents.shape, speaker.shape), dtype="float32")

    def get_config(self):
        return super().get_config() | {
            "channels": self.channels,
            "upsample_rates": self.upsample_rates,
            "upsample_kernel_sizes": self.upsample_kernel_sizes,
            "resblock_kernel_sizes": self.resblock_kernel_sizes,
            "resblock_dilations": self.resblock_dilations,
            "code_stride": self.code_stride,
            "input_sample_rate": self.input_sample_rate,
            "output_sample_rate": self.output_sample_rate,
        }


def interpolate_linearly(x, factor):
    """Stretches a sequence in time by linear interpolation, with PyTorch's rule for a given factor.

    Output sample `j` lies at `max((j + 0.5) / factor - 0.5, 0)`, with the factor as given and not as rounded to whole
    samples; past the last input sample the last value holds.

    Args:
        x: Sequence, `(B, L, C)`.
        factor: Output samples per input sample, a positive float.

    Returns:
        Sequence, `(B, floor(L factor), C)`, of the dtype of `x`.
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

"""HiFi-GAN waveform decoder: GPT latents and a speaker vector to audio.

Kong, Kim and Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity speech synthesis" (2020),
with the speaker vector added before the first and after every transposed convolution, as in XTTS v2.
"""

import math
from collections.abc import Sequence

import keras
from keras import ops

from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING
from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.models.layers.convolution import Conv1D, ConvTranspose1D
from myxtts.models.layers.linear import built
from myxtts.models.layers.tensor import Shape, Tensor
from myxtts.models.waveform_decoder import WaveformDecoder, masked

SLOPE = 0.1
LAST_SLOPE = 0.01
"""Slope of the last leaky ReLU, which the reference and its released weights leave at PyTorch's default."""
_EDGE_TAPS = 7
"""Kernel size of the first and the last convolution."""


class ResidualStack(keras.layers.Layer):
    """Dilated residual convolutions, `(B, T, C)` to the same shape (section 2.2 of the paper, "ResBlock1").

    Args:
        kernel_size: Odd kernel size of every convolution.
        dilations: Dilation of the first convolution of each residual step; the second has none.

    Call arguments: `x`; `present` `(B, T)` bool or None, False where convolutions see zeros.
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

    def call(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            hidden = dilated(masked(ops.leaky_relu(x, SLOPE), present))
            x = x + plain(masked(ops.leaky_relu(hidden, SLOPE), present))
        return x


class HifiganGenerator(WaveformDecoder):
    """`WaveformDecoder` of transposed convolutions, as in XTTS v2 but with weight norm folded into the weights.

    Args:
        channels: Channels of the first convolution; each stage halves them.
        upsampling: Factor and kernel size of the transposed convolution of each stage; the product of the factors is
            `hop_length`.
        kernel_sizes: Kernel sizes of the residual stacks that are averaged in each stage.
        dilations: Dilations within each residual stack.
        code_stride: As in `WaveformDecoder`.
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
        super().__init__(code_stride, **kwargs)
        if channels % (divisor := 2 ** len(upsampling)):
            raise ValueError(f"channels must be a multiple of {divisor}. Received: {channels}.")
        self.channels = channels
        self.upsampling = tuple(tuple(stage) for stage in upsampling)
        self.kernel_sizes, self.dilations = tuple(kernel_sizes), tuple(dilations)
        self.hop_length = math.prod(factor for factor, _ in self.upsampling)
        self.history_frames, self.lookahead_frames = self._context()

    def _context(self):
        """Computes history and lookahead backwards from the first and last sample of a frame."""
        edge = _EDGE_TAPS // 2
        reach = sum(dilation + 1 for dilation in self.dilations) * (max(self.kernel_sizes) - 1) // 2
        first, last = -edge, self.hop_length - 1 + edge
        for factor, taps in reversed(self.upsampling):
            padding = (taps - factor) // 2
            first = -((taps - 1 - padding + reach - first) // factor)
            last = (last + reach + padding) // factor
        return edge - first, edge + last

    def build(self, latents_shape: Shape, speaker_shape: Shape):
        dtype, width = self.dtype_policy, self.channels

        def condition(name):
            return built(keras.layers.Dense(width, dtype=dtype, name=name), speaker_shape)

        self.conv_pre = built(Conv1D(width, _EDGE_TAPS, dtype=dtype, name="conv_pre"), latents_shape)
        self.condition_pre = condition("condition_pre")
        self.upsamples, self.conditions, self.stacks = [], [], []
        for i, (factor, taps) in enumerate(self.upsampling):
            upsample = ConvTranspose1D(width // 2, taps, factor, dtype=dtype, name=f"upsample_{i}")
            self.upsamples.append(built(upsample, (None, None, width)))
            width //= 2
            self.conditions.append(condition(f"condition_{i}"))
            options = dict(dilations=self.dilations, dtype=dtype)
            stage = [ResidualStack(n, name=f"stack_{i}_{j}", **options) for j, n in enumerate(self.kernel_sizes)]
            self.stacks.append([built(stack, (None, None, width)) for stack in stage])
        conv_post = Conv1D(1, _EDGE_TAPS, use_bias=False, dtype=dtype, name="conv_post")
        self.conv_post = built(conv_post, (None, None, width))

    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        speaker = speaker[:, None, :]
        x = self.conv_pre(masked(frames, present)) + self.condition_pre(speaker)
        for (factor, _), upsample, condition, stage in zip(
            self.upsampling, self.upsamples, self.conditions, self.stacks, strict=True
        ):
            x = upsample(masked(ops.leaky_relu(x, SLOPE), present)) + condition(speaker)
            present = None if present is None else ops.repeat(present, factor, axis=1)
            x = sum(stack(x, present) for stack in stage) / len(stage)
        x = self.conv_post(masked(ops.leaky_relu(x, LAST_SLOPE), present))
        return ops.tanh(ops.cast(x[..., 0], "float32"))

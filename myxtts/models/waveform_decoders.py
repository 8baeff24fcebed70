"""Waveform decoders, which generate 24 kHz audio of a sentence, or a part of it, from GPT latents and a speaker vector.

HiFi-GAN: Kong, Kim and Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity speech
synthesis" (2020). As in XTTS v2, the speaker vector is added after the first convolution and after each upsampling.

iSTFT: Siuzdak, "Vocos: Closing the gap between time-domain and Fourier-based neural vocoders for high-quality audio
synthesis" (2023), with convolutions at the frame rate and an inverse Fourier transform. Unlike in Vocos, the speaker
vector is added to the input and modulates the norm of each block, and all blocks but the first two are causal.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING, ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.models.layers import Conv1D, Layer, Tensor, conv_transpose, dense, layer_norm, normal_linear


class WaveformDecoder(Layer):
    """Base class of decoders, which generate audio `(B, S)` from latents `(B, n, width)` and speaker vectors `(B, D)`.

    Audio is float32 at 24 kHz. Latents are interpolated to frames of `hop_length` samples. For streaming, frames can be
    decoded in parts. The audio of padding is not cut off: a sentence of `m` latents ends after `num_frames(m)` frames.
    """

    code_stride = CODE_STRIDE_SAMPLES
    """Samples per latent, at `MODEL_SAMPLE_RATE`."""
    hop_length: int
    """Samples per frame."""
    history_frames: int
    """Number of earlier frames that the samples of a frame depend on."""
    lookahead_frames: int
    """Number of later frames that the samples of a frame depend on."""

    def call(self, latents: Tensor, speaker: Tensor) -> Tensor:
        return self.frames_to_samples(self.latents_to_frames(latents), speaker)

    def latents_to_frames(self, latents: Tensor) -> Tensor:
        """Interpolates latents `(B, n, width)` to frames `(B, num_frames(n), width)`."""
        for factor in self.factors:
            latents = interpolate_linearly(latents, factor)
        return latents

    @abstractmethod
    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        """Generates audio `(B, F hop_length)` in [-1, 1] from frames `(B, F, width)` and speaker vectors `(B, D)`.

        `frames` may be a part of a sentence. Its audio then equals this part of the sentence's audio, except near cuts:
        in the first `history_frames` after a cut, and in the last `lookahead_frames` before a cut.

        `present` `(B, F)` bool is False for padding, which then does not affect other frames. None means no padding.
        """

    def num_frames(self, num_latents: int | Tensor) -> int | Tensor:
        """Returns the number of frames for `num_latents` latents."""
        for factor in self.factors:
            num_latents = _scaled_length(num_latents, factor)
        return num_latents

    @property
    def factors(self) -> tuple[float, ...]:
        """Interpolation factors: first from latents to frames of 22.05 kHz audio, then to frames of 24 kHz audio."""
        return self.code_stride / self.hop_length, DECODER_SAMPLE_RATE / MODEL_SAMPLE_RATE


def interpolate_linearly(x: Tensor, factor: float) -> Tensor:
    """Interpolates `(B, L, C)` linearly to `(B, floor(L factor), C)`, like PyTorch's `interpolate` with `scale_factor`.

    Output `j` is the input at position `max((j + 0.5) / factor - 0.5, 0)`; the last input is repeated beyond the end.
    """
    length = ops.shape(x)[1]
    position = ops.arange(_scaled_length(length, factor), dtype="float32")
    position = ops.maximum((position + 0.5) * np.float32(1.0 / factor) - 0.5, 0.0)
    left = ops.minimum(ops.cast(position, "int32"), length - 1)
    right = ops.minimum(left + 1, length - 1)
    blend = ops.cast(position - ops.cast(left, "float32"), x.dtype)[None, :, None]
    return ops.take(x, left, axis=1) * (1 - blend) + ops.take(x, right, axis=1) * blend


def masked(x: Tensor, present: Tensor | None) -> Tensor:
    """Sets `x` `(B, T, C)` to zero where `present` `(B, T)` bool is False; returns `x` itself if `present` is None."""
    return x if present is None else ops.where(present[..., None], x, ops.zeros((), x.dtype))


def _scaled_length(length, factor):
    """Returns `floor(length factor)` for an int or a tensor, in double precision like PyTorch."""
    if isinstance(length, int):
        return math.floor(length * factor)
    return ops.cast(ops.floor(ops.cast(length, "float64") * factor), "int32")


SLOPE = 0.1
LAST_SLOPE = 0.01
"""Slope of the last leaky ReLU: PyTorch's default, with which XTTS v2 was trained."""
_EDGE_TAPS = 7
"""Kernel size of the first and the last convolution of `HifiganGenerator`."""


class ResidualStack(Layer):
    """Stack of residual steps for `x` `(B, T, channels)` ("ResBlock1" in Kong et al., section 2.2).

    A step has two convolutions with the odd kernel size `kernel_size`. In step `i`, the first convolution has dilation
    `dilations[i]`, and the second has dilation 1.

    Call arguments: `x`; `present` `(B, T)` bool, False for padding, or None.
    """

    def __init__(self, channels: int, kernel_size: int, dilations: Sequence[int], **kwargs):
        super().__init__(**kwargs)
        options = dict(dtype=self.dtype_policy)
        conv = lambda name, dilation=1: Conv1D(channels, channels, kernel_size, 1, dilation, name=name, **options)
        self.dilated = [conv(f"dilated_{i}", dilation) for i, dilation in enumerate(dilations)]
        self.plain = [conv(f"plain_{i}") for i in range(len(dilations))]

    def call(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            hidden = dilated(masked(ops.leaky_relu(x, SLOPE), present))
            x = x + plain(masked(ops.leaky_relu(hidden, SLOPE), present))
        return x


class HifiganGenerator(WaveformDecoder):
    """HiFi-GAN decoder with transposed convolutions, as in XTTS v2 but without weight normalization.

    Args:
        width, speaker_width: Width of latents and of speaker vectors.
        channels: Channels of the first convolution; each stage halves them.
        upsampling: Factor and kernel size of each transposed convolution. The product of the factors is `hop_length`.
        kernel_sizes: Kernel size of each residual stack in a stage; the outputs of the stacks are averaged.
        dilations: Dilation of each residual step in a stack, as in `ResidualStack`.
    """

    def __init__(
        self,
        width: int,
        speaker_width: int,
        channels: int = 512,
        upsampling: Sequence[tuple[int, int]] = DECODER_UPSAMPLING,
        kernel_sizes: Sequence[int] = DECODER_KERNELS,
        dilations: Sequence[int] = DECODER_DILATIONS,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hop_length, options = math.prod(factor for factor, _ in upsampling), dict(dtype=self.dtype_policy)
        # Computed backwards from the samples of a frame.
        edge = _EDGE_TAPS // 2
        reach = sum(dilation + 1 for dilation in dilations) * (max(kernel_sizes) - 1) // 2
        first, last = -edge, self.hop_length - 1 + edge
        for factor, taps in reversed(upsampling):
            padding = (taps - factor) // 2
            first = -((taps - 1 - padding + reach - first) // factor)
            last = (last + reach + padding) // factor
        self.history_frames, self.lookahead_frames = edge - first, edge + last
        self.conv_pre = Conv1D(width, channels, _EDGE_TAPS, name="conv_pre", **options)
        self.condition_pre = dense(channels, speaker_width, "condition_pre", **options)
        self.upsamples, self.conditions, self.stacks = [], [], []
        for i, (factor, taps) in enumerate(upsampling):
            half = channels // 2
            self.upsamples.append(conv_transpose(channels, half, taps, factor, name=f"upsample_{i}", **options))
            self.conditions.append(dense(half, speaker_width, f"condition_{i}", **options))
            kinds = {f"stack_{i}_{j}": (half, taps, dilations) for j, taps in enumerate(kernel_sizes)}
            self.stacks.append([ResidualStack(*kind, name=name, **options) for name, kind in kinds.items()])
            channels = half
        self.conv_post = Conv1D(channels, 1, _EDGE_TAPS, use_bias=False, name="conv_post", **options)

    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        speaker = speaker[:, None, :]
        x = self.conv_pre(masked(frames, present)) + self.condition_pre(speaker)
        for upsample, condition, stage in zip(self.upsamples, self.conditions, self.stacks, strict=True):
            x = upsample(masked(ops.leaky_relu(x, SLOPE), present)) + condition(speaker)
            present = None if present is None else ops.repeat(present, upsample.strides[0], axis=1)
            x = sum(stack(x, present) for stack in stage) / len(stage)
        x = self.conv_post(masked(ops.leaky_relu(x, LAST_SLOPE), present))
        return ops.tanh(ops.cast(x[..., 0], "float32"))


_TAPS = 7
"""Kernel size of all convolutions of `IstftGenerator`."""
_EPSILON = 1e-6
MOST_LOG_MAGNITUDE = 6.9
"""Upper limit of predicted log-magnitudes, about log 1000; the magnitude of a full-scale tone is only 256."""


class ConvNextBlock(Layer):
    """Residual block of a depthwise convolution over time, a norm and a pointwise MLP (Liu et al. 2022, section 2).

    `inner_width` is the width of the MLP's hidden layer. `scale` is the initial value of the layer scale, a learned
    factor of the residual branch. If `causal`, each output depends only on inputs at the same and earlier times.

    Call arguments: `x` `(B, T, width)`; `condition` `(B, width)`, which scales and shifts the output of the norm;
    `present` `(B, T)` bool, False for padding, or None.
    """

    def __init__(self, width: int, inner_width: int, causal: bool = False, scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.lookahead, dtype = 0 if causal else _TAPS // 2, self.dtype_policy
        kernel = keras.initializers.TruncatedNormal(stddev=0.02)
        self.kernel = self.add_weight(name="kernel", shape=(_TAPS, width, 1), initializer=kernel)
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros")
        self.norm = layer_norm(width, "norm", dtype, _EPSILON, center=False, scale=False)
        self.modulation = dense(2 * width, width, "modulation", dtype, kernel_initializer="zeros")
        self.widen = normal_linear(inner_width, width, "widen", dtype=dtype)
        self.narrow = normal_linear(width, inner_width, "narrow", dtype=dtype)
        self.factor = self.add_weight(name="factor", shape=(width,), initializer=keras.initializers.Constant(scale))

    def call(self, x: Tensor, condition: Tensor, present: Tensor | None = None) -> Tensor:
        after = self.lookahead
        hidden = ops.pad(masked(x, present), ((0, 0), (_TAPS - 1 - after, after), (0, 0)))
        hidden = ops.depthwise_conv(hidden, self.kernel, padding="valid", data_format="channels_last") + self.bias
        scale, shift = ops.split(self.modulation(condition)[:, None, :], 2, axis=-1)
        hidden = self.norm(hidden) * (1 + scale) + shift
        return x + self.narrow(ops.gelu(self.widen(hidden), approximate=True)) * self.factor


class IstftGenerator(WaveformDecoder):
    """iSTFT decoder, which predicts the magnitude and the phase of the spectrum of each frame.

    Args:
        latent_width, speaker_width: Width of latents and of speaker vectors.
        blocks: Number of `ConvNextBlock`s; all but the first two are causal.
        width: Width of the blocks.
        hop_length: Samples per frame; the FFT length is `4 * hop_length`.
    """

    def __init__(
        self, latent_width: int, speaker_width: int, blocks: int, width: int, hop_length=MEL_HOP_SAMPLES, **kwargs
    ):
        super().__init__(**kwargs)
        self.hop_length, dtype = hop_length, self.dtype_policy
        self.window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4 * hop_length) / (4 * hop_length))).astype("float32")
        # The first convolution, two overlapping windows on each side, and the blocks.
        symmetric = min(blocks, 2)
        self.lookahead_frames = _TAPS // 2 + 2 + symmetric * (_TAPS // 2)
        self.history_frames = self.lookahead_frames + (blocks - symmetric) * (_TAPS - 1)
        self._speaker_scale = speaker_width**0.5  # scales a unit vector to elements of about 1
        norm = lambda name: layer_norm(width, name, dtype, _EPSILON)
        self.conv_pre = Conv1D(latent_width, width, _TAPS, dtype=dtype, name="conv_pre")
        self.condition = dense(width, speaker_width, "condition", dtype)
        self.norm_pre, self.norm_post = norm("norm_pre"), norm("norm_post")
        options = dict(inner_width=3 * width, scale=1.0 / blocks, dtype=dtype)
        self.blocks = [ConvNextBlock(width, causal=i >= symmetric, name=f"block_{i}", **options) for i in range(blocks)]
        # Magnitudes and phases, in float32 because half precision is too coarse for phases.
        self.head = normal_linear(4 * hop_length + 2, width, "head", dtype="float32")

    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        condition = self.condition(speaker * self._speaker_scale)
        x = self.conv_pre(masked(frames, present)) + condition[:, None, :]
        x, condition = self.norm_pre(x), ops.silu(condition)
        for block in self.blocks:
            x = block(x, condition, present)
        log_magnitude, phase = ops.split(self.head(ops.cast(self.norm_post(x), "float32")), 2, axis=-1)
        magnitude = masked(ops.exp(ops.minimum(log_magnitude, MOST_LOG_MAGNITUDE)), present)
        spectrum = magnitude * ops.cos(phase), magnitude * ops.sin(phase)
        return self._overlap(ops.irfft(spectrum, fft_length=4 * self.hop_length) * self.window, present)

    def _overlap(self, parts, present):
        """Overlap-adds windowed frames `(B, F, 4 hop)` to audio `(B, F hop)`, divided by the sum of squared windows."""
        squares = ops.broadcast_to(self.window**2, ops.shape(parts))
        # Padding has no window, so the envelope may be zero.
        envelope = ops.maximum(self._sum_of_shifted(masked(squares, present)), 1e-3)
        return ops.clip(self._sum_of_shifted(parts) / envelope, -1.0, 1.0)

    def _sum_of_shifted(self, parts):
        """Returns the overlap-add of frames `(B, F, 4 hop)`, trimmed equally at both ends to `(B, F hop)`."""
        hop, length = self.hop_length, ops.shape(parts)[1]
        quarters = [ops.pad(parts[..., i * hop : (i + 1) * hop], ((0, 0), (i, 3 - i), (0, 0))) for i in range(4)]
        return ops.reshape(sum(quarters), (-1, (length + 3) * hop))[:, 3 * hop // 2 : 3 * hop // 2 + length * hop]


def make_decoder(config: ModelConfig, **kwargs) -> WaveformDecoder:
    """Creates the waveform decoder that `config.decoder_type` names; `kwargs` are arguments of `keras.layers.Layer`."""
    widths = config.width, config.speaker_width
    if config.decoder_type == "hifigan":
        return HifiganGenerator(*widths, config.decoder_channels, **kwargs)
    return IstftGenerator(*widths, config.decoder_blocks, config.decoder_width, **kwargs)

"""Fast waveform decoder: convolutions at frame rate and an inverse Fourier transform.

Siuzdak, "Vocos: Closing the gap between time-domain and Fourier-based neural vocoders for high-quality audio synthesis"
(2023). Here the speaker vector is added to the input and modulates each block's norm, and all but the first blocks are
causal.
"""

import keras
import numpy as np
from keras import ops

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_HOP_SAMPLES
from myxtts.models.layers.convolution import Conv1D
from myxtts.models.layers.linear import built, normal_linear
from myxtts.models.layers.tensor import Shape, Tensor
from myxtts.models.waveform_decoder import WaveformDecoder, masked

_TAPS = 7
"""Kernel size of all convolutions."""
_SYMMETRIC_BLOCKS = 2
"""Number of blocks that look ahead; the others are causal."""
_EXPANSION = 3
_EPSILON = 1e-6
MOST_LOG_MAGNITUDE = 6.9
"""Limit of the head's log-magnitudes, about log 1000; a full-scale tone has a magnitude of 256."""


class ConvNextBlock(keras.layers.Layer):
    """Residual block of a depthwise convolution over time, a norm and a pointwise MLP (Liu et al. 2022, section 2).

    Args:
        inner_width: Channels between the two dense layers.
        causal: Whether an output depends on no later input.
        scale: Initial layer scale.

    Call arguments: `x` `(B, T, C)`; `condition` `(B, C)`, which scales and shifts the norm's output; `present` `(B, T)`
    bool or None, False where the convolution sees zeros.
    """

    def __init__(self, inner_width: int, causal: bool = False, scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.inner_width, self.causal, self.scale = inner_width, causal, scale

    def build(self, x_shape: Shape, condition_shape: Shape):
        width, dtype = x_shape[-1], self.dtype_policy
        kernel = keras.initializers.TruncatedNormal(stddev=0.02)
        self.kernel = self.add_weight(name="kernel", shape=(_TAPS, width, 1), initializer=kernel)
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros")
        norm = keras.layers.LayerNormalization(epsilon=_EPSILON, center=False, scale=False, dtype=dtype, name="norm")
        self.norm = built(norm, x_shape)
        modulation = keras.layers.Dense(2 * width, kernel_initializer="zeros", dtype=dtype, name="modulation")
        self.modulation = built(modulation, condition_shape)
        self.widen = normal_linear(self.inner_width, width, "widen", dtype=dtype)
        self.narrow = normal_linear(width, self.inner_width, "narrow", dtype=dtype)
        factor = keras.initializers.Constant(self.scale)
        self.factor = self.add_weight(name="factor", shape=(width,), initializer=factor)

    @property
    def lookahead(self) -> int:
        """Number of later frames that a frame depends on."""
        return 0 if self.causal else _TAPS // 2

    def call(self, x: Tensor, condition: Tensor, present: Tensor | None = None) -> Tensor:
        after = self.lookahead
        hidden = ops.pad(masked(x, present), ((0, 0), (_TAPS - 1 - after, after), (0, 0)))
        hidden = ops.depthwise_conv(hidden, self.kernel, padding="valid", data_format="channels_last") + self.bias
        scale, shift = ops.split(self.modulation(condition)[:, None, :], 2, axis=-1)
        hidden = self.norm(hidden) * (1 + scale) + shift
        return x + self.narrow(ops.gelu(self.widen(hidden), approximate=True)) * self.factor


class IstftGenerator(WaveformDecoder):
    """`WaveformDecoder` that predicts the magnitude and phase of each frame's spectrum.

    Args:
        blocks: Number of `ConvNextBlock`s; all but the first two are causal.
        width: Channels.
        hop_length: Samples per frame, a quarter of the Fourier transform's length.
        code_stride: As in `WaveformDecoder`.
    """

    def __init__(self, blocks: int, width: int, hop_length=MEL_HOP_SAMPLES, code_stride=CODE_STRIDE_SAMPLES, **kwargs):
        super().__init__(code_stride, **kwargs)
        self.num_blocks, self.width, self.hop_length = blocks, width, hop_length
        self._causal = [index >= _SYMMETRIC_BLOCKS for index in range(blocks)]
        self.window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4 * hop_length) / (4 * hop_length))).astype("float32")
        # The first convolution, two overlapping windows on either side, and the blocks.
        self.history_frames = _TAPS // 2 + 2 + sum((_TAPS - 1) if causal else _TAPS // 2 for causal in self._causal)
        self.lookahead_frames = _TAPS // 2 + 2 + self._causal.count(False) * (_TAPS // 2)

    def build(self, latents_shape: Shape, speaker_shape: Shape):
        dtype, width = self.dtype_policy, self.width
        shape = (None, None, width)
        # Scales a unit speaker vector to elements of about 1.
        self._speaker_scale = speaker_shape[-1] ** 0.5

        def norm(name):
            return built(keras.layers.LayerNormalization(epsilon=_EPSILON, dtype=dtype, name=name), shape)

        self.conv_pre = built(Conv1D(width, _TAPS, dtype=dtype, name="conv_pre"), latents_shape)
        self.condition = built(keras.layers.Dense(width, dtype=dtype, name="condition"), speaker_shape)
        self.norm_pre, self.norm_post = norm("norm_pre"), norm("norm_post")
        options = dict(inner_width=_EXPANSION * width, scale=1.0 / self.num_blocks, dtype=dtype)
        blocks = [ConvNextBlock(causal=causal, name=f"block_{i}", **options) for i, causal in enumerate(self._causal)]
        self.blocks = [built(block, shape, (None, width)) for block in blocks]
        # Magnitudes and phases; float32, since phases are too coarse in half precision.
        self.head = normal_linear(4 * self.hop_length + 2, width, "head", dtype="float32")

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
        """Overlap-adds windowed frames `(B, F, 4 hop)` to `(B, F hop)`, normalized by the squared windows."""
        squares = ops.broadcast_to(self.window**2, ops.shape(parts))
        # Absent frames have no window, so the envelope may be zero.
        envelope = ops.maximum(self._sum_of_shifted(masked(squares, present)), 1e-3)
        return ops.clip(self._sum_of_shifted(parts) / envelope, -1.0, 1.0)

    def _sum_of_shifted(self, parts):
        """Overlap-adds frames `(B, F, 4 hop)`; cuts off the same at both ends, to `(B, F hop)`."""
        hop, length = self.hop_length, ops.shape(parts)[1]
        quarters = [ops.pad(parts[..., i * hop : (i + 1) * hop], ((0, 0), (i, 3 - i), (0, 0))) for i in range(4)]
        summed = ops.reshape(sum(quarters), (-1, (length + 3) * hop))
        return summed[:, 3 * hop // 2 : 3 * hop // 2 + length * hop]

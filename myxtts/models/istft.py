"""Waveform decoder for small machines: convolutions at frame rate and an inverse Fourier transform.

Siuzdak, "Vocos: Closing the gap between time-domain and Fourier-based neural vocoders for high-quality audio synthesis"
(2023), with the speaker vector added to the input and scaling and shifting each block's norm, and with all but the
first blocks causal. Nothing runs at a higher rate than the frames, which is what makes it quick.
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
"""Of the first convolution and of those in the blocks."""
_SYMMETRIC_BLOCKS = 2
"""Blocks that look ahead; the others see the present and the past."""
_EXPANSION = 3
_EPSILON = 1e-6
MOST_LOG_MAGNITUDE = 6.9
"""Where the head's magnitudes, up to 1000, are cut off: a full-scale tone has a quarter of the transform's 1024."""


class ConvNextBlock(keras.layers.Layer):
    """Depthwise convolution over time, norm, and a pointwise MLP, on the residual stream (Liu et al. 2022, section 2).

    Args:
        inner_width: Channels between the two dense layers.
        causal: Whether an output depends on no later input.
        scale: Initial value of the factors on what is added to the residual stream.

    Call arguments: `x`, `(B, T, C)`; `condition`, `(B, C)`, which scales and shifts the norm's output, at first not at
    all; `present`, `(B, T)` bool or None: samples that are False count as zeros to the convolution.
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
        """Samples after a sample that it depends on."""
        return 0 if self.causal else _TAPS // 2

    def call(self, x: Tensor, condition: Tensor, present: Tensor | None = None) -> Tensor:
        after = self.lookahead
        hidden = ops.pad(masked(x, present), ((0, 0), (_TAPS - 1 - after, after), (0, 0)))
        hidden = ops.depthwise_conv(hidden, self.kernel, padding="valid", data_format="channels_last") + self.bias
        scale, shift = ops.split(self.modulation(condition)[:, None, :], 2, axis=-1)
        hidden = self.norm(hidden) * (1 + scale) + shift
        return x + self.narrow(ops.gelu(self.widen(hidden), approximate=True)) * self.factor


class IstftGenerator(WaveformDecoder):
    """A `WaveformDecoder` that predicts the magnitude and phase of each frame's spectrum.

    Frames overlap fourfold. The head runs in float32 whatever the policy.

    Args:
        blocks: Number of `ConvNextBlock`s; all but the first two are causal.
        width: Channels.
        hop_length: Samples of one frame; a quarter of the transform's length.
        code_stride: Samples at `MODEL_SAMPLE_RATE` that one latent stands for.
    """

    def __init__(
        self,
        blocks: int = 8,
        width: int = 512,
        hop_length: int = MEL_HOP_SAMPLES,
        code_stride: int = CODE_STRIDE_SAMPLES,
        **kwargs,
    ):
        super().__init__(code_stride, **kwargs)
        self.num_blocks, self.width, self.hop_length = blocks, width, hop_length
        self._causal = [index >= _SYMMETRIC_BLOCKS for index in range(blocks)]
        self.window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4 * hop_length) / (4 * hop_length))).astype("float32")
        # The first convolution, the blocks, and the two frames on either side whose windows reach a frame's samples.
        self.history_frames = _TAPS // 2 + 2 + sum((_TAPS - 1) if causal else _TAPS // 2 for causal in self._causal)
        self.lookahead_frames = _TAPS // 2 + 2 + self._causal.count(False) * (_TAPS // 2)

    def get_config(self):
        sizes = {"blocks": self.num_blocks, "width": self.width}
        return {**super().get_config(), **sizes, "hop_length": self.hop_length, "code_stride": self.code_stride}

    def build(self, latents_shape: Shape, speaker_shape: Shape):
        dtype, width = self.dtype_policy, self.width
        shape = (None, None, width)
        # A speaker vector has length one, and each of its numbers a size of 1 / sqrt(D).
        self._speaker_scale = speaker_shape[-1] ** 0.5

        def norm(name):
            return built(keras.layers.LayerNormalization(epsilon=_EPSILON, dtype=dtype, name=name), shape)

        self.conv_pre = built(Conv1D(width, _TAPS, dtype=dtype, name="conv_pre"), latents_shape)
        self.condition = built(keras.layers.Dense(width, dtype=dtype, name="condition"), speaker_shape)
        self.norm_pre, self.norm_post = norm("norm_pre"), norm("norm_post")
        options = dict(inner_width=_EXPANSION * width, scale=1.0 / self.num_blocks, dtype=dtype)
        named = [(f"block_{index}", causal) for index, causal in enumerate(self._causal)]
        self.blocks = [
            built(ConvNextBlock(causal=causal, name=name, **options), shape, (None, width)) for name, causal in named
        ]
        # Magnitudes and phases of all bins; float32, since a phase loses its meaning in half precision.
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
        """Windowed frames `(B, F, 4 hop)` to samples `(B, F hop)`: their sum, over that of the squared windows."""
        squares = ops.broadcast_to(self.window**2, ops.shape(parts))
        envelope = self._sum_of_shifted(masked(squares, present))
        # Samples of absent frames have no window.
        samples = self._sum_of_shifted(parts) / ops.maximum(envelope, 1e-3)
        return ops.clip(samples, -1.0, 1.0)

    def _sum_of_shifted(self, parts):
        """`(B, F, 4 hop)`, each frame one hop later than the one before, to `(B, F hop)`, from the first's middle."""
        hop = self.hop_length
        length = ops.shape(parts)[1]
        quarters = [ops.pad(parts[..., i * hop : (i + 1) * hop], ((0, 0), (i, 3 - i), (0, 0))) for i in range(4)]
        summed = ops.reshape(sum(quarters), (-1, (length + 3) * hop))
        # "Same" padding: as much is cut off at the beginning as at the end.
        return summed[:, 3 * hop // 2 : 3 * hop // 2 + length * hop]

"""What all waveform decoders share: GPT latents to frames, frames to sound, and what a chunk needs around it."""

import math
from abc import abstractmethod

import keras
import numpy as np
from keras import ops

from myxtts.config.model import ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.models.layers.tensor import Tensor


class WaveformDecoder(keras.layers.Layer):
    """Latents `(B, n, width)` and speaker vectors `(B, D)` to a waveform, `(B, num_samples(n))` float32, 24 kHz.

    Latents are first interpolated to frames, one per `hop_length` samples, on a grid that begins with the first latent:
    frames of a chunk are a slice of those of the whole. The whole batch is computed as given, padding included; cut the
    waveform of `n` latents at `num_samples(n)`.

    Subclasses have `frames_to_samples` and the three attributes.

    Args:
        code_stride: Samples at `MODEL_SAMPLE_RATE` that one latent stands for.
    """

    hop_length: int
    """Samples of one frame."""
    history_frames: int
    """Frames before a frame that its samples depend on."""
    lookahead_frames: int
    """Frames after a frame that its samples depend on."""

    def __init__(self, code_stride: int = CODE_STRIDE_SAMPLES, **kwargs):
        super().__init__(**kwargs)
        self.code_stride = code_stride

    def call(self, latents: Tensor, speaker: Tensor) -> Tensor:
        return self.frames_to_samples(self.latents_to_frames(latents), speaker)

    def latents_to_frames(self, latents: Tensor) -> Tensor:
        """Interpolates latents, `(B, n, width)`, to frames, `(B, num_frames(n), width)`."""
        for factor in self.factors():
            latents = interpolate_linearly(latents, factor)
        return latents

    @abstractmethod
    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        """Frames `(B, F, width)` and speaker vectors `(B, D)` to samples, `(B, F hop_length)` float32 in [-1, 1].

        A window of frames gives the samples of the whole, but for those of its first `history_frames` and its last
        `lookahead_frames`, where it is not at the beginning or the end of the sound itself.

        `present` is `(B, F)` bool: which frames there are. Samples of these are as if the others were cut off before
        the first and after the last; None for all.
        """

    def num_frames(self, num_latents: int | Tensor) -> int | Tensor:
        """Number of frames of `num_latents` latents."""
        for factor in self.factors():
            num_latents = _scaled_length(num_latents, factor)
        return num_latents

    def num_samples(self, num_latents: int | Tensor) -> int | Tensor:
        """Length, in samples, of the waveform of `num_latents` latents."""
        return self.num_frames(num_latents) * self.hop_length

    def factors(self) -> tuple[float, ...]:
        """By which latents are stretched in time, one after the other."""
        return self.code_stride / self.hop_length, DECODER_SAMPLE_RATE / MODEL_SAMPLE_RATE


def make_decoder(config: ModelConfig, **kwargs) -> WaveformDecoder:
    """The decoder of `config.decoder_type`, without weights; `kwargs` are of `keras.layers.Layer`."""
    # These build on this module.
    from myxtts.models.hifigan import HifiganGenerator
    from myxtts.models.istft import IstftGenerator

    if config.decoder_type == "hifigan":
        return HifiganGenerator(config.decoder_channels, **kwargs)
    return IstftGenerator(config.decoder_blocks, config.decoder_width, **kwargs)


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


def masked(x: Tensor, present: Tensor | None) -> Tensor:
    """`(B, T, C)` with zeros where `present`, `(B, T)` bool, is False; None changes nothing."""
    return x if present is None else ops.where(present[..., None], x, ops.zeros((), x.dtype))


def _scaled_length(length, factor):
    """`floor(length factor)` of an int or of a scalar tensor, in double precision like the reference."""
    if isinstance(length, int):
        return math.floor(length * factor)
    return ops.cast(ops.floor(ops.cast(length, "float64") * factor), "int32")

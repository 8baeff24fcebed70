"""Base class of the waveform decoders: GPT latents -> frames -> samples, whole or in windows."""

import math
from abc import abstractmethod

import keras
import numpy as np
from keras import ops

from myxtts.config.model import ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.models.layers.tensor import Tensor


class WaveformDecoder(keras.layers.Layer):
    """Latents `(B, n, width)` and speaker vectors `(B, D)` to a waveform `(B, num_samples(n))` float32 at 24 kHz.

    Latents are interpolated to frames, one per `hop_length` samples, on the grid of the whole sentence; a window of
    frames can be decoded alone. Padding is decoded too: cut the waveform of `n` latents at `num_samples(n)`.

    Args:
        code_stride: Samples at `MODEL_SAMPLE_RATE` per latent.
    """

    hop_length: int
    """Samples per frame."""
    history_frames: int
    """Number of earlier frames that the samples of a frame depend on."""
    lookahead_frames: int
    """Number of later frames that the samples of a frame depend on."""

    def __init__(self, code_stride: int = CODE_STRIDE_SAMPLES, **kwargs):
        super().__init__(**kwargs)
        self.code_stride = code_stride

    def call(self, latents: Tensor, speaker: Tensor) -> Tensor:
        return self.frames_to_samples(self.latents_to_frames(latents), speaker)

    def latents_to_frames(self, latents: Tensor) -> Tensor:
        """Interpolates latents `(B, n, width)` to frames `(B, num_frames(n), width)`."""
        for factor in self.factors():
            latents = interpolate_linearly(latents, factor)
        return latents

    @abstractmethod
    def frames_to_samples(self, frames: Tensor, speaker: Tensor, present: Tensor | None = None) -> Tensor:
        """Frames `(B, F, width)` and speaker vectors `(B, D)` to samples `(B, F hop_length)` float32 in [-1, 1].

        A window of frames gives the same samples as the whole sentence, except for its first `history_frames` and last
        `lookahead_frames`, unless they begin or end the sentence.

        `present` `(B, F)` bool marks real frames; their samples do not depend on the others. None marks all.
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
        """Factors of the consecutive interpolations in time."""
        return self.code_stride / self.hop_length, DECODER_SAMPLE_RATE / MODEL_SAMPLE_RATE


def make_decoder(config: ModelConfig, **kwargs) -> WaveformDecoder:
    """Creates the decoder of `config.decoder_type`, not yet built; `kwargs` are those of `keras.layers.Layer`."""
    # Imported here, since both import this module.
    from myxtts.models.hifigan import HifiganGenerator
    from myxtts.models.istft import IstftGenerator

    if config.decoder_type == "hifigan":
        return HifiganGenerator(config.decoder_channels, **kwargs)
    return IstftGenerator(config.decoder_blocks, config.decoder_width, **kwargs)


def interpolate_linearly(x: Tensor, factor: float) -> Tensor:
    """Stretches `(B, L, C)` to `(B, floor(L factor), C)` by linear interpolation, as PyTorch does for a given factor.

    Output sample `j` lies at `max((j + 0.5) / factor - 0.5, 0)`; past the last input sample the last value is held.
    """
    length = ops.shape(x)[1]
    position = ops.arange(_scaled_length(length, factor), dtype="float32")
    position = ops.maximum((position + 0.5) * np.float32(1.0 / factor) - 0.5, 0.0)
    left = ops.minimum(ops.cast(position, "int32"), length - 1)
    right = ops.minimum(left + 1, length - 1)
    blend = ops.cast(position - ops.cast(left, "float32"), x.dtype)[None, :, None]
    return ops.take(x, left, axis=1) * (1 - blend) + ops.take(x, right, axis=1) * blend


def masked(x: Tensor, present: Tensor | None) -> Tensor:
    """Zeroes `(B, T, C)` where `present` `(B, T)` bool is False; None changes nothing."""
    return x if present is None else ops.where(present[..., None], x, ops.zeros((), x.dtype))


def _scaled_length(length, factor):
    """`floor(length factor)` of an int or a scalar tensor, in double precision like the reference."""
    if isinstance(length, int):
        return math.floor(length * factor)
    return ops.cast(ops.floor(ops.cast(length, "float64") * factor), "int32")

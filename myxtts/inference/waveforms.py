"""Codes -> sound: Griffin-Lim over the DVAE's mel, or the waveform decoder over the GPT's latents."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.config.config import ModelConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.devices.kinds import runs_on_cpu
from myxtts.inference.voices import Voice
from myxtts.models.xtts import XTTS


class SpokenCodes(NamedTuple):
    """What the sound of one text is made from."""

    codes: np.ndarray
    """`(C,)` int32 without the stop code, one or more."""
    stopped: bool
    """Whether a stop code followed them."""
    text_inputs: list[int]
    """`[START]` text `[STOP]`, from which they were drawn."""
    voice: Voice
    mel: np.ndarray | None
    """`(4 C, num_mels)` log-mel that they stand for; None without a DVAE."""


class WaveformMaker(Protocol):
    """Turns the codes of one text into `(S,)` float32 samples."""

    sample_rate: int
    """In Hz."""

    def __call__(self, spoken: SpokenCodes) -> np.ndarray: ...


class GriffinLim:
    """Sound from the mel alone, for a model without a waveform decoder."""

    sample_rate = MODEL_SAMPLE_RATE

    def __call__(self, spoken: SpokenCodes) -> np.ndarray:
        return log_mel_to_wav(spoken.mel)


class DecodedLatents:
    """Sound from the states of the GPT that predict the codes.

    Args:
        model: With `gpt` and `decoder`.
        config: Of the model.
    """

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS, config: ModelConfig):
        self.model = model
        self.config = config
        ids = tf.TensorSpec([None, None], tf.int32)
        latents = tf.TensorSpec([None, config.num_latents, config.width], tf.float32)
        speaker = tf.TensorSpec([None, config.speaker_width], tf.float32)
        self._to_wav = tf.function(self._codes_to_wav, input_signature=[latents, speaker, ids, ids])

    def __call__(self, spoken: SpokenCodes) -> np.ndarray:
        codes = [*spoken.codes, *[self.config.stop_audio_token] * spoken.stopped]
        text = np.array([spoken.text_inputs], np.int32)
        voice = spoken.voice
        return self._to_wav(voice.latents, voice.speaker, text, np.array([codes], np.int32))[0].numpy()

    def _codes_to_wav(self, latents, speaker, text_inputs, codes):
        hidden = self.model.gpt.codes_to_latents(latents, text_inputs, codes, self.config.start_audio_token)
        return self.model.vocoder(hidden, speaker, fewer_products=runs_on_cpu())


class CodesToMel:
    """Codes `(C,)` -> the log-mel `(4 C, num_mels)` that they stand for.

    Args:
        model: With `dvae`.
    """

    def __init__(self, model: XTTS):
        self.model = model
        self._to_mel = tf.function(self._codes_to_mel, input_signature=[tf.TensorSpec([None, None], tf.int32)])

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        return self._to_mel(codes[None])[0].numpy()

    def _codes_to_mel(self, codes):
        return self.model.denormalize_mel(self.model.dvae.decode(codes))

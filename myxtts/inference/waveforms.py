"""Codes -> waveform. Each way has a `sample_rate`, in Hz, and turns a `SpokenText` into `(S,)` float32 samples."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.inference.voices import Voice
from myxtts.models.xtts import XTTS


class SpokenText(NamedTuple):
    """What the waveform of one text can be made from."""

    text_inputs: list[int]
    """`[START]` text `[STOP]`."""
    voice: Voice
    codes: np.ndarray
    """`(C,)` or, with the stop code where one was drawn, `(C + 1,)` int32; C is 1 or more."""
    mel: np.ndarray | None
    """`(4 C, num_mels)` log-mel that the C codes stand for; None without a DVAE."""


class GriffinLim:
    """From the mel, for a model without a waveform decoder."""

    sample_rate = MODEL_SAMPLE_RATE

    def __call__(self, spoken: SpokenText) -> np.ndarray:
        return log_mel_to_wav(spoken.mel)


class LatentDecoder:
    """From the GPT's latents, by the waveform decoder."""

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS):
        self.model = model
        ids = tf.TensorSpec([None, None], tf.int32)
        latents, speaker = tf.TensorSpec([None, None, None], tf.float32), tf.TensorSpec([None, None], tf.float32)
        self._to_wav = tf.function(self._codes_to_wav, input_signature=[latents, speaker, ids, ids])

    def __call__(self, spoken: SpokenText) -> np.ndarray:
        text, voice = np.array([spoken.text_inputs], np.int32), spoken.voice
        return self._to_wav(voice.latents, voice.speaker, text, spoken.codes[None])[0].numpy()

    def _codes_to_wav(self, latents, speaker, text_inputs, codes):
        hidden = self.model.gpt.codes_to_latents(latents, text_inputs, codes, self.model.config.start_audio_token)
        return self.model.decoder(hidden, speaker)

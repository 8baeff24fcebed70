"""Decoders that turn the codes or GPT latents of a sentence into audio, in TensorFlow.

A decoder (`GriffinLim` or `LatentDecoder`) has a `sample_rate` in Hz and a method `begin`. This method returns a
`windows.Sounding`, which is the function that decodes one sentence.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import log_mel_to_wav
from myxtts.config.rates import DECODER_SAMPLE_RATE, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.inference.advancing import maybe_traced
from myxtts.inference.speech import Voice
from myxtts.inference.windows import NO_SAMPLES, Sounding, Windows, spoken_faster
from myxtts.models.xtts import XTTS


class GriffinLim:
    """Decodes whole sentences with the Griffin-Lim algorithm, for models without a waveform decoder.

    `to_mel` is a function that decodes codes `(C,)` to a log-mel spectrogram `(4 C, num_mels)`.
    """

    sample_rate = MODEL_SAMPLE_RATE

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray]):
        self.to_mel = to_mel

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Returns a function that decodes one sentence. `speed` multiplies the speaking rate. `voice` has no effect."""

        def more(codes, latents, finished):
            if not finished:
                return NO_SAMPLES
            mel = spoken_faster(self.to_mel(np.array(codes, np.int32)), speed)
            missing = max(0, MEL_FRAMES_PER_CODE - len(mel))  # Griffin-Lim needs the frames of at least one code
            return log_mel_to_wav(np.pad(mel, ((0, missing), (0, 0)), mode="edge"))

        return more


class LatentDecoder:
    """Decodes GPT latents in windows with context. Decoding a sentence at once changes samples by at most 1e-6."""

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS, traced: bool = True):
        config, number = model.config, tf.TensorSpec([], tf.int32)
        latents, speaker = tf.TensorSpec([1, None, config.width]), tf.TensorSpec([1, config.speaker_width])
        self.decoder = model.decoder
        self.to_samples = maybe_traced(traced, self._to_samples, latents, speaker, number, number)

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Returns a function that decodes one sentence. `speed` multiplies the speaking rate."""
        to_samples = lambda latents, start, end: self.to_samples(latents[None], voice.speaker, start, end)[0].numpy()
        return Windows(self.decoder, to_samples, speed)

    def _to_samples(self, latents, speaker, start, end):
        """Interpolates latents `(1, n, width)` to frames. Returns samples `(1, S)` of frames `start` to `end - 1`."""
        samples = self.decoder.frames_to_samples(self.decoder.latents_to_frames(latents)[:, start:end], speaker)
        return tf.cast(samples, tf.float32)

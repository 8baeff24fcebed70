"""Codes and GPT latents -> waveform, whole or window by window while codes are sampled.

Each decoder has a `sample_rate` in Hz, and `begin`, which returns a decoder of one sentence. Its method `more` takes
all codes so far, all GPT latents so far `(n, width)` (at the end one more than codes), and whether the sentence ended.
It returns the next samples, `(S,)` float32, possibly none.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import log_mel_to_wav
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.inference.voices import Voice
from myxtts.models.xtts import XTTS

FIRST_FRAMES = 8
"""Minimum frames of the first window of a streamed sentence."""
LATER_FRAMES = 64
"""Minimum frames of the second window, about one call of the engine; each later one is twice as long, up to
`MOST_FRAMES`. Shorter ones would mostly be context, which is computed twice."""
MOST_FRAMES = 172
NO_SAMPLES = np.zeros(0, np.float32)


class GriffinLim:
    """Decodes the DVAE's mel of a whole sentence, for a model without a waveform decoder.

    Args:
        to_mel: Codes `(C,)` -> log-mel `(4 C, num_mels)`.
    """

    sample_rate = MODEL_SAMPLE_RATE

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray], speed: float = 1.0):
        self.to_mel, self.speed = to_mel, speed

    def begin(self, voice: Voice, speed: float = 1.0) -> "GriffinLim":
        """Starts a sentence; the voice is only in its codes."""
        return GriffinLim(self.to_mel, speed)

    def more(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        if not finished:
            return NO_SAMPLES
        return log_mel_to_wav(spoken_faster(self.to_mel(np.array(codes, np.int32)), self.speed))


class LatentDecoder:
    """Decodes GPT latents by the waveform decoder, in windows with context; equals the whole sentence to 1e-6.

    `traced` is as in `Synthesizer`.
    """

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS, traced: bool = True):
        self.decoder, self._to_samples = model.decoder, self._window
        if not traced:
            return
        latents = tf.TensorSpec([1, None, model.config.width], tf.float32)
        speaker, number = tf.TensorSpec([1, model.config.speaker_width], tf.float32), tf.TensorSpec([], tf.int32)
        signature = [latents, speaker, number, number]
        self._to_samples = tf.function(self._window, input_signature=signature, autograph=False)

    def begin(self, voice: Voice, speed: float = 1.0) -> "Windows":
        """Starts a sentence."""
        return Windows(self, voice.speaker, speed)

    def window(self, latents: np.ndarray, speaker: np.ndarray, start: int, end: int) -> np.ndarray:
        """Decodes frames `start` to `end` of the latents `(n, width)` without context."""
        return self._to_samples(latents[None], speaker, start, end)[0].numpy()

    def _window(self, latents, speaker, start, end):
        samples = self.decoder.frames_to_samples(self.decoder.latents_to_frames(latents)[:, start:end], speaker)
        return tf.cast(samples, tf.float32)


class Windows:
    """The waveform of one sentence by a `LatentDecoder`."""

    def __init__(self, parent: LatentDecoder, speaker: np.ndarray, speed: float):
        self.parent, self.speaker, self.speed, self.given, self.least = parent, speaker, speed, 0, FIRST_FRAMES

    def more(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        decoder, latents = self.parent.decoder, spoken_faster(latents, self.speed, finished)
        # Frames after the last latent but one change with the next latent.
        end = decoder.num_frames(len(latents) if finished else max(len(latents) - 1, 0))
        ready = end if finished else end - decoder.lookahead_frames
        if ready - self.given < (1 if finished else self.least):
            return NO_SAMPLES
        start = max(self.given - decoder.history_frames, 0)
        samples = self.parent.window(latents, self.speaker, start, end)
        samples = samples[(self.given - start) * decoder.hop_length : (ready - start) * decoder.hop_length]
        self.given, self.least = ready, min(max(2 * self.least, LATER_FRAMES), MOST_FRAMES)
        return samples


def spoken_faster(x: np.ndarray, speed: float, finished: bool = True) -> np.ndarray:
    """Resamples latents or frames `(n, C)` in time by `speed`, above 0, with linear interpolation, like XTTS v2.

    Unless `finished`, leaves out those at the end that depend on the next latent.
    """
    if speed == 1:
        return x
    position = (np.arange(int(len(x) / speed)) + 0.5) * speed - 0.5
    position = np.clip(position if finished else position[position <= len(x) - 1], 0, len(x) - 1)
    left = position.astype(np.int64)
    right = np.minimum(left + 1, len(x) - 1)
    blend = (position - left).astype(np.float32)[:, None]
    return x[left] * (1 - blend) + x[right] * blend

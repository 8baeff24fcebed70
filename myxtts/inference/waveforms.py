"""Decoding of codes or GPT latents to audio, whole or window by window while codes are sampled.

Each decoder has a `sample_rate` in Hz, and a method `begin` that returns a `Sounding` for one sentence.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import log_mel_to_wav
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.inference.voices import Voice
from myxtts.models.xtts import XTTS

FIRST_FRAMES = 8
"""Fewest frames in the first window of a sentence."""
LATER_FRAMES = 64
"""Fewest frames in the second window, about one call of the engine; each later window is twice as long, up to
`MOST_FRAMES`. Shorter windows would mostly be context, which is computed twice."""
MOST_FRAMES = 172
NO_SAMPLES = np.zeros(0, np.float32)


Sounding = Callable[[list[int], np.ndarray, bool], np.ndarray]
"""Decoder of one sentence: takes all codes so far, all GPT latents so far `(n, width)` (at the end one more than
codes), and whether the sentence has ended; returns the next samples `(S,)` float32, possibly none."""


class GriffinLim:
    """Decodes whole sentences by Griffin-Lim, for models without a waveform decoder.

    `to_mel` decodes codes `(C,)` to a log-mel `(4 C, num_mels)`.
    """

    sample_rate = MODEL_SAMPLE_RATE

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray]):
        self.to_mel = to_mel

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Starts a sentence; the voice has no effect, because the codes contain it."""

        def more(codes, latents, finished):
            if not finished:
                return NO_SAMPLES
            return log_mel_to_wav(spoken_faster(self.to_mel(np.array(codes, np.int32)), speed))

        return more


class LatentDecoder:
    """Decodes GPT latents in windows with context; decoding the whole sentence differs by at most 1e-6."""

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS, traced: bool = True):
        self.decoder, self.to_samples = model.decoder, self._to_samples
        if traced:
            spec, config = tf.TensorSpec, model.config
            signature = [spec([1, None, config.width]), spec([1, config.speaker_width]), *[spec([], tf.int32)] * 2]
            self.to_samples = tf.function(self._to_samples, input_signature=signature, autograph=False)

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Starts a sentence."""
        decoder, given, least = self.decoder, 0, FIRST_FRAMES

        def more(codes, latents, finished):
            nonlocal given, least
            latents = spoken_faster(latents, speed, finished)
            # Frames after the second-to-last latent change with the next latent.
            end = decoder.num_frames(len(latents) if finished else max(len(latents) - 1, 0))
            ready = end if finished else end - decoder.lookahead_frames
            if ready - given < (1 if finished else least):
                return NO_SAMPLES
            start = max(given - decoder.history_frames, 0)
            samples = self.to_samples(latents[None], voice.speaker, start, end)[0].numpy()
            samples = samples[(given - start) * decoder.hop_length : (ready - start) * decoder.hop_length]
            given, least = ready, min(max(2 * least, LATER_FRAMES), MOST_FRAMES)
            return samples

        return more

    def _to_samples(self, latents, speaker, start, end):
        """Decodes the frames `start` to `end` of latents `(1, n, width)`."""
        samples = self.decoder.frames_to_samples(self.decoder.latents_to_frames(latents)[:, start:end], speaker)
        return tf.cast(samples, tf.float32)


def spoken_faster(x: np.ndarray, speed: float, finished: bool = True) -> np.ndarray:
    """Resamples latents or frames `(n, C)` in time by a factor `speed` > 0, linearly, as XTTS v2 does. Unless
    `finished`, leaves out the last results, which depend on the next latent."""
    if speed == 1:
        return x
    position = (np.arange(int(len(x) / speed)) + 0.5) * speed - 0.5
    position = np.clip(position if finished else position[position <= len(x) - 1], 0, len(x) - 1)
    left = position.astype(np.int64)
    right = np.minimum(left + 1, len(x) - 1)
    blend = (position - left).astype(np.float32)[:, None]
    return x[left] * (1 - blend) + x[right] * blend

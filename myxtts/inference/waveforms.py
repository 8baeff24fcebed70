"""Codes and latents -> waveform, whole or piece by piece while they are drawn.

Each way has a `sample_rate` in Hz and makes a `Sound` per sentence, which is given all that was sampled so
far and returns the samples that follow those it gave before.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf

from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.inference.voices import Voice
from myxtts.models.xtts import XTTS

FIRST_FRAMES = 8
"""Frames of a streamed sentence's first window, at least."""
LATER_FRAMES = 64
"""Frames of its second window, at least, nearly what one call draws; each later one is twice as long, up to
`MOST_FRAMES`. Others who wait for their first sound make calls short; windows as short would be context for the most
part."""
MOST_FRAMES = 172
"""Frames of the longest window: the context on both sides, computed twice, is then a small part of the work."""
NO_SAMPLES = np.zeros(0, np.float32)


class Sound(Protocol):
    """The waveform of one sentence."""

    def more(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        """The next samples, `(S,)` float32, none or many.

        Args:
            codes: All codes so far.
            latents: `(n, width)`, all states so far; one more than codes once `finished`.
            finished: Whether this is all; what comes then ends the sentence.
        """


class GriffinLim:
    """From the DVAE's mel, for a model without a waveform decoder: each sentence at once, when it is finished.

    Args:
        to_mel: Codes `(C,)` -> log-mel `(4 C, num_mels)`.
    """

    sample_rate = MODEL_SAMPLE_RATE

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray]):
        self.to_mel = to_mel

    def begin(self, voice: Voice, speed: float = 1.0) -> Sound:
        """A sentence; its sound does not depend on the speaker vector."""
        return _WholeSentence(self.to_mel, speed)


class _WholeSentence:
    """The waveform of one sentence by `GriffinLim`."""

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray], speed: float):
        self.to_mel, self.speed = to_mel, speed

    def more(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        """See `Sound`."""
        if not finished:
            return NO_SAMPLES
        return log_mel_to_wav(spoken_faster(self.to_mel(np.array(codes, np.int32)), self.speed))


class LatentDecoder:
    """From the GPT's latents, by the waveform decoder, in windows of frames with what they depend on around them.

    Frames are those of the whole sentence, interpolated on one grid, and only then cut: windows give the samples of the
    whole to 1e-6. `traced` is as in `Synthesizer`.
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

    def begin(self, voice: Voice, speed: float = 1.0) -> Sound:
        """A sentence in a voice."""
        return _Windows(self, voice.speaker, speed)

    def window(self, latents: np.ndarray, speaker: np.ndarray, start: int, end: int) -> np.ndarray:
        """Samples of frames `start` to `end` of the latents `(n, width)`, as if there were nothing around them."""
        return self._to_samples(latents[None], speaker, start, end)[0].numpy()

    def _window(self, latents, speaker, start, end):
        samples = self.decoder.frames_to_samples(self.decoder.latents_to_frames(latents)[:, start:end], speaker)
        return tf.cast(samples, tf.float32)


class _Windows:
    """The waveform of one sentence by a `LatentDecoder`."""

    def __init__(self, way: LatentDecoder, speaker: np.ndarray, speed: float):
        self.way, self.speaker, self.speed, self.given, self.least = way, speaker, speed, 0, FIRST_FRAMES

    def more(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        """See `Sound`."""
        decoder, latents = self.way.decoder, spoken_faster(latents, self.speed, finished)
        # Up to the last latent but one, frames do not change with what comes after.
        end = decoder.num_frames(len(latents)) if finished else decoder.num_frames(max(len(latents) - 1, 0))
        ready = end if finished else end - decoder.lookahead_frames
        if ready - self.given < (1 if finished else self.least):
            return NO_SAMPLES
        start = max(self.given - decoder.history_frames, 0)
        samples = self.way.window(latents, self.speaker, start, end)
        samples = samples[(self.given - start) * decoder.hop_length : (ready - start) * decoder.hop_length]
        self.given, self.least = ready, min(max(2 * self.least, LATER_FRAMES), MOST_FRAMES)
        return samples


def spoken_faster(x: np.ndarray, speed: float, finished: bool = True) -> np.ndarray:
    """Squeezes latents or frames `(n, C)` in time by `speed`, above 0, linearly between neighbors, as XTTS v2 does.

    Of a sequence that is not `finished`, those that will not change with what comes after.
    """
    if speed == 1:
        return x
    position = (np.arange(int(len(x) / speed)) + 0.5) * speed - 0.5
    position = np.clip(position if finished else position[position <= len(x) - 1], 0, len(x) - 1)
    left = position.astype(np.int64)
    right = np.minimum(left + 1, len(x) - 1)
    blend = (position - left).astype(np.float32)[:, None]
    return x[left] * (1 - blend) + x[right] * blend

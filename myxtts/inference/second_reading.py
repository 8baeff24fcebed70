"""The GPT reads a sentence once more, all codes at a time: how they follow the text, and how likely they are."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.inference.attention import most_even
from myxtts.inference.code_engine import mark_text
from myxtts.models.gpt import GPT

NUM_TAGS = 1
"""Ids at the beginning of a text that name its language, and stay where the text is left out."""


class Reading(NamedTuple):
    """Of a sentence with C codes and L text tokens, marks included."""

    attention: np.ndarray
    """`(C, L)`: where each code looks, see `text_attention`."""
    gain: float
    """By how many nats a code is likelier with the text than without it, on average."""
    surprise: float
    """By how many nats codes and stop are less likely than the GPT expects of its own draws, on average."""
    stop: float
    """Logarithm of the probability to stop where the sentence ends."""


class SecondReading:
    """Makes the `Reading` of sentences; `traced` is as in `Synthesizer`."""

    def __init__(self, gpt: GPT, traced: bool = True):
        self.gpt, self._read = gpt, self._pass
        if traced:
            latents = tf.TensorSpec([1, None, gpt.config.width], tf.float32)
            tokens = tf.TensorSpec([1, None], tf.int32)
            self._read = tf.function(self._pass, input_signature=[latents, tokens, tokens], autograph=False)

    def __call__(self, latents: np.ndarray, ids: list[int], codes: np.ndarray) -> Reading:
        """Reads one sentence: its voice `(1, num_latents, width)`, text ids without marks, codes `(C,)`, C above 0."""
        config = self.gpt.config
        audio = np.array([[*codes, config.stop_audio_token]], np.int32)
        text, nothing = (np.array([mark_text(part, config)], np.int32) for part in (ids, ids[:NUM_TAGS]))
        logs, entropy, attention = self._read(latents, text, audio)
        without, _, _ = self._read(latents, nothing, audio)
        logs = logs.numpy()
        followed = most_even(attention.numpy()[:, :-1])
        gain, surprise = (logs - without.numpy())[:-1].mean(), -(logs + entropy.numpy()).mean()
        return Reading(followed, float(gain), float(surprise), float(logs[-1]))

    def _pass(self, latents, text, audio):
        """Log-probabilities of codes and stop `(C + 1,)`, entropies `(C + 1,)`, attention of blocks `(N, C + 1, L)`."""
        gpt, seen = self.gpt, {}
        before = tf.concat([[[gpt.config.start_audio_token]], audio[:, :-1]], axis=1)
        hidden = gpt.hidden(latents, text, before, see_input=seen.__setitem__)[:, tf.shape(text)[1] :]
        logs = tf.nn.log_softmax(tf.cast(gpt.audio_head(hidden), tf.float32))[0]
        mask = tf.ones_like(text, tf.bool)
        attention = tf.concat([gpt.text_attention(number, x, mask) for number, x in seen.items()], axis=0)
        return tf.gather(logs, audio[0], batch_dims=1), -tf.reduce_sum(tf.exp(logs) * logs, axis=-1), attention

"""Where codes look in the text that they speak."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from myxtts.models.gpt import GPT


def text_attention(gpt: GPT, latents: np.ndarray, ids: list[int], codes: np.ndarray) -> np.ndarray:
    """Attention from codes to text in the block that goes through the text most evenly, by its first head.

    That head is the one that guided attention trains, in the middle block; in a model that was trained without, another
    block may follow the text better.

    Args:
        latents: Of the voice, `(1, num_latents, width)`.
        ids: Of the text, L - 2 of them, without start and stop.
        codes: `(C,)` int32.

    Returns:
        `(C, L)` float32, a distribution over start, text and stop for each code.
    """
    config, seen = gpt.config, {}
    text = tf.constant([[config.start_text_token, *ids, config.stop_text_token]], tf.int32)
    if not len(codes):
        return np.zeros((0, text.shape[1]), np.float32)
    audio = tf.constant([[config.start_audio_token, *codes[:-1]]], tf.int32)
    gpt.hidden(latents, text, audio, see_input=seen.__setitem__)
    mask = tf.ones_like(text, tf.bool)
    return most_even(gpt.text_attention(number, x, mask)[0].numpy() for number, x in seen.items())


def most_even(of_blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The attention `(C, L)` that goes through the text most evenly."""
    return max(of_blocks, key=_evenness)


def _evenness(attention):
    """Correlation of time with the place in the text that is looked at on average."""
    place, time = attention @ np.arange(attention.shape[1]), np.arange(len(attention))
    spread = place.std() * time.std()
    return ((place - place.mean()) * (time - time.mean())).mean() / spread if spread > 1e-9 else 0.0

"""Text ids and conditioning latents -> audio codes. Knows neither text nor sound."""

import numpy as np
import tensorflow as tf

from myxtts.config.config import ModelConfig, SamplingConfig
from myxtts.models.gpt import GPT
from myxtts.models.sampling import EXCLUDED, SamplingValues, sample


def mark_text(ids: list[int], config: ModelConfig) -> list[int]:
    """`[START]`, the ids, `[STOP]`: a text as the GPT reads it."""
    return [config.start_text_token, *ids, config.stop_text_token]


class CodeGenerator:
    """Draws the codes of a batch of texts.

    One graph serves every request on a device: sampling, seed and limit are tensors. `num_traces` counts the graphs.
    """

    def __init__(self, gpt: GPT, config: ModelConfig):
        self.gpt, self.config, self.num_traces = gpt, config, 0
        latents = tf.TensorSpec([None, config.num_latents, config.width], tf.float32)
        text, mask = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.bool)
        whole, real = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
        sampling = SamplingValues(temperature=real, top_k=whole, top_p=real, repetition_penalty=real)
        self._loop = tf.function(self._draw_all, input_signature=[latents, text, mask, sampling, whole, whole])

    def __call__(
        self, tokens: list[list[int]], latents: np.ndarray, sampling: SamplingConfig, seed: int = 0, max_codes: int = 0
    ) -> np.ndarray:
        """Draws codes until every row has stopped: `(B, max_codes)` int32, a row's ending at its first stop code.

        Args:
            tokens: B lists of text ids, without marks.
            latents: `(B, num_latents, width)`.
            max_codes: Most codes per row; 0 takes the model's limit.
        """
        rows = [mark_text(ids, self.config) for ids in tokens]
        text = np.zeros((len(rows), max(map(len, rows))), np.int32)
        mask = np.zeros(text.shape, bool)
        for row, ids in enumerate(rows):
            text[row, : len(ids)], mask[row, : len(ids)] = ids, True
        values = SamplingValues(*(getattr(sampling, name) for name in SamplingValues._fields))
        return self._loop(latents, text, mask, values, int(seed), max_codes or self.config.max_codes).numpy()

    def _draw_all(self, latents, text_inputs, text_mask, sampling, seed, max_codes):
        """The traced loop: each pass draws a code per row and feeds it to the cached GPT."""
        self.num_traces += 1
        gpt, config, stop = self.gpt, self.config, self.config.stop_audio_token
        # The start code stands for no sound, so it is never drawn.
        never = tf.range(config.num_audio_tokens) == config.start_audio_token
        logits, state = gpt.prefill(latents, text_inputs, text_mask, config.start_audio_token, max_codes)
        num_rows, num_prompt = tf.shape(text_inputs)[0], tf.shape(state.key_mask)[1] - max_codes
        codes = tf.fill((max_codes, num_rows), stop)
        done, seen = tf.zeros((num_rows,), tf.bool), tf.zeros((num_rows, config.num_audio_tokens), tf.bool)

        def draw(index, codes, done, seen, logits, state):
            logits = tf.where(never, EXCLUDED, logits)
            code = tf.where(done, stop, sample(logits, sampling, seen, tf.stack([seed, index])))
            codes = tf.tensor_scatter_nd_update(codes, [[index]], code[None])
            seen = seen | tf.cast(tf.one_hot(code, config.num_audio_tokens), tf.bool)
            logits, state = gpt.advance(code, index, num_prompt, state)
            return index + 1, codes, done | (code == stop), seen, logits, state

        more = lambda index, codes, done, *rest: (index < max_codes) & ~tf.reduce_all(done)
        return tf.transpose(tf.while_loop(more, draw, (tf.constant(0), codes, done, seen, logits, state))[1])

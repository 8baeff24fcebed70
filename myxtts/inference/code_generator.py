"""Text ids and conditioning latents -> audio codes. Knows neither text nor sound."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from myxtts.config.config import ModelConfig, SamplingConfig
from myxtts.models.gpt import GPT
from myxtts.models.sampling import EXCLUDED, SamplingValues, sample


def mark_text(ids: Sequence[int], config: ModelConfig) -> list[int]:
    """`[START]`, the ids, `[STOP]`: a text as the GPT reads it."""
    return [config.start_text_token, *ids, config.stop_text_token]


def until_stop(codes: np.ndarray, config: ModelConfig) -> tuple[np.ndarray, bool]:
    """Codes of a row before its first stop code, and whether there is one."""
    ends = np.flatnonzero(codes == config.stop_audio_token)
    return (codes[: ends[0]], True) if len(ends) else (codes, False)


class CodeGenerator:
    """Draws the codes of a batch of texts, all of them by one graph.

    Sampling values, seed and limit are tensors, and shapes are open, so that no request adds a graph to memory.

    Args:
        gpt: Trained.
        config: Of the model, for the token ids and the limit.
    """

    num_traces: int
    """How often the graph was traced: at the first request, and once more on another device."""

    def __init__(self, gpt: GPT, config: ModelConfig):
        self.gpt = gpt
        self.config = config
        self.num_traces = 0
        whole, real = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
        self._traced = tf.function(
            self._draw_all,
            input_signature=[
                tf.TensorSpec([None, config.num_latents, config.width], tf.float32),
                tf.TensorSpec([None, None], tf.int32),
                tf.TensorSpec([None, None], tf.bool),
                SamplingValues(temperature=real, top_k=whole, top_p=real, repetition_penalty=real),
                whole,
                whole,
            ],
        )

    def __call__(
        self,
        tokens: Sequence[Sequence[int]],
        latents: np.ndarray,
        sampling: SamplingConfig,
        seed: int = 0,
        max_codes: int | None = None,
    ) -> np.ndarray:
        """Draws codes until every row has stopped.

        Args:
            tokens: B lists of text ids, without marks.
            latents: `(B, num_latents, width)`.
            sampling: How codes are drawn.
            seed: Of the draws.
            max_codes: Most codes per row; None takes the model's limit.

        Returns:
            `(B, C)` int32; a row's codes end at its first stop code.
        """
        rows = [mark_text(ids, self.config) for ids in tokens]
        text = np.zeros((len(rows), max(map(len, rows))), np.int32)
        mask = np.zeros(text.shape, bool)
        for row, ids in enumerate(rows):
            text[row, : len(ids)], mask[row, : len(ids)] = ids, True
        limit = max_codes or self.config.max_codes
        values = SamplingValues.of(sampling)
        return self._traced(
            np.asarray(latents, np.float32), text, mask, values, np.int32(seed), np.int32(limit)
        ).numpy()

    def _draw_all(self, latents, text_inputs, text_mask, sampling, seed, max_codes):
        """The traced loop, `(max_codes, B)` codes filled row by row; each pass feeds one code to the cached GPT."""
        self.num_traces += 1  # while tracing alone
        gpt, config, stop = self.gpt, self.config, self.config.stop_audio_token
        # The start code stands for no sound, so it is never drawn.
        never = tf.range(config.num_audio_tokens) == config.start_audio_token
        logits, state = gpt.prefill(latents, text_inputs, text_mask, config.start_audio_token, max_codes)
        num_rows, num_prompt = tf.shape(text_inputs)[0], tf.shape(state.key_mask)[1] - max_codes
        codes = tf.fill((max_codes, num_rows), stop)
        done = tf.zeros((num_rows,), tf.bool)
        seen = tf.zeros((num_rows, config.num_audio_tokens), tf.bool)

        def more(index, codes, done, seen, logits, state):
            return (index < max_codes) & ~tf.reduce_all(done)

        def draw(index, codes, done, seen, logits, state):
            logits = tf.where(never, EXCLUDED, logits)
            code = tf.where(done, stop, sample(logits, sampling, seen, tf.stack([seed, index])))
            codes = tf.tensor_scatter_nd_update(codes, [[index]], code[None])
            seen = seen | tf.cast(tf.one_hot(code, config.num_audio_tokens), tf.bool)
            logits, state = gpt.step(code, index, num_prompt, state)
            return index + 1, codes, done | (code == stop), seen, logits, state

        drawn = tf.while_loop(more, draw, (tf.constant(0), codes, done, seen, logits, state))[1]
        return tf.transpose(drawn)

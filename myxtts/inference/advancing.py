"""The compiled function that draws several codes for each row of a batch, and what goes in and out of it."""

from typing import NamedTuple

import tensorflow as tf

from myxtts.config.config import ModelConfig
from myxtts.models.gpt import GPT, DecodingState
from myxtts.models.layers.tensor import Tensor
from myxtts.models.sampling import EXCLUDED, SamplingValues, sample

MOST_CODES = 16
"""Codes that one call can draw for a row. Between calls rows come and go."""


class RowState(NamedTuple):
    """What B rows carry from one call to the next, with S rows of cache."""

    keys: tuple[Tensor, ...]
    """One `(B, heads, S, D)` per layer."""
    values: tuple[Tensor, ...]
    """One `(B, heads, S, D)` per layer."""
    logits: Tensor
    """`(B, num_audio_tokens)` float32, of the next code."""
    hidden: Tensor
    """`(B, width)` float32, the state that predicts it."""
    seen: Tensor
    """`(B, num_audio_tokens)` bool: codes drawn so far."""


class Request(NamedTuple):
    """What one call is asked for."""

    key_mask: Tensor
    """`(B, S)` bool: what each row may see of the cache."""
    position: Tensor
    """Scalar int32: the first row of the cache to fill, the same for all."""
    index: Tensor
    """`(B,)` int32: codes that each row has."""
    left: Tensor
    """`(B,)` int32: codes that each row may still draw."""
    sampling: SamplingValues
    """Each `(B, 1)`."""
    noise: Tensor
    """`(B, MOST_CODES, num_audio_tokens)` float32."""
    steps: Tensor
    """Scalar int32: codes to draw, at most `MOST_CODES`."""


class Advance:
    """Draws codes: a graph that takes every shape, and one that XLA compiles for each shape it meets.

    Each is traced once; sampling values, noise and numbers of codes are tensors. `shapes` holds the `(B, S)` that XLA
    has compiled.
    """

    def __init__(self, gpt: GPT, config: ModelConfig):
        self.gpt, self.config, self.num_traces = gpt, config, 0
        self.shapes: set[tuple[int, int]] = set()
        scores = config.num_audio_tokens
        cache = tf.TensorSpec([None, config.heads, None, config.width // config.heads], gpt.compute_dtype)
        caches = (cache,) * config.layers
        state = RowState(
            caches,
            caches,
            tf.TensorSpec([None, scores], tf.float32),
            tf.TensorSpec([None, config.width], tf.float32),
            tf.TensorSpec([None, scores], tf.bool),
        )
        number, numbers = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32)
        column = tf.TensorSpec([None, 1], tf.float32)
        request = Request(
            tf.TensorSpec([None, None], tf.bool),
            number,
            numbers,
            numbers,
            SamplingValues(column, tf.TensorSpec([None, 1], tf.int32), column, column),
            tf.TensorSpec([None, MOST_CODES, scores], tf.float32),
            number,
        )
        self._plain = tf.function(self._draw, input_signature=[state, request])
        self._compiled = tf.function(self._draw, input_signature=[state, request], jit_compile=True)

    def __call__(self, state: RowState, request: Request, compiled: bool) -> tuple[Tensor, Tensor, Tensor, RowState]:
        """Draws up to `steps` codes for each row, fewer when all rows have stopped.

        Returns:
            Codes `(MOST_CODES, B)` int32, from a row's stop or limit on the stop code; the states that predict them and
            what comes next, `(MOST_CODES + 1, B, width)`; how many steps were taken; and the new state.
        """
        if compiled:
            self.shapes.add(tuple(request.key_mask.shape))
        return (self._compiled if compiled else self._plain)(state, request)

    def _draw(self, state, request):
        self.num_traces += 1
        gpt, config, stop = self.gpt, self.config, self.config.stop_audio_token
        # The start code stands for no sound, so it is never drawn.
        never = tf.range(config.num_audio_tokens) == config.start_audio_token
        num_rows = tf.shape(request.key_mask)[0]
        codes = tf.fill((MOST_CODES, num_rows), stop)
        states = tf.zeros((MOST_CODES + 1, num_rows, config.width))
        longest = gpt.audio_positions.shape[0] - 2

        def draw(i, codes, states, stopped, state, key_mask):
            logits = tf.where(never, EXCLUDED, state.logits)
            code = sample(logits, request.sampling, state.seen, request.noise[:, i])
            code = tf.where(stopped | (i >= request.left), stop, code)
            codes = tf.tensor_scatter_nd_update(codes, [[i]], code[None])
            states = tf.tensor_scatter_nd_update(states, [[i]], state.hidden[None])
            seen = state.seen | tf.cast(tf.one_hot(code, config.num_audio_tokens), tf.bool)
            # Rows that have stopped go along, and nobody reads what comes of it.
            index = tf.minimum(request.index + i, longest)
            cache = DecodingState(state.keys, state.values, key_mask)
            logits, hidden, cache = gpt.advance(code, index, request.position + i, cache)
            state = RowState(cache.keys, cache.values, logits, hidden, seen)
            return i + 1, codes, states, stopped | (code == stop), state, cache.key_mask

        more = lambda i, codes, states, stopped, *rest: (i < request.steps) & ~tf.reduce_all(stopped)
        start = tf.constant(0), codes, states, request.left <= 0, state, request.key_mask
        taken, codes, states, _, state, _ = tf.while_loop(more, draw, start)
        states = tf.tensor_scatter_nd_update(states, [[taken]], state.hidden[None])
        return codes, states, taken, state

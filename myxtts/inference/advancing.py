"""What reads prompts, draws codes and rearranges rows for the engine, in TensorFlow; and what goes in and out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
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


class Graph:
    """A function that is traced once, at its first call, for every shape that its signature allows.

    What `tf.function` does at each call to find the graph takes milliseconds, as long as some steps of a small model.
    """

    def __init__(self, function: Callable, signature: list, compiled: bool = False):
        self._function = tf.function(function, input_signature=signature, jit_compile=compiled, autograph=False)
        self._graph = None

    def __call__(self, *arguments: Any) -> Any:
        if self._graph is None:
            self._graph = self._function.get_concrete_function()
        return self._graph(*arguments)


class TensorflowSteps:
    """Steps of the engine as graphs, each traced once for all shapes; XLA compiles the sampling for each shape.

    `interchange.onnx.steps.OnnxSteps` has the same methods on arrays.

    Args:
        compiled: Whether XLA compiles the draws: always, never, or (None) for the shapes given to `compile`.
        traced: Whether reading a prompt is a graph; as in `Synthesizer`.

    Attributes:
        shapes: `(B, S)` that XLA has compiled.
        num_traces: How often the draws were traced.
    """

    def __init__(self, gpt: GPT, config: ModelConfig, compiled: bool | None = None, traced: bool = True):
        self.gpt, self.config, self.compiled, self.num_traces = gpt, config, compiled, 0
        self.shapes: set[tuple[int, int]] = set()
        scores = tf.TensorSpec([None, config.num_audio_tokens], tf.float32)
        cache = tf.TensorSpec([None, config.heads, None, config.width // config.heads], gpt.compute_dtype)
        caches, hidden = (cache,) * config.layers, tf.TensorSpec([None, config.width], tf.float32)
        state = RowState(caches, caches, scores, hidden, tf.TensorSpec(scores.shape, tf.bool))
        number = tf.TensorSpec([], tf.int32)
        numbers = tf.TensorSpec([None], tf.int32)
        column = tf.TensorSpec([None, 1], tf.float32)
        sampling = SamplingValues(column, tf.TensorSpec([None, 1], tf.int32), column, column)
        noise = tf.TensorSpec([None, MOST_CODES, config.num_audio_tokens], tf.float32)
        mask = tf.TensorSpec([None, None], tf.bool)
        request = Request(mask, number, numbers, numbers, sampling, noise, number)
        self._signature = [state, request]
        self._draws = {xla: Graph(self._draw, self._signature, xla) for xla in (False, True)}
        self._move = Graph(self._moved, [state, numbers, number, number, number, number])
        self._join = Graph(self._joined, [state, state])
        self._read = self._read_prompts
        # The engine's thread has no device scope of its own, and computes where the weights are.
        self._device = gpt.audio_head.bias.value.device
        if traced:
            latents = tf.TensorSpec([None, config.num_latents, config.width], tf.float32)
            text = tf.TensorSpec([None, None], tf.int32)
            self._read = tf.function(self._read_prompts, input_signature=[latents, text, mask], autograph=False)

    def read(self, latents: np.ndarray, text: np.ndarray, text_mask: np.ndarray) -> RowState:
        """The state after the prompts `(B, N, width)`, `(B, L)` and the start code; `text_mask` is `(B, L)` bool."""
        with tf.device(self._device):
            return self._read(latents, text, text_mask)

    def move(self, state: RowState, rows: list[int], start: int, end: int, before: int, after: int) -> RowState:
        """The `rows` of a state, with `start:end` of their cache and so much room before and after it."""
        with tf.device(self._device):
            numbers = (tf.constant(number) for number in (start, end, before, after))
            return self._move(state, tf.constant(rows), *numbers)

    def join(self, state: RowState, other: RowState) -> RowState:
        """The rows of both, which have caches of one size."""
        return self._join(state, other)

    def draw(self, state: RowState, request: Request) -> tuple[Tensor, Tensor, Tensor, RowState]:
        """Draws up to `steps` codes for each row, fewer when all rows have stopped.

        Returns:
            Codes `(MOST_CODES, B)` int32, from a row's stop or limit on the stop code; the states that predict them and
            what comes next, `(MOST_CODES + 1, B, width)`; how many steps were taken; and the new state.
        """
        shape = tuple(request.key_mask.shape)
        xla = self.is_compiled(*shape)
        with tf.device(self._device):
            drawn = self._draws[xla](state, tf.nest.map_structure(tf.constant, request))
        if xla:
            self.shapes.add(shape)
        return drawn

    def is_compiled(self, num_rows: int, cache_size: int) -> bool:
        """Whether a batch is to be filled up to this number of rows, a power of two, for which XLA has compiled."""
        return (num_rows, cache_size) in self.shapes if self.compiled is None else self.compiled

    def compile(self, num_rows: int, cache_size: int) -> None:
        """Compiles the draws for one shape of batch, where there is anything to compile; takes seconds."""
        if self.compiled is False:
            return

        def zeros(spec):
            # The first size that a signature leaves open is the number of rows, the second the cache's.
            sizes = iter((num_rows, cache_size))
            return tf.zeros([next(sizes) if size is None else size for size in spec.shape], spec.dtype)

        self._draws[True](*tf.nest.map_structure(zeros, self._signature))
        self.shapes.add((num_rows, cache_size))

    def _read_prompts(self, latents, text, text_mask):
        logits, hidden, cache = self.gpt.prefill(latents, text, text_mask, self.config.start_audio_token, 0)
        return RowState(cache.keys, cache.values, logits, hidden, tf.zeros(tf.shape(logits), tf.bool))

    def _moved(self, state, rows, start, end, before, after):
        room = tf.stack([[0, 0], [0, 0], [before, after], [0, 0]])
        keys, values = (
            tuple(tf.pad(tf.gather(layer[:, :, start:end], rows), room) for layer in layers)
            for layers in (state.keys, state.values)
        )
        return RowState(keys, values, *(tf.gather(part, rows) for part in state[2:]))

    def _joined(self, state, other):
        return tf.nest.map_structure(lambda one, two: tf.concat([one, two], axis=0), state, other)

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

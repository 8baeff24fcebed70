"""TensorFlow backend of `CodeEngine`: runs the GPT on prompts, samples codes, and rearranges batches of sentences."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.config.config import ModelConfig
from myxtts.models.attention import TransformerBlock
from myxtts.models.gpt import GPT, HIDDEN, DecodingState, SamplingValues, sample
from myxtts.models.layers import Tensor

MOST_CODES = 16
"""Maximum number of codes per sentence in one call of `draw`. Between calls, sentences can join or leave the batch."""


class Request(NamedTuple):
    """Arguments of `TensorflowSteps.draw` except `state`. B is the number of sentences, S the size of the cache."""

    key_mask: Tensor
    """`(B, S)` bool: cache positions to attend to."""
    position: Tensor
    """Scalar int32: first cache position to write."""
    index: Tensor
    """`(B,)` int32: number of codes sampled so far."""
    left: Tensor
    """`(B,)` int32: number of codes that may still be sampled."""
    sampling: SamplingValues
    """Sampling parameters, each `(B, 1)`."""
    noise: Tensor
    """`(B, MOST_CODES, num_audio_tokens)` float32: Gumbel noise for sampling."""
    steps: Tensor
    """Scalar int32: number of codes to sample, at most `MOST_CODES`."""


def maybe_traced(traced: bool, function: Callable, *signature: tf.TensorSpec) -> Callable:
    """If `traced` is true, returns a `tf.function` with this input signature. Otherwise, returns `function` itself."""
    return tf.function(function, input_signature=signature, autograph=False) if traced else function


def graph_of(function: Callable, signature: list, compiled: bool = False) -> Callable:
    """Returns a function that takes no arguments and returns the graph of `function`. The first call traces `function`.
    Calling the graph is faster than calling a `tf.function`, which looks up its graph at every call. For a small
    model, this lookup takes as long as sampling one code. If `compiled` is true, XLA compiles the graph."""
    traced = tf.function(function, input_signature=signature, jit_compile=compiled, autograph=False)
    return functools.cache(traced.get_concrete_function)


def compiled_advance(first: TransformerBlock) -> Callable:
    """Returns a function `(block, *arguments)` that runs `block.advance(*arguments)` as an XLA program. All blocks
    share one program, which receives the weights of `block` as inputs. `first` is the block used for tracing."""

    def advance(weights, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(first.weights, weights))):
            return first.advance(*arguments)

    program = tf.function(advance, jit_compile=True, autograph=False)
    return lambda block, *arguments: program([tf.convert_to_tensor(one.value) for one in block.weights], *arguments)


class TensorflowSteps:
    """Runs the GPT for `CodeEngine` in TensorFlow graphs that accept all shapes. `OnnxSteps` has the same methods.

    Args:
        traced: Whether to trace `read` to a graph. `draw` is always traced.
        by_block: Whether `draw` runs each transformer block as an XLA program if the batch shape is not in `shapes`.
            None means True on a GPU, where launching single operations is slow, and False on a CPU.

    Attributes:
        shapes: Shapes `(B, S)` for which XLA has compiled `draw` as a whole.
        num_traces: Number of times that `draw` was traced."""

    def __init__(self, gpt: GPT, config: ModelConfig, traced: bool = True, by_block: bool | None = None):
        self.gpt, self.config, self.num_traces = gpt, config, 0
        self.shapes: set[tuple[int, int]] = set()
        spec, tokens = tf.TensorSpec, config.num_audio_tokens
        caches = (spec([None, config.heads, None, config.width // config.heads], gpt.compute_dtype),) * config.layers
        scores, hidden, seen = spec([None, tokens]), spec([None, config.width]), spec([None, tokens], tf.bool)
        state = DecodingState(caches, caches, scores, hidden, seen)
        number, numbers, mask = spec([], tf.int32), spec([None], tf.int32), spec([None, None], tf.bool)
        sampling = SamplingValues(spec([None, 1]), spec([None, 1], tf.int32), spec([None, 1]), spec([None, 1]))
        request = Request(mask, number, numbers, numbers, sampling, spec([None, MOST_CODES, tokens]), number)
        self._signature = [state, request]
        # Calls run on the device of the weights: the engine's thread has no device scope.
        self._device = gpt.audio_head.bias.value.device
        by_block = "GPU" in self._device if by_block is None else by_block
        advance = compiled_advance(gpt.blocks[0]) if by_block else None
        self._draws = {
            False: graph_of(functools.partial(self._draw, advance), self._signature),
            True: graph_of(functools.partial(self._draw, None), self._signature, True),
        }
        prompt = spec([None, config.num_latents, config.width]), spec([None, None], tf.int32), mask
        self._read = maybe_traced(traced, gpt.prefill, *prompt)

    def read(self, latents: np.ndarray, text: np.ndarray, text_mask: np.ndarray) -> DecodingState:
        """Runs the GPT on B prompts and returns the resulting state. Each prompt consists of latents, text ids and the
        start code. `latents` is `(B, N, width)`, `text` is `(B, L)`, and `text_mask` `(B, L)` is False for padding."""
        with tf.device(self._device):
            return self._read(latents, text, text_mask)

    def move(self, state: DecodingState, rows: list[int], kept: slice, padding: tuple[int, int]) -> DecodingState:
        """Selects sentences `rows` and cache positions `kept` of `state`. Pads caches with `(before, after)` zeros."""
        widths = [(0, 0), (0, 0), padding, (0, 0)]
        moved = lambda layers: tuple(tf.pad(tf.gather(layer[:, :, kept], rows), widths) for layer in layers)
        with tf.device(self._device):
            return DecodingState(*map(moved, state[:2]), *(tf.gather(part, rows) for part in state[2:]))

    def join(self, state: DecodingState, other: DecodingState) -> DecodingState:
        """Concatenates the sentences of two states whose caches have the same size."""
        with tf.device(self._device):
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), state, other)

    def draw(self, state: DecodingState, request: Request) -> tuple[Tensor, Tensor, Tensor, DecodingState]:
        """Samples up to `request.steps` codes for each sentence; stops early if all sentences have ended.

        Returns `(codes, latents, steps, state)`. `codes` `(MOST_CODES, B)` int32 contains stop codes after the end of a
        sentence. `latents` `(MOST_CODES + 1, B, width)` are GPT latents: `latents[i]` predicted `codes[i]`, and
        `latents[steps]` predicts the first code of the next call. `steps` is the number of codes sampled."""
        xla = tuple(request.key_mask.shape) in self.shapes
        with tf.device(self._device):
            return self._draws[xla]()(state, tf.nest.map_structure(tf.constant, request))

    def compile(self, num_rows: int, cache_size: int) -> None:
        """Compiles `draw` with XLA for one shape `(num_rows, cache_size)`, which takes seconds."""

        def zeros(spec):
            # The first open dimension of a signature is the batch, the second the cache.
            sizes = iter((num_rows, cache_size))
            return tf.zeros([next(sizes) if size is None else size for size in spec.shape], spec.dtype)

        with tf.device(self._device):
            self._draws[True]()(*tf.nest.map_structure(zeros, self._signature))
        self.shapes.add((num_rows, cache_size))

    def _draw(self, run_block, state, request):
        self.num_traces += 1
        gpt, config, stop = self.gpt, self.config, self.config.stop_audio_token
        # The start code is never sampled, because it is not audio.
        never = tf.range(config.num_audio_tokens) == config.start_audio_token
        num_rows, num_slots = tf.unstack(tf.shape(request.key_mask))
        codes = tf.fill((MOST_CODES, num_rows), stop)
        states = tf.zeros((MOST_CODES + 1, num_rows, config.width))
        slots = tf.range(num_slots)
        longest = gpt.audio_positions.shape[0] - 2

        def draw(i, codes, states, stopped, state):
            code = sample(tf.where(never, HIDDEN, state.logits), request.sampling, state.seen, request.noise[:, i])
            code = tf.where(stopped | (i >= request.left), stop, code)
            codes = tf.tensor_scatter_nd_update(codes, [[i]], code[None])
            states = tf.tensor_scatter_nd_update(states, [[i]], state.hidden[None])
            # Sentences that have stopped are also computed, but their results are ignored.
            index, position = tf.minimum(request.index + i, longest), request.position + i
            key_mask = request.key_mask | ((slots >= request.position) & (slots <= position))
            state = gpt.advance(code, index, position, key_mask, state, run_block)
            return i + 1, codes, states, stopped | (code == stop), state

        more = lambda i, codes, states, stopped, state: (i < request.steps) & ~tf.reduce_all(stopped)
        start = tf.constant(0), codes, states, request.left <= 0, state
        taken, codes, states, _, state = tf.while_loop(more, draw, start)
        return codes, tf.tensor_scatter_nd_update(states, [[taken]], state.hidden[None]), taken, state

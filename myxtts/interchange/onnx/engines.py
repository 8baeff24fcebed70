"""Samples audio codes with ONNX Runtime on a CPU, and chooses between ONNX Runtime and TensorFlow."""

import ctypes
import importlib.util
import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.config.model import ModelConfig
from myxtts.devices.machine import read_memory
from myxtts.inference.advancing import MOST_CODES, Request
from myxtts.inference.choices import ENGINES
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.onnx.graphs import build_drawing, build_reading
from myxtts.models.gpt import GPT, DecodingState

logger = logging.getLogger(__name__)


def choose_engine(weight_bytes: int) -> str:
    """Returns `onnx-float32` if its packages are installed, TensorFlow sees no GPU, and the usable memory is more than
    twice `weight_bytes`, the size of the weights. Otherwise, returns `tensorflow`."""
    installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    # ONNX Runtime copies the weights; as much memory again must remain for everything else.
    fits = 2 * weight_bytes < read_memory().usable
    return "onnx-float32" if installed and fits and not tf.config.get_visible_devices("GPU") else "tensorflow"


def load_synthesizer(folder: str | Path, which: str = "best", engine: str | None = None, **options) -> Synthesizer:
    """Loads a model with `Synthesizer.load`. `engine` is one of `ENGINES`; if it is None, `choose_engine` selects one.
    Raises `UserError` if the engine is unknown or its package is missing."""
    require(engine in (None, *ENGINES), "--engine", f"one of {', '.join(ENGINES)}", engine)
    synthesizer = Synthesizer.load(folder, which, **options)
    model = synthesizer.model
    engine = engine or choose_engine(4 * model.gpt.count_params())
    logger.info("Engine: %s", engine)
    synthesizer.make_steps = lambda name: OnnxSteps(model.gpt, model.config, ENGINES[name])
    return synthesizer.with_engine(engine)


class OnnxSteps:
    """Runs a copy of the GPT in ONNX Runtime. Has the same methods as `TensorflowSteps`, but uses NumPy arrays.

    Attention keys in a `DecodingState` have the shape `(B, heads, D, S)`. `draw` overwrites the cache of its argument
    `state`, so this state must not be used again. `weights` is `float32`, which gives the same codes as TensorFlow, or
    `int8`, which may give different codes. If `threads` is 0, ONNX Runtime uses all cores.
    """

    shapes = frozenset()
    """Shapes for which `draw` was compiled: none, because this engine compiles nothing."""

    def __init__(self, gpt: GPT, config: ModelConfig, weights: str, threads: int = 0):
        self.config, self._longest = config, int(gpt.audio_positions.shape[0]) - 1
        self._reading = build_reading(gpt, config, weights).session(threads)
        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).malloc_trim(0)  # frees the memory that building needed, a gigabyte for XTTS v2
        # Sorting a thousand scores is fastest in one thread.
        self._drawing = build_drawing(config).session(1)

    def read(self, latents: np.ndarray, text: np.ndarray, text_mask: np.ndarray) -> DecodingState:
        """Runs the GPT on prompts and returns the resulting state. For arguments, see `TensorflowSteps.read`."""
        config, rows = self.config, len(text)
        depth = config.width // config.heads
        keys = [np.zeros((rows, config.heads, depth, 1), np.float32)] * config.layers
        values = [np.zeros((rows, config.heads, 1, depth), np.float32)] * config.layers
        mask = np.pad(text_mask, ((0, 0), (config.num_latents, 1)), constant_values=True)
        mask = np.pad(mask, ((0, 0), (1, 0)))  # hides the only position of the empty cache
        code, index = np.full(rows, config.start_audio_token, np.int32), np.zeros(rows, np.int32)
        logits, hidden, *new = self._read(latents, text, code, index, mask, keys, values)
        return DecodingState(tuple(new[0::2]), tuple(new[1::2]), logits, hidden, np.zeros(logits.shape, bool))

    def _read(self, latents, text, code, index, mask, keys, values):
        arrays = dict(latents=latents, text=text, code=code[:, None], index=index, mask=mask)
        for number, (key, value) in enumerate(zip(keys, values)):
            arrays |= {f"keys_{number}": key, f"values_{number}": value}
        return self._reading.run(None, arrays)

    def move(self, state: DecodingState, rows: list[int], kept: slice, padding: tuple[int, int]) -> DecodingState:
        """Returns the state of sentences `rows`. Keeps cache positions `kept`, padded with `(before, after)` zeros."""
        keys = tuple(np.pad(one[rows][..., kept], ((0, 0),) * 3 + (padding,)) for one in state.keys)
        values = tuple(np.pad(one[rows][:, :, kept], ((0, 0),) * 2 + (padding, (0, 0))) for one in state.values)
        return DecodingState(keys, values, *(np.take(part, rows, axis=0) for part in state[2:]))

    def join(self, state: DecodingState, other: DecodingState) -> DecodingState:
        """Concatenates the sentences of two states whose caches have the same size."""
        join = lambda one, two: np.concatenate([one, two])
        caches = (tuple(map(join, *layers)) for layers in zip(state[:2], other[:2]))
        return DecodingState(*caches, *map(join, state[2:], other[2:]))

    def compile(self, num_rows: int, cache_size: int) -> None:
        """Does nothing, because this engine compiles nothing."""

    def draw(self, state: DecodingState, request: Request) -> tuple[np.ndarray, np.ndarray, int, DecodingState]:
        """Samples up to `request.steps` codes for each sentence; returns the same values as `TensorflowSteps.draw`."""
        sampling = request.sampling._asdict()
        config, stop = self.config, self.config.stop_audio_token
        rows, position = len(request.key_mask), int(request.position)
        keys, values, logits, hidden, seen = state
        codes = np.full((MOST_CODES, rows), stop, np.int32)
        states = np.zeros((MOST_CODES + 1, rows, config.width), np.float32)
        mask = np.pad(request.key_mask, ((0, 0), (0, 1)), constant_values=True)
        nothing = np.zeros((rows, 0, config.width), np.float32), np.zeros((rows, 0), np.int32)
        stopped, taken = request.left <= 0, 0
        while taken < request.steps and not stopped.all():
            noise = np.ascontiguousarray(request.noise[:, taken])
            code, seen = self._drawing.run(None, dict(logits=logits, noise=noise, seen=seen, **sampling))
            code = np.where(stopped | (taken >= request.left), np.int32(stop), code)
            codes[taken], states[taken] = code, hidden
            stopped = stopped | (code == stop)
            index = np.minimum(request.index + taken + 1, self._longest)
            logits, hidden, *new = self._read(*nothing, code, index, mask, keys, values)
            row = position + taken
            for layer in range(config.layers):
                keys[layer][..., row] = new[2 * layer][..., 0]
                values[layer][:, :, row] = new[2 * layer + 1][:, :, 0]
            mask[:, row] = True
            taken += 1
        states[taken] = hidden
        return codes, states, taken, DecodingState(keys, values, logits, hidden, seen)

"""Texts and voices -> streams of audio codes, drawn together. Knows neither text nor sound."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from myxtts.config.config import ModelConfig, SamplingConfig
from myxtts.inference.advancing import MOST_CODES, Advance, Repack, Request, RowState
from myxtts.inference.compilation import Compilation
from myxtts.interchange.onnx.steps import OnnxSteps
from myxtts.models.gpt import GPT
from myxtts.models.sampling import SamplingValues, gumbel_noise

logger = logging.getLogger(__name__)

MOST_ROWS = 8
"""Rows that advance together: more would take memory, and each would wait longer for its next code."""
FIRST_STEPS = 4
"""Codes drawn at a time for a row that is waited for, until it has `FIRST_CODES`."""
FIRST_CODES = 8
"""Codes of the first sound: as many as a window of it needs ahead, and a few more."""
CACHE_SIZES = (64, 128, 192, 256, 384, 512, 640, 768, 1024)
"""Rows of cache that a batch may have; beyond the last one, multiples of 256."""


def mark_text(ids: Sequence[int], config: ModelConfig) -> list[int]:
    """`[START]`, the ids, `[STOP]`: a text as the GPT reads it."""
    return [config.start_text_token, *ids, config.stop_text_token]


@dataclass(eq=False)
class CodeStream:
    """The codes of one sentence, as far as they are drawn. `cancel` frees its row before the next codes."""

    ids: list[int]
    """Text ids, without marks."""
    voice_latents: np.ndarray
    """`(1, num_latents, width)`."""
    sampling: SamplingConfig
    seed: int
    sentence: int
    """Number of the sentence within its text."""
    max_codes: int
    """Most codes that it may have."""
    hurry: bool
    """Whether its first codes are waited for."""
    codes: list[int] = field(default_factory=list)
    """Without the stop code."""
    states: list[np.ndarray] = field(default_factory=list)
    """`(n, width)` float32 each: the states that predict the codes, and once `finished` the one after the last code."""
    stopped: bool = False
    """Whether it ended by itself and not at `max_codes`."""
    finished: bool = False
    cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Says that nobody waits for more."""
        self.cancelled = True

    @property
    def active(self) -> bool:
        """Whether more codes are to be drawn."""
        return not (self.finished or self.cancelled)

    def latents(self) -> np.ndarray:
        """All `states`, `(n, width)`; of a finished stream one more than there are codes."""
        self.states = [np.concatenate(self.states)]
        return self.states[0]

    def drawn(self) -> tuple[list[int], np.ndarray, bool]:
        """Codes, `latents()` and whether it is `finished`, while another thread may add to it."""
        with self._lock:
            return list(self.codes), self.latents(), self.finished

    def take(self, codes: np.ndarray, states: np.ndarray, taken: int, stop: int) -> None:
        """Adds what one call of `Advance` gave for this row."""
        left = self.max_codes - len(self.codes)
        drawn = codes[:taken].tolist()
        count = min(drawn.index(stop) if stop in drawn else taken, left)
        with self._lock:
            self.stopped = count < min(taken, left)
            self.finished = self.stopped or count == left
            self.codes += drawn[:count]
            self.states.append(states[: count + self.finished].copy())


class CodeEngine:
    """Draws the codes of many sentences, up to `MOST_ROWS` at a time.

    Streams join, leave and are cancelled between calls of `advance`. A stream's codes are a function of its text,
    voice, sampling values, seed and sentence number; who else is being drawn changes them no more than rounding does.

    Any number of threads may open streams and wait for them: whoever waits first advances all of them, and is alone
    with the model meanwhile (`owned`).

    Args:
        compiled: Whether XLA compiles the draws; `None` leaves it to the rule of `Compilation`.
        onnx_steps: What reads and draws instead of TensorFlow.
        traced: Whether reading a text is a graph; as in `Synthesizer`.

    Attributes:
        compiles_aside: Whether XLA compiles in a thread of its own, while rows are drawn as before, for a process that
            many wait for. One that ends soon would wait for that thread at its end.
    """

    def __init__(
        self,
        gpt: GPT,
        config: ModelConfig,
        compiled: bool | None = None,
        onnx_steps: OnnxSteps | None = None,
        traced: bool = True,
    ):
        self.gpt, self.config, self.compiled = gpt, config, compiled if onnx_steps is None else False
        self.compilation = Compilation()
        if onnx_steps is None:
            self.draw, self._repack, self._prefill = Advance(gpt, config), Repack(gpt, config), self._read_prompts
        else:
            self.draw, self._repack, self._prefill = onnx_steps, onnx_steps, onnx_steps.read
        if onnx_steps is None and traced:
            latents = tf.TensorSpec([None, config.num_latents, config.width], tf.float32)
            text, mask = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.bool)
            self._prefill = tf.function(self._read_prompts, input_signature=[latents, text, mask], autograph=False)
        self._waiting: deque[CodeStream] = deque()
        self._rows: list[CodeStream] = []
        self._state: RowState | None = None
        self._mask, self._filled = np.zeros((0, 0), bool), 0
        self._shape, self._compiled = (0, 0), False
        self._free, self._owner = threading.Condition(), None
        self.compiles_aside, self._compiler = False, None

    def open(
        self,
        ids: list[int],
        voice_latents: np.ndarray,
        sampling: SamplingConfig,
        seed: int = 0,
        sentence: int = 0,
        max_codes: int = 0,
        hurry: bool = False,
    ) -> CodeStream:
        """Queues a sentence; `max_codes` 0 takes the model's limit. See `CodeStream` for the rest."""
        most = self.config.max_codes
        limit = min(max_codes or most, most)
        stream = CodeStream(ids, voice_latents, sampling, int(seed), sentence, limit, hurry)
        self._waiting.append(stream)
        return stream

    def reopen(self, stream: CodeStream, attempt: int) -> CodeStream:
        """Queues a sentence once more; each `attempt`, 1 or more, has noise of its own."""
        sentence = stream.sentence % 2**32 + attempt * 2**32
        given = stream.ids, stream.voice_latents, stream.sampling, stream.seed
        return self.open(*given, sentence, stream.max_codes, stream.hurry)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """While the block runs, the calling thread is alone with the model."""
        with self._free:
            self._free.wait_for(lambda: self._owner is None)
            self._owner = threading.get_ident()
        with self._release():
            yield

    @contextmanager
    def _release(self):
        try:
            yield
        finally:
            with self._free:
                self._owner = None
                self._free.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Returns once `ready()` holds; meanwhile this thread, or another one that waits, advances the streams."""
        while True:
            with self._free:
                self._free.wait_for(lambda: ready() or self._owner is None)
                if ready():
                    return
                self._owner = threading.get_ident()
            with self._release():
                self.advance()

    def finish(self, streams: Sequence[CodeStream]) -> None:
        """Draws `streams` to their ends; those of them that are left when an error comes are cancelled."""
        try:
            self.wait(lambda: not any(stream.active for stream in streams))
        finally:
            for stream in streams:
                stream.cancel()

    def advance(self) -> int:
        """Lets rows leave and join, draws up to `MOST_CODES` codes for each, and returns the number of rows.

        To be called by the owner of the model alone.
        """
        self._settle()
        rows = self._rows
        if not rows:
            return 0
        hurry = any(row.hurry and len(row.codes) < FIRST_CODES for row in rows)
        steps = FIRST_STEPS if hurry else MOST_CODES
        request = self._request(steps)
        compiles, began = self._compiled and self._shape not in self.draw.shapes, time.perf_counter()
        codes, states, taken, state = self.draw(self._state, request, self._compiled)
        codes, states, taken = np.asarray(codes), np.asarray(states), int(taken)
        seconds = None if compiles or taken < MOST_CODES else time.perf_counter() - began
        self.compilation.count(self._shape, taken, self._compiled, seconds)
        self._state, self._filled = state, self._filled + taken
        self._mask[:, self._filled - taken : self._filled] = True
        for number, row in enumerate(rows):
            row.take(codes[:, number], states[:, number], taken, self.config.stop_audio_token)
        return len(rows)

    def compile_all(self) -> None:
        """Compiles the draws for every shape of batch up to `MOST_ROWS`; takes seconds for each.

        To be called by the owner of the model alone. Steps in ONNX Runtime have nothing to compile.
        """
        if isinstance(self.draw, OnnxSteps):
            return
        config = self.config
        prompt, size = config.num_latents + 3, 0
        most = prompt + config.max_text_tokens + config.max_codes + MOST_CODES
        while size < most:
            size = _cache_size(max(prompt + MOST_CODES, size + 1))
            for num_rows in (1 << bits for bits in range(MOST_ROWS.bit_length())):
                self._compile(num_rows, size)

    def _compile(self, num_rows, size):
        config, scores = self.config, (num_rows, self.config.num_audio_tokens)
        caches = (tf.zeros((num_rows, config.heads, size, config.width // config.heads), self.gpt.compute_dtype),)
        caches, hidden = caches * config.layers, tf.zeros((num_rows, config.width))
        state = RowState(caches, caches, tf.zeros(scores), hidden, tf.zeros(scores, tf.bool))
        none, ones = tf.zeros(num_rows, tf.int32), tf.ones((num_rows, 1))
        values = SamplingValues(ones, tf.ones((num_rows, 1), tf.int32), ones, ones)
        noise, nothing = tf.zeros((num_rows, MOST_CODES, scores[1])), tf.zeros((num_rows, size), tf.bool)
        self.draw(state, Request(nothing, tf.constant(0), none, none, values, noise, tf.constant(0)), True)

    def _settle(self):
        """Takes out the rows that are done, takes in those that wait, and makes room for the next codes."""
        kept = [number for number, row in enumerate(self._rows) if row.active]
        joining: list[CodeStream] = []
        while self._waiting and len(kept) + len(joining) < MOST_ROWS:
            stream = self._waiting.popleft()
            if stream.active:
                joining.append(stream)
        fits = self._mask.shape[1] >= self._filled + MOST_CODES
        if fits and not joining and len(kept) == len(self._rows):
            return
        rows = [self._rows[number] for number in kept] + joining
        if not rows:
            self._rows, self._state, self._mask, self._filled = [], None, np.zeros((0, 0), bool), 0
            return
        parts = []
        if kept:
            mask = self._mask[kept, : self._filled]
            parts.append((self._state, mask[:, int(mask.any(axis=0).argmax()) :], kept))
        try:
            if joining:
                state, mask = self._read(joining)
                parts.append((state, mask, list(range(len(joining)))))
            self._pack(parts, any(row.hurry for row in rows))
        except BaseException:
            self._waiting.extendleft(reversed(joining))  # those of other threads are still waited for
            raise
        self._rows = rows

    def _read(self, joining):
        """Reads the prompts of new rows: their state, and what each may see of it, `(B, P)`."""
        texts = [mark_text(stream.ids, self.config) for stream in joining]
        text = np.zeros((len(texts), max(map(len, texts))), np.int32)
        text_mask = np.zeros(text.shape, bool)
        for row, ids in enumerate(texts):
            text[row, : len(ids)], text_mask[row, : len(ids)] = ids, True
        latents = np.concatenate([stream.voice_latents for stream in joining])
        state = self._prefill(latents, text, text_mask)
        return state, np.pad(text_mask, ((0, 0), (self.config.num_latents, 1)), constant_values=True)

    def _read_prompts(self, latents, text, text_mask):
        logits, hidden, cache = self.gpt.prefill(latents, text, text_mask, self.config.start_audio_token, 0)
        return RowState(cache.keys, cache.values, logits, hidden, tf.zeros(tf.shape(logits), tf.bool))

    def _pack(self, parts, hurry):
        """Makes one state of the rows of several, each `(state, mask (B, F), rows)`, which end at the same place.

        Keys know their position by themselves, so a row's may be moved as one likes within the cache.
        """
        filled = max(mask.shape[1] for _, mask, _ in parts)
        size = _cache_size(filled + MOST_CODES)
        num_rows = sum(len(rows) for *_, rows in parts)
        shape = (1 << (num_rows - 1).bit_length(), size)
        compiled = self.compiled
        if compiled is None:
            is_compiled, hurry = shape in self.draw.shapes, hurry and not self.compiles_aside
            compiled = self.compilation.wants_xla(shape, is_compiled, hurry)
            if compiled and not is_compiled and self.compiles_aside:
                self._compile_aside(shape)
                compiled = False
        padded = shape[0] if compiled else num_rows

        new_mask, row, moved = np.zeros((padded, size), bool), 0, []
        for state, mask, rows in parts:
            count, end = mask.shape[1], self._filled if state is self._state else mask.shape[1]
            new_mask[row : row + len(mask), filled - count : filled] = mask
            row += len(mask)
            if row == num_rows:
                rows = rows + rows[:1] * (padded - num_rows)  # stopped from the start: any row will do
            moved.append(self._repack.move(state, rows, end - count, end, filled - count, size - filled))
        self._state = moved[0] if len(moved) == 1 else self._repack.join(*moved)
        self._mask, self._filled, self._shape, self._compiled = new_mask, filled, shape, compiled

    @property
    def is_compiling(self) -> bool:
        """Whether XLA compiles aside."""
        return self._compiler is not None and self._compiler.is_alive()

    def _compile_aside(self, shape):
        def compile_shape():
            try:
                self._compile(*shape)
                self.compilation.time_anew(shape)
            except Exception as error:
                self.compilation.give_up(shape)
                plain = f"{shape[0]} rows with {shape[1]} places of cache are drawn without it from now on"
                logger.warning("XLA could not compile: %s. %s: %s", plain, type(error).__name__, error)

        if not self.is_compiling:
            self._compiler = threading.Thread(target=compile_shape, name="compiler")
            self._compiler.start()

    def _request(self, steps):
        rows, (num_rows, _) = self._rows, self._mask.shape
        noise = np.zeros((num_rows, MOST_CODES, self.config.num_audio_tokens), np.float32)
        index, left = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        for number, row in enumerate(rows):
            index[number], left[number] = len(row.codes), row.max_codes - len(row.codes)
            if row.sampling.temperature:
                noise[number, :steps] = gumbel_noise(row.seed, row.sentence, len(row.codes), steps, noise.shape[2])
        sampled = [row.sampling for row in rows] + [rows[0].sampling] * (num_rows - len(rows))
        columns = ([[getattr(one, name)] for one in sampled] for name in SamplingValues._fields)
        dtypes = (np.int32 if name == "top_k" else np.float32 for name in SamplingValues._fields)
        values = SamplingValues(*(tf.constant(column, dtype) for column, dtype in zip(columns, dtypes)))
        arrays = (tf.constant(value) for value in (self._mask, np.int32(self._filled), index, left))
        return Request(*arrays, values, tf.constant(noise), tf.constant(steps))


def _cache_size(least: int) -> int:
    return next((size for size in CACHE_SIZES if size >= least), -(-least // 256) * 256)

"""Texts and voices -> streams of audio codes, drawn together by one thread. Knows neither text nor audio."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from myxtts.config.config import ModelConfig, SamplingConfig
from myxtts.inference.advancing import MOST_CODES, Request, RowState, TensorflowSteps
from myxtts.models.sampling import SamplingValues, gumbel_noise

logger = logging.getLogger(__name__)

MOST_ROWS = 8
"""Rows that advance together: more would take memory, and each would wait longer for its next code."""
FIRST_STEPS = 4
"""Codes drawn at a time for a row that is waited for, until it has `FIRST_CODES`."""
FIRST_CODES = 8
"""Codes of the first sound: as many as a window of it needs ahead, and a few more."""
IDLE_SECONDS = 0.2
"""How long the engine's thread waits for more before it ends; the next stream starts another."""
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
    error: BaseException | None = None
    """What ended it, if the draws failed."""
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
    """Draws the codes of many sentences, up to `MOST_ROWS` at a time, in a thread of its own.

    Streams join, leave and are cancelled between two draws. A stream's codes are a function of its text, voice,
    sampling values, seed and sentence number; the other streams change them by rounding at most. Any number of threads
    may open streams and wait for them. The thread ends when there is nothing to draw.

    Args:
        steps: What reads prompts and draws codes; `OnnxSteps` serves as well. May be replaced while nothing is drawn.

    Attributes:
        changed: Notified after each draw. Whoever holds it keeps the next draw from beginning: streams opened meanwhile
            are first drawn together, so that batches are reproducible.
    """

    def __init__(self, steps: TensorflowSteps, config: ModelConfig):
        self.steps, self.config = steps, config
        self.changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: deque[CodeStream] = deque()
        self._rows: list[CodeStream] = []
        self._state: RowState | None = None
        self._mask, self._filled = np.zeros((0, 0), bool), 0

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
        with self.changed:
            self._waiting.append(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine")
                self._thread.start()
            self.changed.notify_all()
        return stream

    def wait(self, ready: Callable[[], bool]) -> None:
        """Returns once `ready()` holds, which is asked after each draw."""
        with self.changed:
            self.changed.wait_for(ready)

    def finish(self, streams: Sequence[CodeStream]) -> None:
        """Waits for the ends of `streams`; those that are left when an error comes are cancelled.

        Raises:
            Exception: What the draws failed with.
        """
        try:
            self.wait(lambda: not any(stream.active for stream in streams))
        finally:
            for stream in streams:
                stream.cancel()
        for stream in streams:
            if stream.error is not None:
                raise stream.error

    def compile_all(self) -> None:
        """Compiles the draws for every shape of batch up to `MOST_ROWS`, where XLA draws; takes seconds for each."""
        prompt, size = self.config.num_latents + 3, 0
        most = prompt + self.config.max_text_tokens + self.config.max_codes + MOST_CODES
        while size < most:
            size = _cache_size(max(prompt + MOST_CODES, size + 1))
            for bits in range(MOST_ROWS.bit_length()):
                self.steps.compile(1 << bits, size)

    def _run(self):
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: self._waiting or self._rows, IDLE_SECONDS):
                    self._thread = None
                    return
            try:
                self._advance()
            except BaseException as error:  # those who wait for the codes raise it
                with self.changed:
                    for stream in (*self._rows, *self._waiting):
                        stream.error = error
                        stream.cancel()
                    self._waiting.clear()
                self._clear()
            with self.changed:
                self.changed.notify_all()

    def _clear(self):
        self._rows, self._state, self._mask, self._filled = [], None, np.zeros((0, 0), bool), 0

    def _advance(self):
        """Lets rows leave and join, and draws up to `MOST_CODES` codes for each."""
        self._settle()
        if not self._rows:
            return
        hurry = any(row.hurry and len(row.codes) < FIRST_CODES for row in self._rows)
        codes, states, taken, state = self.steps.draw(self._state, self._request(FIRST_STEPS if hurry else MOST_CODES))
        codes, states, taken = np.asarray(codes), np.asarray(states), int(taken)
        self._state, self._filled = state, self._filled + taken
        self._mask[:, self._filled - taken : self._filled] = True
        for number, row in enumerate(self._rows):
            row.take(codes[:, number], states[:, number], taken, self.config.stop_audio_token)

    def _settle(self):
        """Takes out the rows that are done, takes in those that wait, and makes room for the next codes."""
        kept = [number for number, row in enumerate(self._rows) if row.active]
        joining: list[CodeStream] = []
        with self.changed:
            while self._waiting and len(kept) + len(joining) < MOST_ROWS:
                stream = self._waiting.popleft()
                if stream.active:
                    joining.append(stream)
        fits = self._mask.shape[1] >= self._filled + MOST_CODES
        if fits and not joining and len(kept) == len(self._rows):
            return
        parts = []
        if kept:
            mask = self._mask[kept, : self._filled]
            parts.append((self._state, mask[:, int(mask.any(axis=0).argmax()) :], kept))
        self._rows = [self._rows[number] for number in kept] + joining
        if not self._rows:
            self._clear()
            return
        if joining:
            state, mask = self._read(joining)
            parts.append((state, mask, list(range(len(joining)))))
        self._pack(parts)

    def _read(self, joining):
        """Reads the prompts of new rows: their state, and what each may see of it, `(B, P)`."""
        texts = [mark_text(stream.ids, self.config) for stream in joining]
        text = np.zeros((len(texts), max(map(len, texts))), np.int32)
        text_mask = np.zeros(text.shape, bool)
        for row, ids in enumerate(texts):
            text[row, : len(ids)], text_mask[row, : len(ids)] = ids, True
        latents = np.concatenate([stream.voice_latents for stream in joining])
        state = self.steps.read(latents, text, text_mask)
        return state, np.pad(text_mask, ((0, 0), (self.config.num_latents, 1)), constant_values=True)

    def _pack(self, parts):
        """Makes one state of the rows of several, each `(state, mask (B, F), rows)`, which end at the same place.

        Keys know their position by themselves, so a row's may be moved as one likes within the cache.
        """
        filled = max(mask.shape[1] for _, mask, _ in parts)
        size = _cache_size(filled + MOST_CODES)
        num_rows = sum(len(rows) for *_, rows in parts)
        power = 1 << (num_rows - 1).bit_length()
        padded = power if self.steps.is_compiled(power, size) else num_rows

        new_mask, row, moved = np.zeros((padded, size), bool), 0, []
        for state, mask, rows in parts:
            count, end = mask.shape[1], self._filled if state is self._state else mask.shape[1]
            new_mask[row : row + len(mask), filled - count : filled] = mask
            row += len(mask)
            if row == num_rows:
                rows = rows + rows[:1] * (padded - num_rows)  # stopped from the start: any row will do
            moved.append(self.steps.move(state, rows, end - count, end, filled - count, size - filled))
        self._state = moved[0] if len(moved) == 1 else self.steps.join(*moved)
        self._mask, self._filled = new_mask, filled

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
        values = SamplingValues(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes)))
        return Request(self._mask, np.int32(self._filled), index, left, values, noise, np.int32(steps))


def _cache_size(least: int) -> int:
    return next((size for size in CACHE_SIZES if size >= least), -(-least // 256) * 256)

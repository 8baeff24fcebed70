"""Samples audio codes from text tokens and voice latents, in batches of sentences, in one background thread."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import keras
import numpy as np

from myxtts.config.config import ModelConfig, SamplingConfig
from myxtts.inference.advancing import MOST_CODES, Request, TensorflowSteps
from myxtts.inference.windows import FIRST_CODES, gumbel_noise
from myxtts.models.gpt import DecodingState, SamplingValues

logger = logging.getLogger(__name__)

MOST_ROWS = 8
"""Maximum number of sentences in a batch; larger batches need more memory and are slower per code."""
FIRST_STEPS = 4
"""Codes per `draw` call if any sentence with `hurry` has fewer than `FIRST_CODES` codes, so that audio starts early."""
CACHE_SIZES = (64, 128, 192, 256, 384, 512, 640, 768, 1024)
"""Sizes of the key-value cache, in positions. Larger sizes are multiples of 256. XLA compiles `draw` for each size."""


def mark_text(ids: Sequence[int], config: ModelConfig) -> list[int]:
    """Returns the text input of the GPT: the start token, then `ids`, then the stop token."""
    return [config.start_text_token, *ids, config.stop_text_token]


@dataclass(eq=False)
class CodeStream:
    """Request to sample the codes of one sentence, and the codes sampled so far."""

    ids: list[int]
    """Text token ids, without start and stop token."""
    voice_latents: np.ndarray
    """Conditioning latents of the voice, `(1, num_latents, width)`."""
    sampling: SamplingConfig
    seed: int = 0
    sentence: int = 0
    """Index of the sentence in its text; together with `seed`, it determines the random numbers."""
    max_codes: int = 0
    """Maximum number of codes; 0 means the model's limit."""
    hurry: bool = False
    """Whether to sample the first codes in short calls, so that the audio starts early."""
    codes: list[int] = field(default_factory=list)
    """Sampled codes, without the stop code."""
    states: list[np.ndarray] = field(default_factory=list)
    """GPT latents in arrays `(n, width)` float32: one latent per code, and one more at the end if `finished`."""
    stopped: bool = False
    """Whether the model predicted the stop code within `max_codes`."""
    finished: bool = False
    cancelled: bool = False
    """Whether `cancel` or an error ended the sampling. The engine removes a cancelled sentence from the batch."""
    error: BaseException | None = None
    """Exception in the engine's thread that ended the stream, if any."""
    _num_seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Ends the sampling of the sentence. Any thread may call this."""
        self.cancelled = True

    @property
    def active(self) -> bool:
        """Whether the stream is neither finished nor cancelled."""
        return not (self.finished or self.cancelled)

    @property
    def is_ready(self) -> bool:
        """Whether the stream has ended, or codes were sampled since the last call of `drawn`."""
        return not self.active or len(self.codes) > self._num_seen

    def latents(self) -> np.ndarray:
        """Joins the arrays in `states` into one array `(n, width)`, and returns this array."""
        self.states = [np.concatenate(self.states)]
        return self.states[0]

    def drawn(self) -> tuple[list[int], np.ndarray, bool]:
        """Returns a consistent snapshot `(codes, latents(), finished)`, even while the engine is sampling."""
        with self._lock:
            self._num_seen = len(self.codes)
            return list(self.codes), self.latents(), self.finished

    def take(self, codes: np.ndarray, states: np.ndarray, taken: int, stop: int) -> None:
        """Appends `codes[:taken]` and their latents `states[:taken]`. `codes` is `(n,)`; `states` is `(n + 1, width)`.
        At the stop code `stop` (not appended) or `max_codes` codes, appends one more latent and ends the stream."""
        left = self.max_codes - len(self.codes)
        drawn = codes[:taken].tolist()
        count = min(drawn.index(stop) if stop in drawn else taken, left)
        with self._lock:
            self.stopped = count < min(taken, left)
            self.finished = self.stopped or count == left
            self.codes += drawn[:count]
            self.states.append(states[: count + self.finished].copy())


class CodeEngine:
    """Samples the codes of up to `MOST_ROWS` sentences as a batch, in a background thread. Thread-safe.

    Streams join and leave the batch between two calls of `steps.draw`. The codes of a stream depend on its text, voice,
    sampling values, seed and sentence index. Other streams in the batch affect only the rounding. The attribute
    `steps`, a `TensorflowSteps` or `OnnxSteps`, may be replaced while the engine is idle.

    Attributes:
        changed: Condition that is notified after each call of `steps.draw`. No stream joins the batch while a thread
            holds the condition. For reproducible batches, hold the condition while you open several streams.
    """

    def __init__(self, steps: TensorflowSteps, config: ModelConfig):
        self.steps, self.config = steps, config
        self.changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: list[CodeStream] = []
        self._clear()

    def open(self, *wish, **options) -> CodeStream:
        """Queues a sentence and returns its stream. Takes the arguments of `CodeStream` from `ids` to `hurry`."""
        stream, limit = CodeStream(*wish, **options), self.config.max_codes
        stream.max_codes = min(stream.max_codes or limit, limit)
        with self.changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="engine")
                thread.start()  # if this fails, the next call of `open` tries again
                self._thread = thread
            self._waiting.append(stream)
            self.changed.notify_all()
        return stream

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready()` returns True. Calls `ready` again after each call of `steps.draw`."""
        with self.changed:
            self.changed.wait_for(ready)

    def finish(self, streams: Sequence[CodeStream]) -> None:
        """Waits until all `streams` end; Ctrl-C cancels them. Raises the exception that ended a stream, if any."""
        try:
            self.wait(lambda: not any(stream.active for stream in streams))
        finally:
            for stream in streams:
                stream.cancel()
        for stream in streams:
            if stream.error is not None:
                raise stream.error

    def compile_all(self) -> None:
        """Compiles the sampling for every batch shape, which takes seconds per shape."""
        prompt, size = self.config.num_latents + 3, 0
        most = prompt + self.config.max_text_tokens + self.config.max_codes + MOST_CODES
        while size < most:
            size = _cache_size(max(prompt + MOST_CODES, size + 1))
            for bits in range(MOST_ROWS.bit_length()):
                self.steps.compile(1 << bits, size)

    def _run(self):
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: self._waiting or self._rows, 0.2):  # idle for 0.2 s
                    self._thread = None
                    return
            try:
                self._advance()
            except BaseException as error:  # re-raised in the threads that wait for codes
                with self.changed:
                    for stream in (*self._rows, *self._waiting):
                        stream.error, stream.cancelled = error, True
                    self._waiting = []
                self._clear()
            with self.changed:
                self.changed.notify_all()

    def _clear(self):
        self._rows: list[CodeStream] = []
        self._state: DecodingState | None = None
        self._mask, self._filled = np.zeros((0, 0), bool), 0

    def _advance(self):
        """Updates the batch, then samples up to `MOST_CODES` codes for each sentence in it."""
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
        """Updates the batch: removes ended sentences, adds queued ones, and enlarges the cache if it is too small."""
        kept = [number for number, row in enumerate(self._rows) if row.active]
        with self.changed:
            waiting = [stream for stream in self._waiting if stream.active]
            joining, self._waiting = waiting[: MOST_ROWS - len(kept)], waiting[MOST_ROWS - len(kept) :]
        if self._mask.shape[1] >= self._filled + MOST_CODES and not joining and len(kept) == len(self._rows):
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
        """Runs the GPT on the prompts of B new sentences. Returns the state, and the key mask `(B, prompt length)`."""
        texts = [mark_text(stream.ids, self.config) for stream in joining]
        text = keras.utils.pad_sequences(texts, padding="post")
        text_mask = np.arange(text.shape[1]) < np.array([len(ids) for ids in texts])[:, None]
        state = self.steps.read(np.concatenate([stream.voice_latents for stream in joining]), text, text_mask)
        return state, np.pad(text_mask, ((0, 0), (self.config.num_latents, 1)), constant_values=True)

    def _pack(self, parts):
        """Makes one batch from `parts`. Each part is `(state, key mask (B, F), rows to keep)`, with F filled cache
        positions. Shifts the filled positions so that they end at the same position in all caches."""
        # Position embeddings are part of the GPT's input, so keys may move within the cache.
        filled = max(mask.shape[1] for _, mask, _ in parts)
        size = _cache_size(filled + MOST_CODES)
        num_rows = sum(len(rows) for *_, rows in parts)
        power = 1 << (num_rows - 1).bit_length()
        padded = power if (power, size) in self.steps.shapes else num_rows

        new_mask, row, moved = np.zeros((padded, size), bool), 0, []
        for state, mask, rows in parts:
            count = mask.shape[1]
            end = self._filled if state is self._state else count
            new_mask[row : row + len(mask), filled - count : filled] = mask
            row += len(mask)
            if row == num_rows:
                rows = rows + rows[:1] * (padded - num_rows)  # padding: rows for which `Request.left` is 0
            moved.append(self.steps.move(state, rows, slice(end - count, end), (filled - count, size - filled)))
        self._state = moved[0] if len(moved) == 1 else self.steps.join(*moved)
        self._mask, self._filled = new_mask, filled

    def _request(self, steps):
        rows, num_rows = self._rows, len(self._mask)
        noise = np.zeros((num_rows, MOST_CODES, self.config.num_audio_tokens), np.float32)
        index, left = np.zeros((2, num_rows), np.int32)
        for number, row in enumerate(rows):
            index[number], left[number] = len(row.codes), row.max_codes - len(row.codes)
            if row.sampling.temperature:
                noise[number, :steps] = gumbel_noise(row.seed, row.sentence, len(row.codes), steps, noise.shape[2])
        sampled = [row.sampling for row in rows] + [rows[0].sampling] * (num_rows - len(rows))
        dtypes = SamplingValues(np.float32, np.int32, np.float32, np.float32)._asdict()
        values = [np.array([[getattr(one, name)] for one in sampled], dtype) for name, dtype in dtypes.items()]
        return Request(self._mask, np.int32(self._filled), index, left, SamplingValues(*values), noise, np.int32(steps))


def _cache_size(least: int) -> int:
    return next((size for size in CACHE_SIZES if size >= least), -(-least // 256) * 256)

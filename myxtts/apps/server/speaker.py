"""Queue of texts to synthesize, and the thread that synthesizes several of the texts simultaneously."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from myxtts.apps.server.gate import ApiError, Model
from myxtts.apps.server.voices import ServedVoice, VoiceBook
from myxtts.config.checks import UserError, read_toml
from myxtts.config.config import SamplingConfig
from myxtts.inference.speech import Manner, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.text_stream import SpeechStream

logger = logging.getLogger(__name__)
_stopping = partial(ApiError, 503, "The server is stopping.", code="stopping", retry_after_seconds=5)

MOST_ROWS = 8
"""Maximum number of sentences in the GPT's batch (see `code_engine.MOST_ROWS`). Also the default of `most_texts`."""
METRICS = read_toml(__file__, "metrics.toml")


class Metrics(dict):
    """Prometheus metrics by name, in a separate registry. The gauges take their values from the function `load`."""

    def __init__(self, load: Callable[[], tuple[int, int, int]]):
        self.registry = CollectorRegistry()
        for kind, name in ((Counter, "counter"), (Gauge, "gauge"), (Histogram, "histogram")):
            for metric, options in METRICS[name].items():
                self[metric] = kind(f"myxtts_{metric}", registry=self.registry, **options)
        for index, name in enumerate(METRICS["gauge"]):
            self[name].set_function(lambda index=index: load()[index])


@dataclass(eq=False)
class SpeechJob:
    """A text to speak, and its progress. The coroutine that submitted the job receives the audio by calling `next`."""

    silences: tuple[float, float]
    """Seconds of silence before the first piece and after the last piece."""
    pieces: list[Piece]
    """Pieces of the text; empty if the text has nothing to speak."""
    voices: VoiceBook
    voice: ServedVoice
    language: str
    sampling: SamplingConfig
    seed: int = 0
    speed: float = 1.0
    hurry: bool = True
    """Whether the client plays the audio while receiving it, so that the first audio should be ready soon."""
    id: str = ""
    arrived: float = field(default_factory=time.monotonic)
    begun: float | None = None
    """Monotonic time at which the text left the queue; None while it is waiting."""
    first_sound: float | None = None
    last_sound: float = 0.0
    """Monotonic time of the latest audio, 0 before the first. The job with the smallest value is decoded next."""
    num_samples: int = 0
    stream: SpeechStream | None = None
    cancelled: bool = False
    ended: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    _audio: asyncio.Queue = field(default_factory=asyncio.Queue)

    @property
    def num_codes(self) -> int:
        """Number of codes sampled so far."""
        return self.stream.num_codes if self.stream else 0

    def put(self, item: np.ndarray | Exception | None) -> None:
        """Queues samples `(S,)` float32, an error, or None (the end of the audio) for `next`. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._audio.put_nowait, item)

    async def next(self) -> np.ndarray | None:
        """Waits for and returns the next samples `(S,)`, or None at the end. Raises the error if the job failed."""
        item = await self._audio.get()
        if isinstance(item, Exception):
            raise item
        return item


class Speaker:
    """Synthesizes texts in order of arrival, up to `most_texts` simultaneously.

    The model's engine samples audio codes in one thread. A second thread, the speaker's, starts queued texts, decodes
    codes to audio (the first audio of a text has priority), and ends texts that were cancelled or exceed a time limit.
    While the engine's batch is not full, the next sentences of the running texts are sampled ahead.

    Args:
        max_waiting, queue_seconds: Maximum number of texts in the queue, and maximum time that a text waits in it.
        total_seconds: Time limit from arrival to the last audio.
        warm: Argument of `Synthesizer.warm_up`: `none`, `short` or `all`.
        device: Context manager in which the speaker's thread runs the model, such as `tf.device(…)`.
        most_texts: Maximum number of texts spoken simultaneously. An exported model does not batch them; it works on
            one text at a time, in turns.
    """

    def __init__(
        self,
        synthesizer: Model,
        max_waiting: int = 32,
        queue_seconds: float = 120.0,
        total_seconds: float = 600.0,
        warm: str = "short",
        device: AbstractContextManager = nullcontext(),
        most_texts: int = MOST_ROWS,
    ):
        self.synthesizer, self.max_waiting, self._most_texts = synthesizer, max_waiting, most_texts
        self.metrics: Metrics = Metrics(lambda: self.load)
        self._queue_seconds, self._total_seconds, self._warm, self._device = queue_seconds, total_seconds, warm, device
        self._waiting: deque[SpeechJob] = deque()
        self._running: list[SpeechJob] = []
        self._changed = synthesizer.engine.changed  # the engine's condition, which is also notified of new codes
        self._refusing, self._ended, self.warmed, self._num_starting = False, False, False, 0
        self._text_seconds = 5.0  # average time to speak a text, for the header `Retry-After` of rejections
        self._thread = threading.Thread(target=self._run, name="speaker", daemon=True)

    def start(self) -> None:
        """Starts the speaker's thread, which first warms up the model."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the warm-up is done and new texts are accepted."""
        return self.warmed and self.alive and not self._refusing

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def load(self) -> tuple[int, int, int]:
        """Numbers of queued texts, of texts being spoken, and of sentences being sampled."""
        with self._changed:
            speaking = len(self._running) + self._num_starting
            return len(self._waiting), speaking, sum(job.stream.num_rows for job in self._running)

    def submit(self, job: SpeechJob) -> None:
        """Queues a job. Must be called in a running event loop. A job without `pieces` outputs only silence.
        Raises `ApiError` if the queue is full (429) or the server is stopping (503)."""
        job.loop = asyncio.get_running_loop()
        with self._changed:
            if self._refusing:
                raise _stopping()
            if not job.pieces:
                job.ended = True
                job.put(silence(sum(job.silences), self.synthesizer.sample_rate))
                job.put(None)
                return
            if (waiting := len(self._waiting)) >= self.max_waiting + self._most_texts - len(self._running):
                seconds = max(1, math.ceil((waiting + len(self._running)) / self._most_texts * self._text_seconds))
                raise ApiError(
                    429, f"{waiting} texts are waiting. Try again in {seconds} s.", None, "queue_full", seconds
                )
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, job: SpeechJob) -> None:
        """Removes a job from the queue or, if its text is being spoken, stops it soon. Ignores a job that has ended."""
        with self._changed:
            job.cancelled = not job.ended
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics["cancelled"].inc()
            self._changed.notify_all()

    def refuse_more(self) -> None:
        """Rejects the queued texts and all later texts. Texts that are being spoken are finished."""
        with self._changed:
            self._refusing = True
            while self._waiting:
                self._waiting.popleft().put(_stopping())

    def stop(self) -> None:
        """Ends all texts, finished or not. The speaker's thread exits after its current call of the model."""
        self.refuse_more()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self):
        with self._device:
            try:
                self.synthesizer.warm_up(self._warm, check=False)
                self.warmed = True
                while self._wait_for_work():
                    try:
                        self._drop()
                        self._admit()
                        for job in sorted(self._running, key=lambda job: job.last_sound):
                            self._speak(job)
                            if self._ended or self._can_begin():
                                break
                    except Exception as error:  # later texts must be spoken nevertheless
                        logger.exception("An internal error ended all texts that were being spoken")
                        for job in list(self._running):
                            self._end(job, error)
            finally:
                self.refuse_more()
                for job in list(self._running):
                    self._end(job, _stopping())

    def _wait_for_work(self):
        """Waits until there are codes to decode, or a text to start or end. Returns False if `stop` was called."""
        can_go_on = lambda: any(job.cancelled or job.stream.ready() for job in self._running)
        has_work = lambda: self._ended or self._can_begin() or can_go_on()
        with self._changed:
            self._changed.wait_for(has_work, timeout=1.0 if self._running or self._waiting else None)
            return not self._ended

    def _can_begin(self):
        return bool(self._waiting) and len(self._running) < self._most_texts

    def _drop(self):
        """Ends the texts that were cancelled or have exceeded a time limit."""
        now = time.monotonic()
        for job in list(self._running):
            if job.cancelled:
                self._end(job)
            elif now - job.arrived > self._total_seconds:
                self._end(job, ApiError(503, f"The text took longer than {self._total_seconds:g} s.", code="timeout"))
        waited, retry = f"The text waited in the queue for {self._queue_seconds:g} s.", math.ceil(self._text_seconds)
        with self._changed:
            while self._waiting and now - self._waiting[0].arrived > self._queue_seconds:
                self._fail(self._waiting.popleft(), ApiError(503, waited, None, "queue_timeout", retry))

    def _admit(self):
        """Starts queued texts until `most_texts` run. Adds running texts' next sentences if the batch has room."""
        while len(self._running) < self._most_texts:
            with self._changed:
                if not self._waiting:
                    break
                job, self._num_starting = self._waiting.popleft(), 1
                # Short calls speed up the first audio, but delay queued texts by more than they save.
                hurry = job.hurry and not self._waiting
            job.begun = time.monotonic()
            try:
                voice = job.voices.load(job.voice)  # here, because it may have to encode a recording
                manner = Manner(voice, job.language, job.sampling, job.seed, job.speed)
                job.stream = SpeechStream(self.synthesizer, job.pieces, manner, hurry, check=False)
                job.stream.open()
            except Exception as error:
                self._num_starting = 0
                self._fail(job, error)
                continue
            with self._changed:
                self._num_starting = 0
                self._running.append(job)
        for job in sorted(self._running, key=lambda job: job.stream.num_rows):
            if sum(one.stream.num_rows for one in self._running) < MOST_ROWS:
                try:
                    job.stream.look_ahead()
                except Exception as error:
                    self._end(job, error)

    def _speak(self, job):
        try:
            samples = job.stream.more() if job.stream.ready() else ()
        except Exception as error:
            self._end(job, error)
            return
        if len(samples):
            if job.first_sound is None:
                job.first_sound = time.monotonic()
                samples = np.concatenate([silence(job.silences[0], self.synthesizer.sample_rate), samples])
                self.metrics["first_sound_seconds"].observe(job.first_sound - job.arrived)
            job.last_sound = time.monotonic()
            job.num_samples += len(samples)
            self.metrics["sound_seconds"].inc(len(samples) / self.synthesizer.sample_rate)
            job.put(samples)
        if job.stream.finished:
            self._end(job)

    def _end(self, job, error=None):
        """Ends a job. Sends `error`, or the end of the audio if there is no error, unless the job was cancelled."""
        job.stream.close()
        with self._changed:
            self._running.remove(job)
            job.ended = True
        self.metrics["codes"].inc(job.num_codes)
        if job.cancelled:
            self.metrics["cancelled"].inc()
        elif error is not None:
            self._fail(job, error)
        else:
            took = time.monotonic() - job.begun
            self._text_seconds += 0.1 * (took - self._text_seconds)
            self.metrics["texts"].inc()
            self.metrics["real_time_factor"].observe(took / max(job.num_samples / self.synthesizer.sample_rate, 1e-3))
            if job.silences[1]:
                job.put(silence(job.silences[1], self.synthesizer.sample_rate))
            job.put(None)

    def _fail(self, job, error):
        kind = error.code if isinstance(error, ApiError) else type(error).__name__
        self.metrics["errors"].labels(kind or "other").inc()
        # The message of a UserError may quote the text, which must not be logged.
        unexpected = None if isinstance(error, UserError | ApiError) else error
        logger.warning("A text was not spoken: %s", kind, exc_info=unexpected, extra={"fields": {"request_id": job.id}})
        job.put(error)

"""The queue of a server: texts wait in it, some are spoken at once, and their audio is handed out as it comes."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from myxtts.apps.server.errors import ApiError
from myxtts.apps.server.metrics import Metrics
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig
from myxtts.inference.code_engine import MOST_ROWS
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.text_stream import SpeechStream
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)

SECONDS_OF_A_TEXT = 5.0
"""What a text is taken to last before any was spoken, to tell those who find the queue full when to come again."""


@dataclass(eq=False)
class SpeechJob:
    """A text to be spoken. `tell` is called in the speaker's thread and must return at once.

    It is given samples `(S,)` float32 at the model's rate, and at last `None`, or the error that ended it.
    """

    text: str
    find_voice: Callable[[], Voice]
    """Called in the speaker's thread, as it may have to encode a recording."""
    tell: Callable[[np.ndarray | Exception | None], None]
    language: str = "en"
    sampling: SamplingConfig | None = None
    seed: int = 0
    speed: float = 1.0
    hurry: bool = True
    """Whether its first sound is waited for."""
    id: str = ""
    """For the log."""
    arrived: float = field(default_factory=time.monotonic)
    begun: float | None = None
    """When it left the queue."""
    first_sound: float | None = None
    num_samples: int = 0
    stream: SpeechStream | None = None
    cancelled: bool = False
    ended: bool = False

    @property
    def num_codes(self) -> int:
        """Codes drawn so far."""
        return self.stream.num_codes if self.stream else 0


class Speaker:
    """Speaks texts in the order of their arrival, up to `MOST_ROWS` of them at once.

    The engine's thread draws codes; the thread of this object makes audio of what is drawn, first audio first, lets
    texts that are cancelled or late leave, and lets others join. Sentences ahead of the one that is heard are drawn
    only in rows that nobody waits for.

    Args:
        max_waiting: Texts that may wait; `submit` refuses more.
        queue_seconds: How long a text may wait.
        total_seconds: How long after its arrival a text may be spoken.
        warm: As in `Synthesizer.warm_up`, done before the first text.
        device: The device scope of its thread.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        metrics: Metrics,
        max_waiting: int = 32,
        queue_seconds: float = 120.0,
        total_seconds: float = 600.0,
        warm: str = "short",
        device: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.synthesizer, self.metrics, self.max_waiting = synthesizer, metrics, max_waiting
        self._queue_seconds, self._total_seconds, self._warm, self._device = queue_seconds, total_seconds, warm, device
        self._waiting: deque[SpeechJob] = deque()
        self._running: list[SpeechJob] = []
        self._changed = synthesizer.engine.changed
        """The engine's own condition, so that this thread wakes for new codes and for new texts alike."""
        self._refusing, self._ended, self._warmed = False, False, False
        self._text_seconds = SECONDS_OF_A_TEXT
        self._thread = threading.Thread(target=self._run, name="speaker", daemon=True)

    def start(self) -> None:
        """Warms up and begins to speak, in a thread of its own."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether it is warm and takes texts."""
        return self._warmed and self.alive and not self._refusing

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def load(self) -> tuple[int, int, int]:
        """Texts in the queue, texts being spoken, and rows of the model in use."""
        with self._changed:
            running = list(self._running)
            return len(self._waiting), len(running), sum(job.stream.num_rows for job in running)

    def submit(self, job: SpeechJob) -> None:
        """Queues a text.

        Raises:
            ApiError: The queue is full (429), or the server stops (503).
        """
        with self._changed:
            if self._refusing or self._ended:
                raise _stopping()
            if len(self._waiting) >= self.max_waiting + MOST_ROWS - len(self._running):
                ahead = (len(self._waiting) + len(self._running)) / MOST_ROWS
                seconds = max(1, math.ceil(ahead * self._text_seconds))
                busy = f"{len(self._waiting)} texts are waiting already. Try again in {seconds} s."
                raise ApiError(429, busy, code="queue_full", retry_after_seconds=seconds)
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, job: SpeechJob) -> None:
        """Says that nobody listens to it any more; it leaves before the next codes. One that has ended may be given."""
        with self._changed:
            job.cancelled = not job.ended
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.cancelled.inc()
            self._changed.notify_all()

    def refuse_more(self) -> None:
        """Ends the queue; what is being spoken is spoken to its end."""
        with self._changed:
            self._refusing = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in left:
            job.tell(_stopping())

    def stop(self) -> None:
        """Ends the thread after the call of the model that it is in; what is still spoken then is broken off."""
        self.refuse_more()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread.ident:
            self._thread.join()

    def _run(self):
        with self._device():
            try:
                self.synthesizer.warm_up(self._warm, check=False)
                self._warmed = True
                while self._work_is_there():
                    try:
                        self._turn()
                    except Exception as error:  # whatever it is, the next texts are to be spoken
                        logger.exception("A text ended with an error of the server, and all others that were spoken")
                        for job in list(self._running):
                            self._end(job, error)
            finally:
                self._refusing = True
                for job in list(self._running):
                    self._end(job, _stopping())
                self.refuse_more()

    def _work_is_there(self):
        """Waits until there is audio to make or a text to begin or to end."""
        with self._changed:
            self._changed.wait_for(self._has_work, timeout=1.0 if self._running or self._waiting else None)
            return not self._ended

    def _has_work(self):
        can_begin = self._waiting and len(self._running) < MOST_ROWS
        return self._ended or can_begin or any(job.cancelled or job.stream.ready() for job in self._running)

    def _turn(self):
        """Ends and begins texts, and makes the audio of what is drawn: first audio before anything else."""
        self._drop()
        self._admit()
        for job in sorted(self._running, key=lambda job: job.first_sound is not None):
            self._speak(job)
        self.metrics.rows.set(sum(job.stream.num_rows for job in self._running))

    def _drop(self):
        """Ends what nobody listens to, and what takes too long."""
        now = time.monotonic()
        for job in [job for job in self._running if job.cancelled]:
            self._end(job)
        for job in [job for job in self._running if now - job.arrived > self._total_seconds]:
            self._end(job, ApiError(503, f"It took longer than {self._total_seconds:g} s.", code="timeout"))
        with self._changed:
            late = [job for job in self._waiting if now - job.arrived > self._queue_seconds]
            for job in late:
                self._waiting.remove(job)
        for job in late:
            self.metrics.errors.labels("queue_timeout").inc()
            waited = f"It waited for {self._queue_seconds:g} s and was not begun."
            job.tell(ApiError(503, waited, code="queue_timeout", retry_after_seconds=math.ceil(self._text_seconds)))

    def _admit(self):
        """Takes texts out of the queue while there are places; rows that are left go to sentences ahead."""
        while len(self._running) < MOST_ROWS:
            with self._changed:
                if not self._waiting:
                    break
                job = self._waiting.popleft()
                # Short calls would keep those in the queue waiting longer than they save this one.
                hurry = job.hurry and not self._waiting
            job.begun = time.monotonic()
            try:
                options = job.sampling, job.seed, job.speed, False, hurry
                job.stream = self.synthesizer.stream(job.text, job.find_voice(), job.language, *options)
                job.stream.open()
            except Exception as error:
                self._tell_of(job, error)
                job.tell(error)
                continue
            with self._changed:
                self._running.append(job)
        free = MOST_ROWS - sum(job.stream.num_rows for job in self._running)
        for job in sorted(self._running, key=lambda job: job.stream.num_rows):
            before = job.stream.num_rows
            if free > 0:
                job.stream.look_ahead()
                free -= job.stream.num_rows - before
        self.metrics.waiting.set(len(self._waiting))
        self.metrics.speaking.set(len(self._running))

    def _speak(self, job):
        try:
            if job.stream.ready() and not job.cancelled:
                samples = job.stream.more()
                if len(samples):
                    self._give(job, samples)
        except Exception as error:
            self._end(job, error)
            return
        if job.stream.finished and not job.cancelled:
            self._end(job, None)

    def _give(self, job, samples):
        if job.first_sound is None:
            job.first_sound = time.monotonic()
            self.metrics.first_sound.observe(job.first_sound - job.arrived)
        job.num_samples += len(samples)
        self.metrics.sound.inc(len(samples) / self.synthesizer.sample_rate)
        job.tell(samples)

    def _end(self, job, outcome=None):
        """Takes a text out; `outcome` is the error that ended it, if any."""
        job.stream.close()
        with self._changed:
            self._running.remove(job)
            job.ended = True
        self.metrics.codes.inc(job.num_codes)
        self.metrics.speaking.set(len(self._running))
        if job.cancelled:
            self.metrics.cancelled.inc()
        elif outcome is not None:
            self._tell_of(job, outcome)
        else:
            seconds = time.monotonic() - job.begun
            self._text_seconds += 0.1 * (seconds - self._text_seconds)
            self.metrics.texts.inc()
            sound_seconds = job.num_samples / self.synthesizer.sample_rate
            self.metrics.real_time_factor.observe(seconds / max(sound_seconds, 1e-3))
        job.tell(outcome)
        if not any(job.stream.num_rows for job in self._running):
            self.metrics.rows.set(0)

    def _tell_of(self, job, error):
        kind = error.code if isinstance(error, ApiError) else type(error).__name__
        self.metrics.errors.labels(kind or "other").inc()
        unexpected = None if isinstance(error, UserError | ApiError) else error
        what = f"A text was not spoken: {type(error).__name__}: {error}"
        logger.warning(what, exc_info=unexpected, extra={"told": {"request_id": job.id}})


def _stopping():
    return ApiError(503, "The server is being stopped.", code="stopping", retry_after_seconds=5)

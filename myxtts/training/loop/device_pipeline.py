"""The bounded buffer between the data device and the model device, filled by one producer thread; and its clock."""

import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.config.config import DataConfig, XTTSConfig
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import Workers

PHASES = {
    "reading": "reading a batch on the host",
    "preparing": "preparing a batch on the data device",
    "copying": "copying a batch to the model device",
    "waiting": "waiting for room in the buffer",
}
"""What the producer does with each batch, in its order."""
OF_EACH = ("avg_ms", "stall", "buffer")
"""Figures that are reported of each of several workers."""


def prefetch_depth(config: XTTSConfig, plan: DevicePlan, stage: str) -> int:
    """Batches that tf.data keeps ready on the data device: `data.pipeline_buffer_size`.

    Under memory limits, where that has its default, they are as many as hold 64 clips, from 2 to 8.
    """
    asked = config.data.pipeline_buffer_size
    if plan.mode != "isolated" or asked != DataConfig.pipeline_buffer_size:
        return asked
    return max(2, min(8, 64 // config.stage(stage).batch_size))


class PipelineStuck(RuntimeError):
    """The buffer did not fill in time; the message names the phase that is stuck."""


class _Course:
    """The phase that the producer is in, and the seconds that it has spent in each."""

    def __init__(self):
        self.phase, self.seconds, self._since = "reading", Counter(), time.monotonic()

    def enter(self, phase):
        now = time.monotonic()
        self.seconds[self.phase] += now - self._since
        self.phase, self._since = phase, now


def _prepared(waves, prepare, transfer, start, course):
    """Prepared batches on the model device."""
    try:
        for position, wave in enumerate(waves, start):
            course.enter("preparing")
            batch = prepare(wave, position)
            course.enter("copying")
            batch = transfer(batch)
            course.enter("waiting")
            yield batch
            course.enter("reading")
    finally:
        # A reader that is cleaned up when Python ends can start no thread for it.
        if isinstance(waves, Generator):
            waves.close()


class DevicePipeline:
    """Prepared batches, an iterator and a context: batch N + 1 is prepared while the consumer works on batch N.

    One thread reads a batch (host), prepares it (data device) and copies it (model device), and waits for the consumer
    only when `capacity` batches are ready. `__next__` raises its errors with their own traceback. `close`, or leaving
    the `with` block, always ends the thread; so does letting go of the pipeline.

    With a `capacity` of 0 there is no thread: each batch is made when it is asked for, which is the baseline for the
    overlap, and a debugger can step through it.

    Args:
        batches: `WaveBatch`es, already on the data device; `start` is the position of the first.
        prepare: `(WaveBatch, position) -> batch`, on the data device.
        transfer: `batch -> batch` on the model device.
        capacity: Most batches that are ready and wait.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        self.capacity, self.wait_seconds = capacity, 0.0
        """Time that `__next__` spent waiting for data."""
        self._course = _Course()
        self._batches = _prepared(batches, prepare, transfer, start, self._course)
        self._ready, self._stop = queue.Queue(maxsize=capacity), threading.Event()
        work = self._batches, self._ready, self._stop
        self._producer = threading.Thread(target=_produce, args=work, name="myxtts-data-device", daemon=True)
        # A Ctrl-C can strike where no `with` block catches it; the producer does not hold the pipeline, and ends then.
        weakref.finalize(self, self._stop.set)
        if capacity:
            self._producer.start()

    def __iter__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Seconds that were spent in each of `PHASES` so far."""
        return {phase: self._course.seconds[phase] for phase in PHASES}

    def wait_until_filled(self, head_start_seconds: float = 0.0, timeout_seconds: float = 300.0) -> None:
        """Waits the head start, then until the buffer is full or the data has ended; else raises `PipelineStuck`."""
        self._stop.wait(head_start_seconds)
        deadline = time.monotonic() + timeout_seconds
        while self._producer.is_alive() and not self._ready.full():
            if time.monotonic() > deadline:
                held = f"{self.fill()} of {self.capacity} batches after {timeout_seconds:.0f} s"
                raise PipelineStuck(
                    f"The buffer between the devices holds {held}; the producer is stuck {PHASES[self._course.phase]}. "
                    "Look there, or raise --model-start-delay."
                )
            time.sleep(0.005)

    def fill(self) -> int:
        """Batches ready for the consumer."""
        return self._ready.qsize()

    def __next__(self):
        if self._stop.is_set():
            raise StopIteration
        began = time.perf_counter()
        if self.capacity:
            item = self._ready.get()
        else:
            item = next(self._batches)
            # GPU work is queued; without this it would overlap with the training after all.
            tf.test.experimental.sync_devices()
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):  # the end is a `StopIteration`
            self._stop.set()
            raise item
        return item

    def close(self) -> None:
        """Ends the producer, which may finish its work on one batch for 5 s, and empties the buffer."""
        self._stop.set()
        if not self.capacity:
            self._batches.close()
            return
        self._producer.join(5.0)
        while not self._ready.empty():
            self._ready.get_nowait()


def _produce(batches, ready, stop):
    """Body of the producer's thread: fills the buffer until the data ends or `stop` is set."""
    try:
        for batch in batches:
            if not _put(batch, ready, stop):
                return
        _put(StopIteration(), ready, stop)
    except BaseException as error:  # handed to the consumer, whatever it is
        _put(error, ready, stop)
    finally:
        batches.close()


def _put(item, ready, stop):
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.05)
            return True
        except queue.Full:
            continue
    return False


def copy_to(batch: NamedTuple, device: str) -> NamedTuple:
    """`batch` on `device`, field by field."""
    with tf.device(device):
        return type(batch)(*(tf.identity(value) for value in batch))


class StepClock:
    """Times optimizer steps but for the first few, which trace and compile.

    Validation, checkpoints and samples are left out through `paused`.
    """

    def __init__(self, warmup_steps: int = 3):
        self.warmup_steps, self.step_times = warmup_steps, []
        self._pipeline = self._last = None
        self.skipped, self._reported, self._fills = 0, 0, []
        """Steps that were left out so far."""

    def start(self, pipeline) -> None:
        """Starts timing the steps fed by `pipeline`."""
        self._pipeline, self._last = pipeline, time.perf_counter()
        self._before = pipeline.wait_seconds, pipeline.phase_seconds

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self.skipped < self.warmup_steps:
            self.skipped += 1
            self._before = self._pipeline.wait_seconds, self._pipeline.phase_seconds
        else:
            self.step_times.append(now - self._last)
            self._fills.append(self._pipeline.fill())
        self._last = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside belongs to no step."""
        began = time.perf_counter()
        yield
        if self._last is not None:
            self._last += time.perf_counter() - began

    def report(self, whole_run: bool = False) -> dict[str, float]:
        """Figures since the last report, or of the whole run.

        Returns:
            `avg_ms`, `std_ms`, `steps_per_second`, `variation`, `buffer` (mean fill) with `buffer_capacity`; and since
            the start, as shares of the time, `stall` (spent waiting for data) and what the producer spent on
            `reading`, `preparing` and `copying`. Empty before the first timed step.
        """
        first = 0 if whole_run else self._reported
        times = np.array(self.step_times[first:])
        if not whole_run:
            self._reported = len(self.step_times)
        if not len(times):
            return {}
        whole, (waited, spent) = sum(self.step_times), self._before
        now = self._pipeline.phase_seconds
        shares = {phase: (now[phase] - spent[phase]) / whole for phase in ("reading", "preparing", "copying")}
        shares["stall"] = (self._pipeline.wait_seconds - waited) / whole
        return {
            **{"avg_ms": 1e3 * times.mean(), "std_ms": 1e3 * times.std(), "steps_per_second": 1.0 / times.mean()},
            "variation": times.std() / times.mean(),
            **{name: min(1.0, share) for name, share in shares.items()},
            "buffer": float(np.mean(self._fills[first:])),
            "buffer_capacity": self._pipeline.capacity,
        }


def timing_of_all(timing: dict[str, float], workers: Workers) -> dict[str, float]:
    """A report of this worker with the `OF_EACH` figures of each; all workers must call this."""
    for index, one in enumerate(workers.gather(timing) if workers.count > 1 else ()):
        timing = timing | {f"worker_{index}_{name}": one[name] for name in OF_EACH if timing and one}
    return timing

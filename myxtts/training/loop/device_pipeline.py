"""The bounded buffer between the data device and the model device, filled by one producer thread; and its clock."""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.distributed.workers import Workers

OF_EACH = ("avg_ms", "stall", "buffer")
"""Figures that are reported of each of several workers."""


class PipelineStuck(RuntimeError):
    """The buffer did not fill in time; the message names the stage that is stuck."""


def _prepared(waves, prepare, transfer, start, stage):
    """Prepared batches on the model device; `stage[0]` describes what is under way."""
    try:
        stage[0] = "reading a batch on the host"
        for position, wave in enumerate(waves, start):
            stage[0] = "preparing a batch on the data device"
            batch = prepare(wave, position)
            stage[0] = "copying a batch to the model device"
            batch = transfer(batch)
            stage[0] = "waiting for room in the buffer"
            yield batch
            stage[0] = "reading a batch on the host"
    finally:
        # A reader that is cleaned up when Python ends can start no thread for it.
        if isinstance(waves, Generator):
            waves.close()


class SynchronousPipeline:
    """Prepared batches, an iterator and a context: each is read, prepared and copied when it is asked for.

    The baseline for the overlap of `DevicePipeline`; a debugger can step through it.

    Args:
        batches: `WaveBatch`es, already on the data device; `start` is the position of the first.
        prepare: `(WaveBatch, position) -> batch`, on the data device.
        transfer: `batch -> batch` on the model device.
        capacity: Most batches that are ready and wait; none here.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 0, start: int = 0):
        self._stage, self.capacity, self.wait_seconds = ["not started"], 0, 0.0
        """Time that `__next__` spent waiting for data."""
        self._batches = _prepared(batches, prepare, transfer, start, self._stage)

    def __iter__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def wait_until_filled(self, head_start_seconds: float = 0.0) -> None:
        """Waits the head start."""
        time.sleep(head_start_seconds)

    def fill(self) -> int:
        """Batches ready for the consumer."""
        return 0

    def __next__(self):
        began = time.perf_counter()
        batch = next(self._batches)
        # GPU work is queued; without this it would overlap with the training after all.
        tf.test.experimental.sync_devices()
        self.wait_seconds += time.perf_counter() - began
        return batch

    def close(self) -> None:
        """Ends the reader; nothing is returned after it."""
        self._batches.close()


class DevicePipeline(SynchronousPipeline):
    """Prepares batch N + 1 while the consumer works on batch N; arguments and methods of `SynchronousPipeline`.

    One thread reads a batch (host), prepares it (data device) and copies it (model device), and waits for the consumer
    only when `capacity` batches are ready. `__next__` raises its errors with their own traceback. `close`, or leaving
    the `with` block, always ends the thread; so does letting go of the pipeline.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        super().__init__(batches, prepare, transfer, start=start)
        self.capacity = capacity
        self._ready, self._stop = queue.Queue(maxsize=capacity), threading.Event()
        work = self._batches, self._ready, self._stop
        self._producer = threading.Thread(target=_produce, args=work, name="myxtts-data-device", daemon=True)
        # A Ctrl-C can strike where no `with` block catches it; the producer does not hold the pipeline, and ends then.
        weakref.finalize(self, self._stop.set)
        self._producer.start()

    def wait_until_filled(self, head_start_seconds: float = 0.0, timeout_seconds: float = 300.0) -> None:
        """Waits the head start, then until the buffer is full or the data has ended; else raises `PipelineStuck`."""
        self._stop.wait(head_start_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not self._ready.full() and self._producer.is_alive():
            if time.monotonic() > deadline:
                held = f"{self._ready.qsize()} of {self.capacity} batches after {timeout_seconds:.0f} s"
                raise PipelineStuck(
                    f"The buffer between the devices holds {held}; the producer is stuck {self._stage[0]}. Look there, "
                    "or raise --model-start-delay."
                )
            time.sleep(0.005)

    def fill(self) -> int:
        return self._ready.qsize()

    def __next__(self):
        if self._stop.is_set():
            raise StopIteration
        began = time.perf_counter()
        item = self._ready.get()
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):  # the end is a `StopIteration`
            self._stop.set()
            raise item
        return item

    def close(self) -> None:
        """Ends the producer, which may finish its work on one batch for 5 s, and empties the buffer."""
        self._stop.set()
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
        self._skipped, self._reported, self._fills = 0, 0, []

    @property
    def has_ticked(self) -> bool:
        """Whether a step has ended."""
        return self._skipped > 0

    def start(self, pipeline) -> None:
        """Starts timing the steps fed by `pipeline`."""
        self._pipeline, self._last = pipeline, time.perf_counter()
        self._wait_before = pipeline.wait_seconds

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._skipped < self.warmup_steps:
            self._skipped += 1
            self._wait_before = self._pipeline.wait_seconds
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
            `avg_ms`, `std_ms`, `steps_per_second`, `variation`, `stall` (share of the time spent waiting for data,
            since the start) and `buffer` (mean fill) with `buffer_capacity`; empty before the first timed step.
        """
        first = 0 if whole_run else self._reported
        times = np.array(self.step_times[first:])
        if not whole_run:
            self._reported = len(self.step_times)
        if not len(times):
            return {}
        waited = self._pipeline.wait_seconds - self._wait_before
        return {
            **{"avg_ms": 1e3 * times.mean(), "std_ms": 1e3 * times.std(), "steps_per_second": 1.0 / times.mean()},
            "variation": times.std() / times.mean(),
            "stall": min(1.0, waited / sum(self.step_times)),
            "buffer": float(np.mean(self._fills[first:])),
            "buffer_capacity": self._pipeline.capacity,
        }


def timing_of_all(timing: dict[str, float], workers: Workers) -> dict[str, float]:
    """A report of this worker with the `OF_EACH` figures of each; all workers must call this."""
    for index, one in enumerate(workers.gather(timing) if workers.count > 1 else ()):
        timing = timing | {f"worker_{index}_{name}": one[name] for name in OF_EACH if timing and one}
    return timing

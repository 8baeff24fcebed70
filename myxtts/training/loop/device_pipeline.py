"""The bounded buffers between the data device and the model device, filled by one producer thread."""

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import tensorflow as tf

logger = logging.getLogger(__name__)


class PipelineStuck(RuntimeError):
    """The buffer did not fill in time; the message names the stage that is stuck."""


class _Batches:
    """An iterator that is its own context."""

    def __iter__(self):
        return self

    def __enter__(self):
        try:
            return self.start()
        except BaseException:  # Ctrl-C while the thread came up: there will be no __exit__
            self.close()
            raise

    def __exit__(self, *exception):
        self.close()


class DevicePipeline(_Batches):
    """Prepares batch N + 1 while the consumer works on batch N.

    The producer reads a batch (host), prepares it (data device) and copies it (model device), and waits for the
    consumer only when the buffer is full. What goes wrong in it is raised by `__next__` with its own traceback.
    `close`, or leaving the `with` block, always ends the producer; so does letting go of the pipeline.

    Args:
        batches: `WaveBatch`es, already on the data device; `start` is the position of the first.
        prepare: `(WaveBatch, position) -> batch`, on the data device.
        transfer: `batch -> batch` on the model device.
        capacity: Most batches that are ready and wait; one more is being prepared, and the consumer holds its own.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        self.capacity = capacity
        self.wait_seconds = 0.0
        """Time that `__next__` spent waiting for data."""
        self._producer = _Producer(batches, prepare, transfer, capacity, start)
        self._ready, self._stop = self._producer.ready, self._producer.stop
        # A Ctrl-C can strike where no `with` block catches it; the producer does not hold the pipeline, and ends then.
        weakref.finalize(self, self._stop.set)

    @property
    def stage(self) -> str:
        """What the producer is doing, in words."""
        return self._producer.stage

    def start(self) -> "DevicePipeline":
        """Starts the producer; does nothing when it runs already."""
        if self._producer.ident is None:
            self._producer.start()
        return self

    def wait_until_filled(self, head_start_seconds: float = 0.0, timeout_seconds: float = 300.0) -> None:
        """Waits the head start, then until the buffer is full or the data has ended; else raises `PipelineStuck`."""
        self.start()
        self._stop.wait(head_start_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not self._ready.full() and self._producer.is_alive():
            if time.monotonic() > deadline:
                held = f"{self._ready.qsize()} of {self.capacity} batches after {timeout_seconds:.0f} s"
                raise PipelineStuck(
                    f"The buffer between the devices holds {held}; the producer is stuck {self.stage}. Look there, or "
                    "raise --model-start-delay."
                )
            time.sleep(0.005)

    def fill(self) -> int:
        """Batches ready for the consumer."""
        return self._ready.qsize()

    def __next__(self):
        if self._stop.is_set():
            raise StopIteration
        self.start()
        began = time.perf_counter()
        item = self._ready.get()
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):  # the end is a `StopIteration`
            self._stop.set()
            raise item
        return item

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Ends the producer and empties the buffer; the producer may finish its work on one batch within the timeout.

        A reader that hangs cannot be ended from outside; its thread dies with the process, and the log names the stage.
        """
        self._stop.set()
        if self._producer.ident is not None:
            self._producer.join(timeout_seconds)
            if self._producer.is_alive():
                message = "The data pipeline has been %s for more than %.0f s, and is not waited for; it ends alone."
                logger.warning(message, self.stage, timeout_seconds)
        while not self._ready.empty():
            self._ready.get_nowait()


class _Producer(threading.Thread):
    """The thread of a `DevicePipeline`; see there."""

    def __init__(self, batches, prepare, transfer, capacity, start):
        super().__init__(name="myxtts-data-device", daemon=True)
        self.batches, self.prepare, self.transfer = batches, prepare, transfer
        self.first_position = start
        self.ready = queue.Queue(maxsize=capacity)
        self.stop = threading.Event()
        self.stage = "not started"

    def run(self):
        try:
            self.stage = "reading a batch on the host"
            for position, wave in enumerate(self.batches, self.first_position):
                if self.stop.is_set():
                    return
                self.stage = "preparing a batch on the data device"
                batch = self.prepare(wave, position)
                self.stage = "copying a batch to the model device"
                batch = self.transfer(batch)
                self.stage = "waiting for room in the buffer"
                if not self._put(batch):
                    return
                self.stage = "reading a batch on the host"
            self._put(StopIteration())
        except BaseException as error:  # handed to the consumer, whatever it is
            self._put(error)
        finally:
            _end(self.batches)

    def _put(self, item):
        while not self.stop.is_set():
            try:
                self.ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False


class SynchronousPipeline(_Batches):
    """The same work in the consumer's thread: a batch is read, prepared and copied when it is asked for.

    What the overlap of `DevicePipeline` is measured against, and what a debugger can step through. The arguments and
    the methods are those of `DevicePipeline`; there is no buffer, so `capacity` has no effect.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        self._batches, self._prepared = batches, None
        self._prepare, self._transfer, self._position = prepare, transfer, start
        self.capacity = 0
        self.wait_seconds = 0.0
        """Time that `__next__` took, all of which the model device waits."""

    def start(self) -> "SynchronousPipeline":
        """Lets the host begin to read."""
        self._prepared = self._prepared or self._work(iter(self._batches))
        return self

    def _work(self, batches):
        for position, wave in enumerate(batches, self._position):
            yield self._transfer(self._prepare(wave, position))

    def wait_until_filled(self, head_start_seconds: float = 0.0) -> None:
        """Waits the head start; there is no buffer to fill."""
        self.start()
        time.sleep(head_start_seconds)

    def fill(self) -> int:
        """No batch is ever ready before it is asked for."""
        return 0

    def __next__(self):
        began = time.perf_counter()
        batch = next(self.start()._prepared)
        # GPU work is queued; without this it would overlap with the training after all.
        tf.test.experimental.sync_devices()
        self.wait_seconds += time.perf_counter() - began
        return batch

    def close(self) -> None:
        """Ends the reader; nothing is returned after it."""
        self._prepared = iter(())
        _end(self._batches)


def _end(batches):
    """Lets a reader that is a generator clean up now: one that is found when Python ends can start no thread for it."""
    if isinstance(batches, Generator):
        batches.close()


def copy_to(batch: NamedTuple, device: str) -> NamedTuple:
    """`batch` on `device`, field by field."""
    with tf.device(device):
        return type(batch)(*(tf.identity(value) for value in batch))

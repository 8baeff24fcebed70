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


class _Work:
    """Prepared batches on the model device, an iterator; `stage` is what it is doing, in words."""

    def __init__(self, batches, prepare, transfer, start):
        self.stage = "not started"
        self._waves = batches
        self._batches = self._prepared(batches, prepare, transfer, start)

    def __iter__(self):
        return self._batches

    def _prepared(self, waves, prepare, transfer, start):
        self.stage = "reading a batch on the host"
        for position, wave in enumerate(waves, start):
            self.stage = "preparing a batch on the data device"
            batch = prepare(wave, position)
            self.stage = "copying a batch to the model device"
            batch = transfer(batch)
            self.stage = "waiting for room in the buffer"
            yield batch
            self.stage = "reading a batch on the host"

    def close(self):
        """Lets a reader clean up now: one that is found when Python ends can start no thread for it."""
        self._batches.close()
        if isinstance(self._waves, Generator):
            self._waves.close()


class SynchronousPipeline:
    """Prepared batches, an iterator and a context: each is read, prepared and copied when it is asked for.

    What the overlap of `DevicePipeline` is measured against, and what a debugger can step through.

    Args:
        batches: `WaveBatch`es, already on the data device; `start` is the position of the first.
        prepare: `(WaveBatch, position) -> batch`, on the data device.
        transfer: `batch -> batch` on the model device.
        capacity: Most batches that are ready and wait: none here, whatever is asked for.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 0, start: int = 0):
        self._work = _Work(batches, prepare, transfer, start)
        self._batches = iter(self._work)
        self.capacity = 0
        self.wait_seconds = 0.0
        """Time that `__next__` spent waiting for data."""

    @property
    def stage(self) -> str:
        """What is being done for the next batch, in words."""
        return self._work.stage

    def start(self):
        """Starts whatever works ahead; returns the pipeline."""
        return self

    def __iter__(self):
        return self

    def __enter__(self):
        try:
            return self.start()
        except BaseException:  # Ctrl-C while a thread came up: there will be no __exit__
            self.close()
            raise

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
        self._work.close()


class DevicePipeline(SynchronousPipeline):
    """Prepares batch N + 1 while the consumer works on batch N; arguments and methods of `SynchronousPipeline`.

    One thread reads a batch (host), prepares it (data device) and copies it (model device), and waits for the consumer
    only when `capacity` batches are ready. What goes wrong in it is raised by `__next__` with its own traceback.
    `close`, or leaving the `with` block, always ends the thread; so does letting go of the pipeline.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        super().__init__(batches, prepare, transfer, start=start)
        self.capacity = capacity
        self._ready, self._stop = queue.Queue(maxsize=capacity), threading.Event()
        work = self._work, self._ready, self._stop
        self._producer = threading.Thread(target=_produce, args=work, name="myxtts-data-device", daemon=True)
        # A Ctrl-C can strike where no `with` block catches it; the producer does not hold the pipeline, and ends then.
        weakref.finalize(self, self._stop.set)

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


def _produce(work, ready, stop):
    """Body of the producer's thread: fills the buffer until the data ends or `stop` is set."""
    try:
        for batch in work:
            if not _put(batch, ready, stop):
                return
        _put(StopIteration(), ready, stop)
    except BaseException as error:  # handed to the consumer, whatever it is
        _put(error, ready, stop)
    finally:
        work.close()


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

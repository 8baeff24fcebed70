"""The bounded buffers between the data device and the model device, filled by one producer thread."""

import queue
import threading
import time

import tensorflow as tf

_END = object()


class PipelineStuck(RuntimeError):
    """The buffer did not fill in time; the message names the stage that is stuck."""


class DevicePipeline:
    """Prepares batch N + 1 while the consumer works on batch N.

    The producer reads a batch (host), prepares it (data device) and copies it (model device), and never waits for the
    consumer except when the buffer is full. What goes wrong in it is raised by `__next__` with its own traceback.
    `close`, or leaving the `with` block, always ends the producer.

    Args:
        batches: Iterable of `WaveBatch`es, already on the data device.
        prepare: `(WaveBatch, position) -> batch`, on the data device.
        transfer: `batch -> batch` on the model device.
        depth: Batches in flight: one preparing, the rest ready, the consumer's own not counted.
        start: Position of the first batch.
    """

    def __init__(self, batches, prepare, transfer, depth=3, start=0):
        self._batches = batches
        self._prepare = prepare
        self._transfer = transfer
        self._start = start
        self._ready = queue.Queue(maxsize=max(1, depth - 1))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="myxtts-data-device", daemon=True)
        self.depth = depth
        self.stage = "not started"
        self.wait_seconds = 0.0
        """Time that `__next__` spent waiting for data."""
        self.produced = 0

    def start(self):
        """Starts the producer; does nothing when it runs already."""
        if self._thread.ident is None:
            self._thread.start()
        return self

    def wait_until_filled(self, head_start_seconds=0.0, timeout_seconds=300.0):
        """Waits the head start, and then until the buffer is full or the data has ended.

        Raises:
            PipelineStuck: After `timeout_seconds`, naming the stage that the producer is in.
        """
        self.start()
        self._stop.wait(head_start_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not self._ready.full() and self._thread.is_alive():
            if time.monotonic() > deadline:
                raise PipelineStuck(f"The buffer between the devices holds {self._ready.qsize()} of "
                                    f"{self._ready.maxsize} batches after {timeout_seconds:.0f} s; the producer is stuck "
                                    f"{self.stage}. Look there, or raise --model-start-delay.")
            time.sleep(0.005)

    def fill(self):
        """Batches ready for the consumer."""
        return self._ready.qsize()

    @property
    def capacity(self):
        """Most batches that can be ready."""
        return self._ready.maxsize

    def __iter__(self):
        return self

    def __next__(self):
        self.start()
        began = time.perf_counter()
        item = self._ready.get()
        self.wait_seconds += time.perf_counter() - began
        if item is _END:
            self._ready.put(_END)
            raise StopIteration
        if isinstance(item, BaseException):
            self._ready.put(_END)
            raise item
        return item

    def _produce(self):
        try:
            self.stage = "reading a batch on the host"
            for position, wave in enumerate(self._batches, self._start):
                self.stage = "preparing a batch on the data device"
                batch = self._prepare(wave, position)
                self.stage = "copying a batch to the model device"
                batch = self._transfer(batch)
                self.stage = "waiting for room in the buffer"
                if not self._put(batch):
                    return
                self.produced += 1
                self.stage = "reading a batch on the host"
            self._put(_END)
        except BaseException as error:  # handed to the consumer, whatever it is
            self._put(error)

    def _put(self, item):
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def close(self, timeout_seconds=5.0):
        """Ends the producer and empties the buffer."""
        self._stop.set()
        while True:
            try:
                self._ready.get_nowait()
            except queue.Empty:
                break
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        self._ready.put(_END)

    def __enter__(self):
        return self.start()

    def __exit__(self, *exception):
        self.close()


def copy_to(batch, device):
    """`batch` on `device`, field by field."""
    with tf.device(device):
        return type(batch)(*(tf.identity(value) for value in batch))

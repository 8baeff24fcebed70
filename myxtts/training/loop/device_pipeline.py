"""Prepares batches in a thread ahead of training, copies them to the model's replicas, and times the steps."""

import itertools
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import SimpleNamespace
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.config.config import XTTSConfig
from myxtts.config.settings import Default
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import short_name
from myxtts.devices.tensorflow_start import AbandonedThread
from myxtts.distributed.workers import Workers, current_workers

PHASES = {
    "reading": "reading a batch on the host",
    "preparing": "preparing a batch on the data device",
    "copying": "copying a batch to the model device",
}
"""Phases of the producer thread, in the order in which they process a batch: `{name: description for messages}`."""
_UNREACHABLE = tf.errors.UnavailableError, tf.errors.DeadlineExceededError
LOST_WORKER = (*_UNREACHABLE, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError)
"""Errors that collective operations raise when a worker is lost."""


def prefetch_depth(config: XTTSConfig, plan: DevicePlan, stage: str) -> int:
    """Returns how many batches to prefetch: `data.pipeline_buffer_size` (default with memory isolation: 2 to 8)."""
    requested = config.data.pipeline_buffer_size
    if plan.mode != "isolated" or not isinstance(requested, Default):
        return requested
    return max(2, min(8, 64 // config.stage(stage).batch_size))


def _prepared(waves, prepare, transfer, start, seconds, now):
    """Applies `prepare` and then `transfer` to each batch in `waves`, and yields the results. The position of the first
    batch is `start`. Stores the current phase in `now.phase`, and adds each phase's time to the Counter `seconds`."""

    def timed(phase, call, *arguments):
        now.phase, began = phase, time.monotonic()
        result = call(*arguments)
        seconds[phase] += time.monotonic() - began
        return result

    reader, positions = iter(waves), itertools.count(start)
    try:
        while (wave := timed("reading", next, reader, None)) is not None:
            yield timed("copying", transfer, timed("preparing", prepare, wave, next(positions)))
    finally:
        # Closed explicitly, because closing needs a new thread, which garbage collection at exit cannot start.
        if isinstance(waves, Generator):
            waves.close()


class DevicePipeline(Iterator, AbstractContextManager):
    """Iterator over prepared batches: batch N + 1 is prepared while the consumer uses batch N.

    A producer thread reads batches on the host, prepares them on the data device and copies them to the model device.
    `__next__` raises the thread's errors. The thread ends with the `with` block, or when the pipeline is deleted.

    Args:
        batches: `WaveBatch`es on the data device.
        prepare: Function `(WaveBatch, position) -> prepared batch`, which runs on the data device.
        transfer: Function `batch -> batch`, which copies a prepared batch to the model device.
        capacity: Size of the buffer. With 0, there is no thread: each batch is prepared on demand, without overlap.
        start: Position of the first batch in the batch order.
    """

    def __init__(self, batches: Iterable, prepare: Callable, transfer: Callable, capacity: int = 1, start: int = 0):
        self.capacity, self.seconds, self._now = capacity, Counter(), SimpleNamespace(phase="reading")
        """`seconds` contains the producer's time in each of the `PHASES`, and the consumer's waiting time (`stall`)."""
        self._batches = _prepared(batches, prepare, transfer, start, self.seconds, self._now)
        self._ready, self._stop = queue.Queue(maxsize=capacity), threading.Event()
        work = self._batches, self._ready, self._stop
        self._producer = AbandonedThread(target=_produce, args=work, name="myxtts-data-device", daemon=True)
        # Ends the thread after a Ctrl-C outside of the `with` block. The thread itself does not refer to the pipeline.
        weakref.finalize(self, self._stop.set)
        if capacity:
            self._producer.start()

    def wait_until_filled(self, head_start_seconds: float = 0.0, timeout_seconds: float = 300.0) -> None:
        """Waits for `head_start_seconds`, and then until the buffer is full.
        Raises `RuntimeError` if the producer adds no batch to the buffer for `timeout_seconds`."""
        self._stop.wait(head_start_seconds)
        ready = -1
        while self._producer.is_alive() and not self._ready.full():
            if self.fill() > ready:
                ready, deadline = self.fill(), time.monotonic() + timeout_seconds
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{ready} of {self.capacity} batches are ready, and none came for {timeout_seconds:.0f} s; the "
                    f"producer is stuck {PHASES[self._now.phase]}. Find out why, or raise --model-start-delay."
                )
            time.sleep(0.005)

    def fill(self) -> int:
        """Returns the number of batches in the buffer."""
        return self._ready.qsize()

    def __next__(self):
        if self._stop.is_set():
            raise StopIteration
        began = time.perf_counter()
        if self.capacity:
            item = self._ready.get()
        else:
            item = next(self._batches)
            # GPU operations are only queued so far; without this, they would overlap with training.
            tf.test.experimental.sync_devices()
        self.seconds["stall"] += time.perf_counter() - began
        if isinstance(item, BaseException):  # an error of the producer, or `StopIteration` at the end
            self._stop.set()
            raise item
        return item

    def __exit__(self, *exception) -> None:
        """Stops the producer, waits up to 5 s for the batch that it is working on, and empties the buffer."""
        self._stop.set()
        if self.capacity:
            self._producer.join(5.0)
        else:
            self._batches.close()
        while not self._ready.empty():
            self._ready.get_nowait()


def _produce(batches, ready, stop):
    """Puts batches into the queue `ready` until the data ends or `stop` is set; runs in the producer thread."""

    def put(item):
        while not stop.is_set():
            with suppress(queue.Full):
                return ready.put(item, timeout=0.05)

    try:
        for batch in batches:
            put(batch)
            if stop.is_set():
                return
        put(StopIteration())
    except BaseException as error:  # is raised in the consumer
        put(error)
    finally:
        batches.close()


def copy_to(batch: NamedTuple, device: str) -> NamedTuple:
    """Copies a batch to a device, field by field."""
    with tf.device(device):
        return type(batch)(*(tf.identity(value) for value in batch))


class StepClock:
    """Measures the duration of each step. Ignores the first `warmup_steps` steps and the time in `paused()` blocks."""

    def __init__(self, warmup_steps: int = 3):
        self.warmup_steps, self.step_times = warmup_steps, []
        self._pipeline = self._last = None
        self.skipped, self._reported, self._fills = 0, 0, []
        """`skipped` is the number of warm-up steps so far, which are not timed."""

    def start(self, pipeline) -> None:
        """Starts the timer. `pipeline` is the `DevicePipeline` whose batches the steps use."""
        self._pipeline, self._last, self._before = pipeline, time.perf_counter(), pipeline.seconds.copy()
        self._first = len(self.step_times)

    def tick(self) -> None:
        """Records the end of a step."""
        now = time.perf_counter()
        if self.skipped < self.warmup_steps:
            self.skipped += 1
            self._before = self._pipeline.seconds.copy()
        else:
            self.step_times.append(now - self._last)
            self._fills.append(self._pipeline.fill())
        self._last = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent in a `with` block from the step time."""
        began = time.perf_counter()
        yield
        if self._last is not None:
            self._last += time.perf_counter() - began

    def report(self, whole_run: bool = False) -> dict[str, float]:
        """Returns the timing of all steps (if `whole_run`) or of those since the last report; `{}` if there are none.

        `avg_ms`, `std_ms`, `steps_per_second` and `variation` (std / mean) describe the step time. `buffer` is the mean
        number of batches in the buffer, which can hold `buffer_capacity`. Four values are fractions of the total
        step time of the whole run: `stall` is the time spent waiting for data; `reading`, `preparing` and `copying` are
        the times that the producer spent in these phases.
        """
        first, self._reported = (0, self._reported) if whole_run else (self._reported, len(self.step_times))
        times = np.array(self.step_times[first:])
        if not len(times):
            return {}
        spent, whole = self._pipeline.seconds - self._before, sum(self.step_times[self._first :]) or np.inf
        return {
            "avg_ms": 1e3 * times.mean(),
            "std_ms": 1e3 * times.std(),
            "steps_per_second": 1.0 / times.mean(),
            "variation": times.std() / times.mean(),
            **{phase: min(1.0, spent[phase] / whole) for phase in (*PHASES, "stall")},
            "buffer": float(np.mean(self._fills[first:])),
            "buffer_capacity": self._pipeline.capacity,
        }


def timing_of_all(timing: dict[str, float], workers: Workers) -> dict[str, float]:
    """Returns `timing` plus values of each worker, such as `worker_0_stall`. All workers must call this function."""
    for index, one in enumerate(workers.gather(timing) if workers.count > 1 else ()):
        names = ("avg_ms", "stall", "buffer") if timing and one else ()
        timing = timing | {f"worker_{index}_{name}": one[name] for name in names}
    return timing


class Replicas:
    """Replicas of a model on the model devices of all workers, under one `tf.distribute` strategy."""

    def __init__(self, plan: DevicePlan):
        self.data_device, self.devices = plan.data_device, plan.model_devices
        """Devices of this process: the device that prepares batches, and the devices that train."""
        self.workers: Workers = current_workers()
        self.strategy: tf.distribute.Strategy = self.workers.strategy or (
            tf.distribute.OneDeviceStrategy(self.devices[0])
            if len(self.devices) == 1
            else tf.distribute.MirroredStrategy(list(self.devices), tf.distribute.ReductionToOneDevice())
        )
        self.count: int = self.strategy.num_replicas_in_sync
        """Number of replicas on all workers together."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Places variables created in the `with` block on the model devices."""
        with self.strategy.scope(), tf.device(self.devices[0] if self.count == 1 else None):
            yield

    def adopt(self, model: keras.Model) -> None:
        """Prepares `model` for training. Raises `ConfigError` if it is on a wrong device, or with several replicas."""
        hint = "Save it with model.save_to_preset(FOLDER) and give training.init_from=FOLDER to myxtts.train()."
        require(self.count == 1, "model=", "trained on one device", f"{self.count} devices", hint)
        device, found = self.devices[0], {short_name(variable.value.device) for variable in model.variables}
        hint = f"Create it within tf.device({device!r})."
        require(found == {device}, "model=", f"on {device}", ", ".join(sorted(found)), hint)
        for variable in model.variables:
            # TensorFlow refuses optimizer variables for a variable without a strategy, even on the same device.
            variable.value._distribute_strategy = self.strategy

    def transfer(self, batch: NamedTuple) -> NamedTuple:
        """Copies a prepared batch to the model device. With several model devices, each gets an equal shard."""
        if len(self.devices) == 1:
            return copy_to(batch, self.devices[0])
        with tf.device(self.data_device):
            shards = equal_parts(batch, len(self.devices))
        return self.distribute([copy_to(shard, device) for shard, device in zip(shards, self.devices)])

    def distribute(self, shards: list):
        """Combines the batches `shards`, one for each replica of this worker, into one distributed batch."""
        if len(shards) == 1:
            return shards[0]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group % len(shards)]
        )

    def split(self, batch, parts: int) -> list:
        """Splits a batch into equal parts. Parts of a distributed batch are also distributed over the replicas."""
        if parts == 1:
            return [batch]
        pieces = []
        for shard, device in zip(self.strategy.experimental_local_results(batch), self.devices):
            with tf.device(device):
                pieces.append(equal_parts(shard, parts))
        return [self.distribute(shards) for shards in zip(*pieces)]


def equal_parts(batch: NamedTuple, count: int) -> list:
    """Splits a batch into `count` equal parts. Uses slices, because `tf.split` has no GPU kernel for integers."""
    rows = len(batch[0]) // count
    return [type(batch)(*(field[rows * part : rows * (part + 1)] for field in batch)) for part in range(count)]

"""NVIDIA GPUs as NVML reports them: which ones this process may use, and how busy they are.

NVML (module `pynvml`, package `nvidia-ml-py`) is asked, not TensorFlow: it can be read before TensorFlow is imported,
and it sees utilization, which TensorFlow does not. Where it is missing, every figure is "not available", never zero.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import ModuleType

BYTES_PER_MB = 2**20
"""MB here is 2**20 bytes, as in `nvidia-smi` and in TensorFlow's memory limits."""


class NVMLUnavailable(RuntimeError):
    """NVML cannot be read on this machine; the message is the reason."""


@dataclass(frozen=True)
class GPU:
    """One GPU: `id` is its `CUDA_VISIBLE_DEVICES` entry (an index or a UUID), `memory_mb` its total memory."""

    id: str
    name: str
    memory_mb: int


@dataclass
class GPUUsage:
    """What one GPU did between `start` and `report`: percent of time busy, MB in use. `None` is "not reported"."""

    id: str
    name: str
    num_samples: int = 0
    mean_utilization: float | None = None
    max_utilization: float | None = None
    mean_memory_mb: float = 0.0
    max_memory_mb: float = 0.0
    total_memory_mb: float = 0.0

    def add(self, utilization: float | None, used_mb: float, total_mb: float) -> None:
        """Updates means and maxima with one sample. A GPU reports utilization in all samples or in none."""
        self.num_samples += 1
        self.mean_memory_mb += (used_mb - self.mean_memory_mb) / self.num_samples
        self.max_memory_mb, self.total_memory_mb = max(self.max_memory_mb, used_mb), total_mb
        if utilization is not None:
            mean = self.mean_utilization or 0.0
            self.mean_utilization = mean + (utilization - mean) / self.num_samples
            self.max_utilization = max(self.max_utilization or 0.0, float(utilization))

    def describe(self) -> str:
        """One line: who it is, how busy it was and how full."""
        mean, greatest = self.mean_utilization, self.max_utilization
        busy = "not reported" if mean is None else f"mean {mean:.0f}%, max {greatest:.0f}%"
        memory = f"mean {self.mean_memory_mb:.0f}MB, max {self.max_memory_mb:.0f}MB of {self.total_memory_mb:.0f}MB"
        return f"GPU {self.id} ({self.name}): utilization {busy}; memory {memory}"


@dataclass(frozen=True)
class GPUReport:
    """The figures of every watched GPU, or the reason why there are none."""

    gpus: tuple[GPUUsage, ...]
    unavailable_reason: str | None = None

    @property
    def is_available(self) -> bool:
        return self.unavailable_reason is None

    def as_dict(self) -> dict:
        """The report as JSON types."""
        gpus = [asdict(usage) for usage in self.gpus]
        return {"available": self.is_available, "reason": self.unavailable_reason, "gpus": gpus}

    def describe(self) -> str:
        """One line per GPU, or one line that says why there is none."""
        if not self.is_available:
            return f"GPU utilization: not available ({self.unavailable_reason})"
        return "\n".join(usage.describe() for usage in self.gpus)

    def log_fields(self, roles: Sequence[str]) -> str:
        """The GPU part of a training log line, which `utilities/compare_logs.py` reads back.

        Args:
            roles: A role per watched GPU, in order: `("data", "model")`. GPUs of one role are shown together, mean
                utilization and greatest memory.

        Returns:
            `GPU util: data 55%, model 83% | GPU memory: data 1024MB, model 9000MB`, or `GPU: not available`.
        """
        if not self.is_available:
            return "GPU: not available"
        utilization, memory = [], []
        for role in dict.fromkeys(roles):
            usages = [usage for own, usage in zip(roles, self.gpus, strict=True) if own == role]
            busy = [usage.mean_utilization for usage in usages if usage.mean_utilization is not None]
            utilization.append(f"{role} {sum(busy) / len(busy):.0f}%" if busy else f"{role} n/a")
            memory.append(f"{role} {max(usage.max_memory_mb for usage in usages):.0f}MB")
        return f"GPU util: {', '.join(utilization)} | GPU memory: {', '.join(memory)}"


@contextmanager
def nvml() -> Iterator[ModuleType]:
    """Initialized NVML as a context that yields the `pynvml` module.

    Raises:
        NVMLUnavailable: NVML is missing, or fails inside the context (a GPU that fell off the bus).
    """
    try:
        import pynvml
    except ImportError as error:
        raise NVMLUnavailable("the package nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NVMLUnavailable(f"no NVIDIA driver: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NVMLUnavailable(f"NVML stopped answering: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def list_gpus(visible_devices: str | None = None) -> tuple[GPU, ...]:
    """The NVIDIA GPUs this process may use, in the order in which CUDA numbers them.

    Args:
        visible_devices: A value of `CUDA_VISIBLE_DEVICES`; the variable itself when `None`. Its entries are indices,
            UUIDs or beginnings of UUIDs; as in CUDA, the first entry that names no GPU ends the list.

    Raises:
        NVMLUnavailable: NVML cannot be read.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible_devices is None else visible_devices
    with nvml() as pynvml:
        handles, uuids = _all_gpus(pynvml)
        entries = map(str, range(len(handles))) if visible is None else visible.split(",")
        found = []
        for entry in map(str.strip, entries):
            if (handle := _find(pynvml, entry, handles, uuids)) is None:
                break
            total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            found.append(GPU(entry, pynvml.nvmlDeviceGetName(handle), total // BYTES_PER_MB))
        return tuple(found)


def _all_gpus(pynvml):
    """NVML handles and UUIDs of the machine's GPUs."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return handles, [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]


def _find(pynvml, entry, handles, uuids):
    """The NVML handle that one `CUDA_VISIBLE_DEVICES` entry names, or `None`."""
    if entry.isdecimal():
        return handles[int(entry)] if int(entry) < len(handles) else None
    if entry.startswith("MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(entry)
        except pynvml.NVMLError:
            return None
    matches = [handle for handle, uuid in zip(handles, uuids) if uuid.startswith(entry)] if entry else []
    return matches[0] if len(matches) == 1 else None


class GPUMonitor:
    """Samples GPU utilization and memory in a background thread.

    Usable as a context manager, and again after `stop`. The thread ends with `stop` (which waits for it) or when a GPU
    can no longer be read; on a machine without GPU or NVML none is started and `report` says why.

    Args:
        indices: Physical GPU numbers or UUIDs (`CUDA_VISIBLE_DEVICES` entries, such as `DevicePlan.visible_ids`), in
            the order of the report. `None` watches every GPU that the process may use; an empty sequence watches none.
    """

    def __init__(self, indices: Sequence[int | str] | None = None, interval_seconds: float = 0.5):
        if interval_seconds <= 0:
            raise ValueError(f"interval_seconds must be more than 0. Received: {interval_seconds}. The default is 0.5.")
        self.indices = None if indices is None else tuple(str(index) for index in indices)
        self.interval_seconds = interval_seconds
        self._lock, self._stop, self._thread = threading.Lock(), threading.Event(), None
        self._usages, self._reason = (), "the monitor was not started"

    def start(self) -> "GPUMonitor":
        """Starts sampling; earlier figures are dropped. Returns the monitor."""
        if self._thread is not None:
            raise RuntimeError("GPUMonitor is already running. Call stop() before the next start().")
        self._usages, self._reason = self._watch_list()
        if self._usages:
            self._stop.clear()
            ready = threading.Event()
            self._thread = threading.Thread(None, self._sample_until_stopped, "gpu-monitor", (ready,), daemon=True)
            self._thread.start()
            ready.wait()
        return self

    def stop(self) -> GPUReport:
        """Stops sampling and waits for the thread to end. Returns the report. Harmless when not running."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        return self.report()

    def report(self) -> GPUReport:
        """The `GPUReport` since `start`, while sampling or after it."""
        with self._lock:
            usages = tuple(replace(usage) for usage in self._usages if usage.num_samples)
            reason = None if usages else self._reason or "no sample was taken"
        return GPUReport(usages, reason)

    def __enter__(self):
        return self.start()

    def __exit__(self, *exception):
        self.stop()

    def _watch_list(self):
        """A `GPUUsage` of each GPU to watch, and why there are none (`None` where there are some)."""
        if self.indices == ():
            return (), "this run uses no GPU"
        try:
            gpus = list_gpus(None if self.indices is None else ",".join(self.indices))
        except NVMLUnavailable as error:
            return (), str(error)
        if self.indices is not None and len(gpus) < len(self.indices):
            return (), f"NVML knows no GPU {self.indices[len(gpus)]}"
        return tuple(GPUUsage(gpu.id, gpu.name) for gpu in gpus), None if gpus else "this process may use no GPU"

    def _sample_until_stopped(self, ready):
        try:
            with nvml() as pynvml:
                handles, uuids = _all_gpus(pynvml)
                watched = [_find(pynvml, usage.id, handles, uuids) for usage in self._usages]
                stopped = False
                while not stopped:
                    samples = [_sample(pynvml, handle) for handle in watched]
                    with self._lock:
                        for usage, sample in zip(self._usages, samples):
                            usage.add(*sample)
                    ready.set()
                    stopped = self._stop.wait(self.interval_seconds)
        except NVMLUnavailable as error:
            self._reason = str(error)  # ends the sampling, not the training; the report keeps what it has
        finally:
            ready.set()


def _sample(pynvml, handle):
    """Busy percent (or `None`), MB used, MB in all."""
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError_NotSupported:  # a MIG slice reports memory only
        utilization = None
    return utilization, memory.used / BYTES_PER_MB, memory.total / BYTES_PER_MB

"""NVIDIA GPUs as NVML reports them: which ones this process may use, and how busy they are.

NVML (module `pynvml`, package `nvidia-ml-py`) is asked, not TensorFlow: it can be read before TensorFlow is imported,
and it sees utilization, which TensorFlow does not. Where it is missing, every figure is "not available", never zero.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import fmean
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


@dataclass(frozen=True)
class GPUReport:
    """The figures of every watched GPU, or the reason why there are none."""

    gpus: tuple[GPUUsage, ...]
    unavailable_reason: str | None = None

    def as_dict(self) -> dict:
        """The report as JSON types."""
        gpus = [asdict(usage) for usage in self.gpus]
        return {"available": bool(gpus), "reason": self.unavailable_reason, "gpus": gpus}

    def describe(self) -> str:
        """One line per GPU: how busy it was and how full; or one line that says why there is none."""
        lines = []
        for gpu in self.gpus:
            mean, greatest = gpu.mean_utilization, gpu.max_utilization
            busy = "not reported" if mean is None else f"mean {mean:.0f}%, max {greatest:.0f}%"
            memory = f"mean {gpu.mean_memory_mb:.0f}MB, max {gpu.max_memory_mb:.0f}MB of {gpu.total_memory_mb:.0f}MB"
            lines.append(f"GPU {gpu.id} ({gpu.name}): utilization {busy}; memory {memory}")
        return "\n".join(lines) or f"GPU utilization: not available ({self.unavailable_reason})"

    def figures(self, roles: Sequence[str]) -> dict[str, float]:
        """`data_gpu_mb`, `data_gpu_percent` and so on, where known.

        `roles` has one for each watched GPU, in order: `("data", "model")`. Of GPUs of one role it is the mean
        utilization and the greatest memory.
        """
        found = {}
        for role in dict.fromkeys(roles) if self.gpus else ():
            own = [usage for one, usage in zip(roles, self.gpus, strict=True) if one == role]
            busy = [usage.mean_utilization for usage in own if usage.mean_utilization is not None]
            found[f"{role}_gpu_mb"] = max(usage.max_memory_mb for usage in own)
            found |= {f"{role}_gpu_percent": fmean(busy)} if busy else {}
        return found


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
    with nvml() as pynvml:
        found = []
        for entry, handle in _visible(pynvml, visible_devices):
            total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            found.append(GPU(entry, pynvml.nvmlDeviceGetName(handle), total // BYTES_PER_MB))
        return tuple(found)


def _visible(pynvml, visible):
    """Entries of `CUDA_VISIBLE_DEVICES` and the NVML handles that they name; see `list_gpus`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    entries = map(str, range(len(handles))) if visible is None else visible.split(",")
    for entry in map(str.strip, entries):
        if (handle := _find(pynvml, entry, handles)) is None:
            return
        yield entry, handle


def _find(pynvml, entry, handles):
    """The NVML handle that one `CUDA_VISIBLE_DEVICES` entry names, or `None`."""
    if entry.isdecimal():
        return handles[int(entry)] if int(entry) < len(handles) else None
    if entry.startswith("MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(entry)
        except pynvml.NVMLError:
            return None
    matches = [one for one in handles if entry and pynvml.nvmlDeviceGetUUID(one).startswith(entry)]
    return matches[0] if len(matches) == 1 else None


class GPUMonitor:
    """Samples GPU utilization and memory in a background thread, as a context manager or from `start` to `stop`.

    The thread also ends when a GPU can no longer be read; on a machine without GPU or NVML none is started and
    `report` says why.

    Args:
        indices: Physical GPU numbers or UUIDs (`CUDA_VISIBLE_DEVICES` entries, such as `DevicePlan.visible_ids`), in
            the order of the report. `None` watches every GPU that the process may use; an empty sequence watches none.
    """

    def __init__(self, indices: Sequence[int | str] | None = None, interval_seconds: float = 0.5):
        self.visible, self.interval_seconds = None if indices is None else ",".join(map(str, indices)), interval_seconds
        self._lock, self._stop, self._thread = threading.Lock(), threading.Event(), None
        self._usages, self._reason = (), "the monitor was not started"

    def start(self) -> "GPUMonitor":
        """Starts sampling; earlier figures are dropped. Returns the monitor."""
        self.stop()
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
        return GPUReport(usages, None if usages else self._reason or "no sample was taken")

    def __enter__(self):
        return self.start()

    def __exit__(self, *exception):
        self.stop()

    def _watch_list(self):
        """A `GPUUsage` of each GPU to watch, and why there are none (`None` where there are some)."""
        if self.visible == "":
            return (), "this run uses no GPU"
        try:
            gpus = list_gpus(self.visible)
        except NVMLUnavailable as error:
            return (), str(error)
        asked = [] if self.visible is None else self.visible.split(",")
        if len(gpus) < len(asked):
            return (), f"NVML knows no GPU {asked[len(gpus)]}"
        return tuple(GPUUsage(gpu.id, gpu.name) for gpu in gpus), None if gpus else "this process may use no GPU"

    def _sample_until_stopped(self, ready):
        try:
            with nvml() as pynvml:
                watched = [handle for _, handle in _visible(pynvml, ",".join(usage.id for usage in self._usages))]
                while True:
                    samples = [_sample(pynvml, handle) for handle in watched]
                    with self._lock:
                        for usage, sample in zip(self._usages, samples):
                            usage.add(*sample)
                    ready.set()
                    if self._stop.wait(self.interval_seconds):
                        return
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

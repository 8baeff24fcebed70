"""Lists the NVIDIA GPUs visible to this process and monitors their utilization and memory.

The measurements come from NVML (package `nvidia-ml-py`), which works without TensorFlow and, unlike TensorFlow, reports
utilization. Without NVML, the measurements are reported as "not available", never as zero.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import fmean
from types import ModuleType

from myxtts.config.checks import needing

BYTES_PER_MB = 2**20
"""Bytes per MB, the unit of memory in `nvidia-smi` and of TensorFlow's memory limits."""


class NVMLUnavailable(RuntimeError):
    """Raised if NVML cannot be read; the message gives the reason."""


@dataclass(frozen=True)
class GPU:
    """A GPU with its total memory. `id` is its `CUDA_VISIBLE_DEVICES` entry, an index or a UUID."""

    id: str
    name: str
    memory_mb: int


@dataclass
class GPUUsage:
    """Utilization (percent) and used memory (MB) of a GPU since `GPUMonitor.start`; unknown utilization is None."""

    id: str
    name: str
    num_samples: int = 0
    mean_utilization: float | None = None
    max_utilization: float | None = None
    mean_memory_mb: float = 0.0
    max_memory_mb: float = 0.0
    total_memory_mb: float = 0.0

    def add(self, utilization: float | None, used_mb: float, total_mb: float) -> None:
        """Updates the means and maxima with a sample. `utilization` must be None if the GPU does not report it."""
        self.num_samples += 1
        self.mean_memory_mb += (used_mb - self.mean_memory_mb) / self.num_samples
        self.max_memory_mb, self.total_memory_mb = max(self.max_memory_mb, used_mb), total_mb
        if utilization is not None:
            mean = self.mean_utilization or 0.0
            self.mean_utilization = mean + (utilization - mean) / self.num_samples
            self.max_utilization = max(self.max_utilization or 0.0, float(utilization))


@dataclass(frozen=True)
class GPUReport:
    """Usage of each monitored GPU. If no GPU was monitored, `unavailable_reason` gives the reason."""

    gpus: tuple[GPUUsage, ...]
    unavailable_reason: str | None = None

    def figures(self, roles: Sequence[str]) -> dict[str, float]:
        """Returns two metrics per role, such as `data_gpu_mb` (peak memory) and `data_gpu_percent` (mean utilization).

        Omits the utilization if it is unknown. Returns {} unless `roles` contains one role for each GPU in `gpus`.
        """
        found = {}
        for role in dict.fromkeys(roles) if len(self.gpus) == len(roles) else ():  # else a GPU cannot be read
            own = [usage for one, usage in zip(roles, self.gpus) if one == role]
            busy = [usage.mean_utilization for usage in own if usage.mean_utilization is not None]
            found[f"{role}_gpu_mb"] = max(usage.max_memory_mb for usage in own)
            found |= {f"{role}_gpu_percent": fmean(busy)} if busy else {}
        return found


@contextmanager
def nvml() -> Iterator[ModuleType]:
    """Initializes NVML for a `with` block and yields the module `pynvml`. Raises `NVMLUnavailable` if `pynvml` or the
    NVIDIA driver is missing, or if an NVML call inside the block fails, for example because a GPU was lost."""
    with needing("pynvml of the package nvidia-ml-py is not installed", NVMLUnavailable):
        import pynvml
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


def list_gpus() -> tuple[GPU, ...]:
    """Returns the GPUs that `CUDA_VISIBLE_DEVICES` lists (default: all). Raises `NVMLUnavailable` without NVML."""
    with nvml() as pynvml:
        name, memory, found = pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetMemoryInfo, _visible(pynvml)
        return tuple(GPU(entry, name(handle), memory(handle).total // BYTES_PER_MB) for entry, handle in found)


def _visible(pynvml, visible=None):
    """Yields `(entry, NVML handle)` for each entry in the string `visible` (default: `CUDA_VISIBLE_DEVICES`)."""
    # Entries are indices, UUIDs or prefixes of UUIDs; as in CUDA, the first entry that names no GPU ends the list.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    entries = map(str, range(len(handles))) if visible is None else visible.split(",")
    for entry in map(str.strip, entries):
        found = []
        if entry.isdecimal():
            found = handles[int(entry) :][:1]
        elif entry.startswith("MIG-"):
            with suppress(pynvml.NVMLError):
                found = [pynvml.nvmlDeviceGetHandleByUUID(entry)]
        elif entry:
            found = [one for one in handles if pynvml.nvmlDeviceGetUUID(one).startswith(entry)]
        if len(found) != 1:
            return
        yield entry, found[0]


class GPUMonitor:
    """Samples utilization and memory of GPUs in a thread, during a `with` block or from `start` to `stop`.

    Sampling ends early if a GPU can no longer be read. If nothing could be sampled, the report gives the reason.

    Args:
        indices: Physical numbers or UUIDs of the GPUs to monitor, such as `DevicePlan.visible_ids`. The report has the
            same order. None monitors every visible GPU. An empty sequence monitors none.
        interval_seconds: Seconds between samples.
    """

    def __init__(self, indices: Sequence[int | str] | None = None, interval_seconds: float = 0.5):
        self.visible = None if indices is None else ",".join(map(str, indices))
        self.interval_seconds = interval_seconds
        self._lock, self._stop, self._thread = threading.Lock(), threading.Event(), None
        self._usages, self._reason = (), "the monitor was not started"

    def start(self) -> "GPUMonitor":
        """Discards earlier samples, starts sampling, waits for the first sample and returns the monitor."""
        self.stop()
        self._usages, self._reason, ready = (), None, threading.Event()
        self._stop.clear()
        self._thread = threading.Thread(None, self._sample_until_stopped, "gpu-monitor", (ready,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    __enter__ = start

    def stop(self) -> GPUReport:
        """Stops sampling and returns the report."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        return self.report()

    def report(self) -> GPUReport:
        """Returns the usage from `start` until now or until `stop`."""
        with self._lock:
            usages = tuple(replace(usage) for usage in self._usages if usage.num_samples)
        return GPUReport(usages, None if usages else self._reason or "no samples were taken")

    def __exit__(self, *exception):
        self.stop()

    def _sample_until_stopped(self, ready):
        try:
            if self.visible == "":
                raise NVMLUnavailable("this run uses no GPU")
            with nvml() as pynvml:
                gpus, selected = [*_visible(pynvml, self.visible)], self.visible.split(",") if self.visible else []
                if len(gpus) < len(selected):
                    raise NVMLUnavailable(f"NVML finds no GPU {selected[len(gpus)]}")
                if not gpus:
                    raise NVMLUnavailable("no GPU is visible to this process")
                self._usages = tuple(GPUUsage(entry, pynvml.nvmlDeviceGetName(handle)) for entry, handle in gpus)
                while True:
                    for usage, (_, handle) in zip(self._usages, gpus):
                        memory, utilization = pynvml.nvmlDeviceGetMemoryInfo(handle), None
                        with suppress(pynvml.NVMLError_NotSupported):  # a MIG slice reports memory only
                            utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                        with self._lock:
                            usage.add(utilization, memory.used / BYTES_PER_MB, memory.total / BYTES_PER_MB)
                    ready.set()
                    if self._stop.wait(self.interval_seconds):
                        return
        except NVMLUnavailable as error:
            self._reason = str(error)
        finally:
            ready.set()

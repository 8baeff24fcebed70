"""Processor, memory and disks available to this process, under the limits of its container.

Limits come from control groups, versions 2 and 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/).
Values that cannot be read are None.
"""

import os
import platform
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from myxtts.config.checks import counted
from myxtts.storage.files import AnyPath

BYTES_PER_GB = 2**30
READ_CHUNK_BYTES = 2**20
PROBE_BYTES = 64 * 2**20
"""Size after which `probe_files` adds no further file."""


@dataclass(frozen=True)
class Processor:
    """The CPU as this process may use it."""

    name: str
    cores: int
    """Number of cores that this process may run on."""
    quota: float | None
    """CPU time of the container, in cores; None for no limit."""
    flags: frozenset[str]
    """Instruction sets by the kernel's names, empty if unknown."""


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes."""

    total: int
    available: int
    """Memory of the machine that is free without swapping, before any limit."""
    limit: int | None
    """Memory limit of the container; None for no limit."""
    used_of_limit: int | None
    """Part of the limit in use, without caches that can be dropped."""

    @property
    def usable(self) -> int:
        """Bytes that this process can still allocate."""
        if self.limit is None:
            return self.available
        return min(self.available, max(0, self.limit - (self.used_of_limit or 0)))


@dataclass(frozen=True)
class DiskSpeed:
    """Free bytes and reading speed of a folder's disk."""

    folder: str
    free: int
    read_per_second: float | None
    """Bytes per second; None if it could not be measured."""
    note: str
    """What was read, or why it could not be measured."""


def read_processor(root: Path = Path("/")) -> Processor:
    """Returns the processor and this process's share of it."""
    lines = (line.partition(":") for line in (_text(root / "proc/cpuinfo") or "").splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return Processor(name, len(affinity(0)) if affinity else os.cpu_count(), _cpu_quota(root), flags)


def read_memory(root: Path = Path("/")) -> Memory:
    """Returns the state of main memory and the container's limit."""
    machine, (limit, used) = psutil.virtual_memory(), _memory_limit(root)
    if limit is not None and limit >= machine.total:
        limit, used = None, None  # version 1 writes no limit as a huge number
    return Memory(machine.total, machine.available, limit, used)


def resident_bytes() -> int:
    """Returns the main memory of this process, in bytes."""
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """Returns the peak main memory of this process so far, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class PeakMemory:
    """Peak main memory of this process within a `with` block, sampled every 5 ms; then `peak`, in bytes."""

    def __enter__(self):
        self.peak, self._ended = resident_bytes(), threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="myxtts-memory", daemon=True)
        self._sampler.start()
        return self

    def _sample(self):
        while not self._ended.wait(0.005):
            self.peak = max(self.peak, resident_bytes())

    def __exit__(self, *exception):
        self._ended.set()
        self._sampler.join()
        self.peak = max(self.peak, resident_bytes())


def probe_files(folder: AnyPath, paths: Iterable[AnyPath], most_bytes: int = PROBE_BYTES) -> DiskSpeed:
    """Measures the free space of a folder's disk, and its reading speed on some of the data files there."""
    chosen, total = [], 0
    for path in paths:
        if total >= most_bytes:
            break
        chosen.append(path)
        total += os.path.getsize(path)
    measured = _uncached_speed(chosen) if chosen else (None, "not measured: no files")
    return DiskSpeed(str(folder), shutil.disk_usage(folder).free, *measured)


def _uncached_speed(paths):
    """Returns the speed of reading files, dropped from the system's cache before, and a note on what was read."""
    if not hasattr(os, "posix_fadvise"):
        return None, "not measured: this system cannot drop its file cache"
    total, seconds = 0, 0.0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while chunk := file.read(READ_CHUNK_BYTES):
                total += len(chunk)
            seconds += time.perf_counter() - began
    what = f"{counted(len(paths), 'file')}, {total / 2**20:.0f} MB"
    return total / seconds, f"{what}, without this system's cache (the host of a virtual disk may have one)"


def _limiting_files(root, controller, *names):
    """Yields the texts of `names` in this process's control group and in all above it, the innermost first.

    `controller` is empty for version 2. In a container the group's path may be that of the host, and the group itself
    at the mount's root.
    """
    lines = [line.split(":", 2)[1:] for line in (_text(root / "proc/self/cgroup") or "").splitlines()]
    folders = {name: path.strip("/") for names, path in lines for name in names.split(",")}
    mount = root / "sys/fs/cgroup" / (controller if controller in folders else "")
    folder = mount / folders.get(controller, "")
    for place in (folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))):
        texts = [_text(place / name) for name in names]
        if texts[0] is not None:
            yield texts


def _memory_limit(root):
    """Returns the lowest limit and the part in use, in bytes, or `(None, None)`."""
    found = []
    version_1 = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    version_2 = "", "memory.max", "memory.current", "inactive_file"
    for controller, limit_name, used_name, cache_key in (version_1, version_2):
        for limit, used, statistics in _limiting_files(root, controller, limit_name, used_name, "memory.stat"):
            if not limit.strip().isdecimal():
                continue  # "max"
            lines = [line.split() for line in (statistics or "").splitlines()]
            cache = next((int(value) for key, value in lines if key == cache_key), 0)
            found.append((int(limit), max(0, int(used) - cache) if used else None))
    return min(found, key=lambda pair: pair[0], default=(None, None))


def _cpu_quota(root):
    """Returns the CPU time allowed by the control groups, in cores, or None."""
    pairs = [*_limiting_files(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    pairs += [maximum.split() for (maximum,) in _limiting_files(root, "", "cpu.max")]
    # No limit is -1 in version 1, "max" in version 2.
    quotas = [int(quota) / int(period) for quota, period in pairs if quota != "max" and int(quota) > 0]
    return min(quotas, default=None)


def _text(path):
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None

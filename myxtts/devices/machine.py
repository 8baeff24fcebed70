"""The machine as this process may use it: processor, memory, disks. What cannot be read is None, never a guess.

Limits of containers count: a process in one may use fewer cores and less memory than the machine has. They are read
from control groups, version 2 and version 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/).
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

from myxtts.storage.files import AnyPath

BYTES_PER_GB = 2**30
"""GB here is 2**30 bytes."""
READ_CHUNK_BYTES = 2**20
PROBE_BYTES = 64 * 2**20
"""What `probe_files` reads at most, but for the rest of a file."""


@dataclass(frozen=True)
class Processor:
    """The CPU: `cores` that this process may run on, and `quota`, how many cores' time the container may use.

    `quota` is None for no limit. `flags` are instruction sets as the kernel names them, empty where it does not tell.
    """

    name: str
    cores: int
    quota: float | None
    flags: frozenset[str]


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes: of the machine in all, and available now without swapping, before any limit.

    `limit` is the container's, None for none; `used_of_limit` leaves out caches that can be dropped.
    """

    total: int
    available: int
    limit: int | None
    used_of_limit: int | None

    @property
    def usable(self) -> int:
        """Bytes that this process can still take: the smaller of what is available and what the limit leaves."""
        if self.limit is None:
            return self.available
        return min(self.available, max(0, self.limit - (self.used_of_limit or 0)))


@dataclass(frozen=True)
class DiskSpeed:
    """What reading from one folder's disk gave, in bytes; `note` says what was read, or why nothing was.

    `read_per_second` is None where nothing was read or the operating system's cache could not be passed by.
    """

    folder: str
    free: int
    read_per_second: float | None
    note: str


def read_processor(root: Path = Path("/")) -> Processor:
    """The processor as this process may use it."""
    lines = (line.partition(":") for line in (_text(root / "proc/cpuinfo") or "").splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return Processor(name, len(affinity(0)) if affinity else os.cpu_count(), _cpu_quota(root), flags)


def read_memory(root: Path = Path("/")) -> Memory:
    """Main memory and the limit that this process works under."""
    machine, (limit, used) = psutil.virtual_memory(), _memory_limit(root)
    if limit is not None and limit >= machine.total:
        limit, used = None, None  # version 1 says "none" by a number beyond any machine
    return Memory(machine.total, machine.available, limit, used)


def resident_bytes() -> int:
    """Main memory that this process holds now, in bytes."""
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """Most main memory that this process has held at one time, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class PeakMemory:
    """A `with` block that samples every 5 ms how much main memory this process holds.

    After the block, `peak` is the largest sample in bytes.
    """

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
    """Free space on the disk of a folder, and the reading speed from some of a data set's own files there, if any."""
    chosen, total = [], 0
    for path in paths:
        if total >= most_bytes:
            break
        chosen.append(path)
        total += os.path.getsize(path)
    measured = _uncached_speed(chosen) if chosen else (None, "not measured: there is no file to read")
    return DiskSpeed(str(folder), shutil.disk_usage(folder).free, *measured)


def _uncached_speed(paths):
    """Bytes per second of reading files that the system's cache was asked to let go of, and what was read."""
    if not hasattr(os, "posix_fadvise"):
        return None, "not measured: this system does not let go of cached files"
    total, seconds = 0, 0.0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while chunk := file.read(READ_CHUNK_BYTES):
                total += len(chunk)
            seconds += time.perf_counter() - began
    what = f"{len(paths)} files" if len(paths) > 1 else "one file"
    note = f"{what}, {total / 2**20:.0f} MB, past this system's cache (a virtual disk's host may have one)"
    return total / seconds, note


def _limiting_files(root, controller, *names):
    """Texts of `names` in the control group of this process and in all above it, the innermost first.

    `controller` is empty for version 2. A container may show its own group at the mount's root and name it by its path
    outside.
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
    """The tightest limit in bytes and what is used of it, `(None, None)` for none."""
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
    """Cores' worth of time that the control groups allow, None for no limit."""
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

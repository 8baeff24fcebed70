"""What this machine has for the process: processor, memory and disks, names of TensorFlow devices, and number formats.

Limits come from control groups, versions 2 and 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/).
Values that cannot be read are None.
"""

import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from myxtts.config.checks import UserError, counted
from myxtts.storage.files import AnyPath

BYTES_PER_GB = 2**30
READ_CHUNK_BYTES = 2**20
PROBE_BYTES = 64 * 2**20
"""Size after which `probe_files` adds no further file."""
BFLOAT16_CAPABILITY = (8, 0)
"""First CUDA compute capability with bfloat16 tensor cores (Ampere)."""
FLOAT16_CAPABILITY = (7, 0)
"""First CUDA compute capability with tensor cores, for float16 (Volta)."""
BFLOAT16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of bfloat16 instructions in /proc/cpuinfo: Intel and AMD, Arm."""
DEVICE_NAME = re.compile(r"(cpu|gpu)(?::(\d+))?", re.IGNORECASE)


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


def read_processor(root: Path = Path("/")) -> Processor:
    """Returns the processor and this process's share of it."""
    lines = (line.partition(":") for line in (_text(root / "proc/cpuinfo") or "").splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    pairs = [*_limiting_files(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    pairs += [maximum.split() for (maximum,) in _limiting_files(root, "", "cpu.max")]
    # No limit is -1 in version 1, "max" in version 2.
    quotas = [int(quota) / int(period) for quota, period in pairs if quota != "max" and int(quota) > 0]
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return Processor(name, len(affinity(0)) if affinity else os.cpu_count(), min(quotas, default=None), flags)


def read_memory(root: Path = Path("/")) -> Memory:
    """Returns the state of main memory and the lowest limit of the container."""
    machine, found = psutil.virtual_memory(), []
    version_1 = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    version_2 = "", "memory.max", "memory.current", "inactive_file"
    for controller, limit_name, used_name, cache_key in (version_1, version_2):
        for limit, used, statistics in _limiting_files(root, controller, limit_name, used_name, "memory.stat"):
            # No limit is a huge number in version 1, "max" in version 2.
            if limit.strip().isdecimal() and int(limit) < machine.total:
                lines = [line.split() for line in (statistics or "").splitlines()]
                cache = next((int(value) for key, value in lines if key == cache_key), 0)
                found.append((int(limit), max(0, int(used) - cache) if used else None))
    limit, used = min(found, key=lambda pair: pair[0], default=(None, None))
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


def probe_files(folder: AnyPath, paths: Iterable[AnyPath], most_bytes: int = PROBE_BYTES) -> dict[str, Any]:
    """Measures the free bytes of a folder's disk, and its reading speed on some of the data files there.

    Returns:
        `folder`, `free`, `read_per_second` in bytes (None if it was not measured), and `note`: what was read, or why
        nothing was.
    """
    count, total, seconds, note = 0, 0, 0.0, "not measured: no files"
    for path in paths:
        if not hasattr(os, "posix_fadvise"):
            note = "not measured: this system cannot drop its file cache"
        if not hasattr(os, "posix_fadvise") or total >= most_bytes:
            break
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while chunk := file.read(READ_CHUNK_BYTES):
                total += len(chunk)
            seconds += time.perf_counter() - began
        count += 1
        what = f"{counted(count, 'file')}, {total / 2**20:.0f} MB"
        note = f"{what}, without this system's cache (the host of a virtual disk may have one)"
    found = {"folder": str(folder), "free": shutil.disk_usage(folder).free}
    return {**found, "read_per_second": total / seconds if count else None, "note": note}


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


def _text(path):
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def default_device() -> str:
    """Returns TensorFlow's name of the first visible GPU, or of the CPU."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


def check_device(name: str | None) -> None:
    """Raises `UserError` for a malformed device name; needs no TensorFlow."""
    if name is not None and not DEVICE_NAME.fullmatch(name):
        raise UserError(f"--device must be cpu, gpu or gpu:N. Received: {name}.")


def device_named(name: str, setting: str = "--device") -> str:
    """Returns TensorFlow's short name of a device given as `cpu`, `gpu:1` or `/GPU:1`; starts its runtime.

    Raises:
        UserError: There is no such device; the message names the `setting`.
    """
    import tensorflow as tf

    there = [short_name(one.name) for one in tf.config.list_logical_devices()]
    wanted = short_name(name if ":" in name else f"{name}:0").upper()
    if wanted not in there:
        known = ", ".join(one.strip("/").lower() for one in there)
        raise UserError(f"{setting} must be one of {known}. Received: {name}.")
    return wanted


def runs_on_cpu(device: str | None = None) -> bool:
    """Whether a device, by default the default device, is a CPU; the name may be short or full."""
    return short_name(device or default_device()).upper().startswith("/CPU:")


def short_name(device: str) -> str:
    """Shortens `/job:localhost/replica:0/task:0/device:GPU:1` to `/GPU:1`."""
    match = re.search(r"(?:device:|/|^)((?:CPU|GPU):\d+)$", device, re.IGNORECASE)
    return f"/{match[1]}" if match else device


def choose_precision(requested: str, device: str) -> tuple[str, str]:
    """Returns the dtype policy to train with on a device, and the reason as a sentence.

    `auto` takes bfloat16 if the hardware has it, else float16 on GPUs with tensor cores, else float32. A GPU without
    bfloat16 gets float32 instead, which is faster there. A CPU computes any format, maybe slowly.
    """
    if runs_on_cpu(device):
        has_bfloat16 = bool(BFLOAT16_CPU_FLAGS & read_processor().flags)
        hardware = f"this CPU has {'' if has_bfloat16 else 'no '}bfloat16 instructions"
        return ("mixed_bfloat16" if has_bfloat16 else "float32") if requested == "auto" else requested, hardware
    capability = _compute_capability(device)
    if capability is None:
        return "float32" if requested == "auto" else requested, "TensorFlow reports no compute capability for this GPU"
    hardware = f"compute capability {capability[0]}.{capability[1]}"
    if requested == "auto":
        if capability >= BFLOAT16_CAPABILITY:
            return "mixed_bfloat16", f"{hardware} has bfloat16"
        if capability >= FLOAT16_CAPABILITY:
            return "mixed_float16", f"{hardware} has float16 tensor cores and no bfloat16"
        return "float32", f"{hardware} has no tensor cores"
    if requested == "mixed_bfloat16" and capability < BFLOAT16_CAPABILITY:
        return "float32", f"{hardware} has no bfloat16; --precision auto takes what it has"
    return requested, hardware


def rounds_to_tf32(device: str) -> bool:
    """Whether float32 matrix products on a device currently use TF32, by computing one."""
    import tensorflow as tf

    with tf.device(device):
        product = tf.linalg.matmul(tf.fill((256, 256), 1.0 + 2.0**-13), tf.eye(256))
    return bool(tf.reduce_all(product == 1.0))


def _compute_capability(device):
    """Returns the lowest compute capability of the GPUs from `device` on, the model GPUs, or None if unknown."""
    import tensorflow as tf

    gpus, parts = tf.config.get_visible_devices("GPU"), tf.config.get_logical_device_configuration
    boards = [gpu for gpu in gpus for _ in parts(gpu) or [gpu]]
    details = map(tf.config.experimental.get_device_details, boards[int(device.rpartition(":")[2]) :])
    found = [detail.get("compute_capability") for detail in details]
    return min(found) if found and None not in found else None

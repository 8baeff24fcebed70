"""Processor, memory, disks and TensorFlow devices of this machine, and the number formats that a device supports.

Limits of containers come from Linux control groups, version 2 or 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html
and cgroup-v1/). Values that cannot be read are None.
"""

import os
import platform
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from myxtts.config.checks import counted, require
from myxtts.storage.files import AnyPath

BYTES_PER_GB = 2**30
BFLOAT16_CAPABILITY = (8, 0)
"""First CUDA compute capability with bfloat16 tensor cores (Ampere)."""


@dataclass(frozen=True)
class Processor:
    """The CPU and how much of it this process may use."""

    name: str
    cores: int
    """Number of cores that this process may run on."""
    quota: float | None
    """CPU time limit of the container, in cores; None for no limit."""
    flags: frozenset[str]
    """Names of instruction sets, as in /proc/cpuinfo; empty if unknown."""


@dataclass(frozen=True)
class Memory:
    """State of the RAM, in bytes."""

    total: int
    available: int
    """Memory that the whole machine can still allocate without swapping."""
    limit: int | None
    """Memory limit of the container; None for no limit."""
    used_of_limit: int | None
    """Memory that the container uses, without caches that the kernel can drop; None if unknown."""

    @property
    def usable(self) -> int:
        """Bytes that this process can still allocate."""
        left = self.available if self.limit is None else max(0, self.limit - (self.used_of_limit or 0))
        return min(self.available, left)


def read_processor(root: Path = Path("/")) -> Processor:
    """Returns the CPU and how much CPU time this process may use. Only tests change the root folder `root`."""
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
    """Returns the state of the RAM and the container's memory limit. Only tests change the root folder `root`."""
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
    """Returns the resident memory (RSS) of this process in bytes."""
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """Returns the peak resident memory (RSS) of this process in bytes, since its start or the last `reset_peak`."""
    counted = re.search(r"VmHWM:\s*(\d+)", _text(Path("/proc/self/status")) or "")
    if counted:
        return 1024 * int(counted[1])
    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak() -> int:
    """Sets the peak to the current RSS, where the kernel allows this. Returns the peak in bytes."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak_resident_bytes()


def probe_files(folder: AnyPath, paths: Iterable[AnyPath], most_bytes: int = 64 * 2**20) -> dict[str, Any]:
    """Measures the free space of a folder's disk, and how fast the files `paths` can be read.

    Stops after `most_bytes` have been read. Returns a dictionary with `folder`, `free` (bytes), `read_per_second`
    (bytes, or None if nothing was read) and `note`, a text that tells what was read, or why nothing was read.
    """
    count, total, seconds, note = 0, 0, 0.0, "not measured: no files"
    if not hasattr(os, "posix_fadvise"):
        paths, note = (), "not measured: this system cannot drop its file cache"
    for path in paths:
        if total >= most_bytes:
            break
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while chunk := file.read(2**20):
                total += len(chunk)
            seconds += time.perf_counter() - began
        count += 1
        read = f"{counted(count, 'file')}, {total / 2**20:.0f} MB"
        note = f"{read}, without this system's cache (the host of a virtual disk may have one)"
    found = {"folder": str(folder), "free": shutil.disk_usage(folder).free}
    return {**found, "read_per_second": total / seconds if count else None, "note": note}


def _limiting_files(root, controller, *names):
    """Yields the texts of the files `names` in the control group of this process, then those in each parent group. Each
    item is a list with one text per file, or None for a missing file. Groups that lack the first of the files are
    skipped. `controller` is `cpu`, `memory`, or "" for cgroup v2."""
    # In a container, the path of the group may be the path on the host; then the group is at the root of the mount.
    lines = [line.split(":", 2)[1:] for line in (_text(root / "proc/self/cgroup") or "").splitlines()]
    folders = {name: path.strip("/") for names, path in lines for name in names.split(",")}
    mount = root / "sys/fs/cgroup" / (controller if controller in folders else "")
    folder = mount / folders.get(controller, "")
    for place in (folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))):
        texts = [_text(place / name) for name in names]
        if texts[0] is not None:
            yield texts


def _text(path):
    with suppress(OSError):
        return path.read_text(encoding="utf-8")


def default_device() -> str:
    """Returns `/GPU:0` if TensorFlow sees a GPU, else `/CPU:0`."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


def check_device(name: str | None) -> None:
    """Raises `UserError` if a device name is not `cpu`, `gpu`, `gpu:N` or None; does not import TensorFlow."""
    require(name is None or bool(re.fullmatch(r"(cpu|gpu)(:\d+)?", name, re.I)), "--device", "cpu, gpu or gpu:N", name)


def device_named(name: str | None, setting: str = "--device") -> str:
    """Converts `cpu`, `gpu:1` or `/GPU:1` to TensorFlow's short device name; starts TensorFlow's runtime.

    None or "" means the default device. Raises `UserError` if the device is missing; the message names `setting`.
    """
    if not name:
        return default_device()
    import tensorflow as tf

    present = [short_name(one.name) for one in tf.config.list_logical_devices()]
    device = short_name(name if ":" in name else f"{name}:0").upper()
    require(device in present, setting, f"one of {', '.join(one.strip('/').lower() for one in present)}", name)
    return device


def runs_on_cpu(device: str) -> bool:
    """Returns whether a device, given by its short or full name, is a CPU."""
    return short_name(device).upper().startswith("/CPU:")


def short_name(device: str) -> str:
    """Shortens `/job:localhost/replica:0/task:0/device:GPU:1` to `/GPU:1`."""
    match = re.search(r"(?:device:|/|^)((?:CPU|GPU):\d+)$", device, re.IGNORECASE)
    return f"/{match[1]}" if match else device


def choose_precision(requested: str, device: str) -> tuple[str, str]:
    """Returns the Keras dtype policy for training on a device, and the reason for it in words.

    `auto` selects bfloat16 if the hardware supports it, else float16 on GPUs with tensor cores, else float32. On GPUs
    without bfloat16, a request for bfloat16 becomes float32, which is faster there. Other requests remain unchanged.
    """
    if runs_on_cpu(device):
        has_bfloat16 = not read_processor().flags.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # Intel, AMD, Arm
        hardware = f"this CPU has {'' if has_bfloat16 else 'no '}bfloat16 instructions"
        automatic = "mixed_bfloat16" if has_bfloat16 else "float32"
        return automatic if requested == "auto" else requested, hardware
    capability = _compute_capability(device)
    if capability is None:
        return "float32" if requested == "auto" else requested, "TensorFlow reports no compute capability for this GPU"
    hardware = f"compute capability {capability[0]}.{capability[1]}"
    if requested == "auto":
        if capability >= BFLOAT16_CAPABILITY:
            return "mixed_bfloat16", f"{hardware} has bfloat16"
        if capability >= (7, 0):  # Volta
            return "mixed_float16", f"{hardware} has float16 tensor cores and no bfloat16"
        return "float32", f"{hardware} has no tensor cores"
    if requested == "mixed_bfloat16" and capability < BFLOAT16_CAPABILITY:
        return "float32", f"{hardware} has no bfloat16; --precision auto selects a supported one"
    return requested, hardware


def rounds_to_tf32(device: str) -> bool:
    """Computes a float32 matrix product on a device; returns whether the device rounds to TF32."""
    import tensorflow as tf

    with tf.device(device):
        product = tf.linalg.matmul(tf.fill((256, 256), 1.0 + 2.0**-13), tf.eye(256))
    return bool(tf.reduce_all(product == 1.0))


def _compute_capability(device):
    """Returns the lowest compute capability of the GPUs that train: `device` and the GPUs after it. None if unknown."""
    import tensorflow as tf

    gpus, parts_of = tf.config.get_visible_devices("GPU"), tf.config.get_logical_device_configuration
    boards = [gpu for gpu in gpus for _ in parts_of(gpu) or [gpu]]  # the GPU of each logical device
    number = int(device.rpartition(":")[2])
    found = [tf.config.experimental.get_device_details(gpu).get("compute_capability") for gpu in boards[number:]]
    return min(found) if found and None not in found else None

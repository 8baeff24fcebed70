"""Which kind of device a name means, the default device, and the number formats that a device computes products in."""

import re

from myxtts.config.checks import UserError
from myxtts.devices.machine import read_processor

BFLOAT16_CAPABILITY = (8, 0)
"""CUDA compute capability from which tensor cores take bfloat16 (Ampere)."""
FLOAT16_CAPABILITY = (7, 0)
"""CUDA compute capability from which there are tensor cores, for float16 (Volta)."""
BFLOAT16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Names of the instructions in /proc/cpuinfo: Intel, AMD; Arm."""


def default_device() -> str:
    """TensorFlow's name of the first visible GPU, or of the CPU where there is none."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


DEVICE_NAME = re.compile(r"(cpu|gpu)(?::(\d+))?", re.IGNORECASE)


def check_device(name: str | None) -> None:
    """Raises `UserError` for a name that cannot be a device's, before TensorFlow can tell which there are."""
    if name is not None and not DEVICE_NAME.fullmatch(name):
        raise UserError(f"--device must be cpu, gpu or gpu:N. Received: {name}.")


def device_named(name: str, setting: str = "--device") -> str:
    """TensorFlow's short name of a device, `cpu`, `gpu:1` or in its own way; starts its runtime.

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
    """Whether `device`, or else the default device of this process, is a CPU; the name may be short or in full."""
    return short_name(device or default_device()).upper().startswith("/CPU:")


def short_name(device: str) -> str:
    """`/job:localhost/replica:0/task:0/device:GPU:1` as `/GPU:1`."""
    match = re.search(r"(?:device:|/|^)((?:CPU|GPU):\d+)$", device, re.IGNORECASE)
    return f"/{match[1]}" if match else device


def choose_precision(requested: str, device: str) -> tuple[str, str]:
    """The dtype policy to train under on `device` when `requested` is asked for, and why, in words.

    `auto` takes bfloat16 where the hardware has it, float16 on older GPUs with tensor cores, float32 elsewhere. On a
    GPU that lacks bfloat16 it is slower than float32, and becomes float32. A CPU computes any format, maybe slowly.
    """
    if runs_on_cpu(device):
        has_bfloat16 = bool(BFLOAT16_CPU_FLAGS & read_processor().flags)
        hardware = f"this CPU has {'' if has_bfloat16 else 'no '}bfloat16 instructions"
        return ("mixed_bfloat16" if has_bfloat16 else "float32") if requested == "auto" else requested, hardware
    capability = _compute_capability(device)
    if capability is None:
        return "float32" if requested == "auto" else requested, "TensorFlow does not tell what this GPU can compute"
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
    """Whether matrix products of float32 on `device` are rounded to TF32's 10 bits just now, seen on one of them."""
    import tensorflow as tf

    with tf.device(device):
        product = tf.linalg.matmul(tf.fill((256, 256), 1.0 + 2.0**-13), tf.eye(256))
    return bool(tf.reduce_all(product == 1.0))


def _compute_capability(device):
    """The lowest CUDA compute capability of the GPUs from `device` on, or None where TensorFlow tells none.

    Before the first that trains there is only the one that prepares data, which may be older.
    """
    import tensorflow as tf

    gpus, parts = tf.config.get_visible_devices("GPU"), tf.config.get_logical_device_configuration
    boards = [gpu for gpu in gpus for _ in parts(gpu) or [gpu]]
    details = map(tf.config.experimental.get_device_details, boards[int(device.rpartition(":")[2]) :])
    found = [detail.get("compute_capability") for detail in details]
    return min(found) if found and None not in found else None

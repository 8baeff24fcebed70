"""Names of devices, and the number formats that a device supports."""

import re

from myxtts.config.checks import UserError
from myxtts.devices.machine import read_processor

BFLOAT16_CAPABILITY = (8, 0)
"""First CUDA compute capability with bfloat16 tensor cores (Ampere)."""
FLOAT16_CAPABILITY = (7, 0)
"""First CUDA compute capability with tensor cores, for float16 (Volta)."""
BFLOAT16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of bfloat16 instructions in /proc/cpuinfo: Intel and AMD, Arm."""
DEVICE_NAME = re.compile(r"(cpu|gpu)(?::(\d+))?", re.IGNORECASE)


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

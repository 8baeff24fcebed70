"""Which kind of device a name means, and which device is used unless something else is said."""

import re

from myxtts.config.checks import UserError


def default_device() -> str:
    """TensorFlow's name of the first visible GPU, or of the CPU where there is none."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


def device_named(name: str) -> str:
    """TensorFlow's name of `cpu`, `gpu` or `gpu:N`, N counted among the visible GPUs.

    Raises:
        UserError: There is no such device.
    """
    import tensorflow as tf

    match = re.fullmatch(r"(cpu|gpu)(?::(\d+))?", name, re.IGNORECASE)
    there = [f"{kind.lower()}:{n}" for kind in ("CPU", "GPU") for n in range(len(tf.config.get_visible_devices(kind)))]
    wanted = match and f"{match[1].lower()}:{int(match[2] or 0)}"
    if wanted not in there:
        raise UserError(f"--device must be one of {', '.join(there)}. Received: {name}.")
    return f"/{wanted.upper()}"


def runs_on_cpu(device: str | None = None) -> bool:
    """Whether `device`, or else the default device of this process, is a CPU; the name may be short or in full."""
    return short_name(device or default_device()).upper().startswith("/CPU:")


def short_name(device: str) -> str:
    """`/job:localhost/replica:0/task:0/device:GPU:1` as `/GPU:1`."""
    match = re.search(r"(?:device:|/|^)((?:CPU|GPU):\d+)$", device, re.IGNORECASE)
    return f"/{match[1]}" if match else device

"""Which kind of device a name means, and which device is used unless something else is said."""

import re


def default_device() -> str:
    """TensorFlow's name of the first visible GPU, or of the CPU where there is none."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


def runs_on_cpu(device: str | None = None) -> bool:
    """Whether `device`, or else the default device of this process, is a CPU; the name may be short or in full."""
    return short_name(device or default_device()).upper().startswith("/CPU:")


def short_name(device: str) -> str:
    """`/job:localhost/replica:0/task:0/device:GPU:1` as `/GPU:1`."""
    match = re.search(r"(?:device:|/|^)((?:CPU|GPU):\d+)$", device, re.IGNORECASE)
    return f"/{match[1]}" if match else device

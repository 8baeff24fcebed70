"""Which kind of device a name stands for, and which one is used unless something else is said."""


def default_device() -> str:
    """TensorFlow's name of the first visible GPU, or of the CPU where there is none."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.get_visible_devices("GPU") else "/CPU:0"


def runs_on_cpu(device: str | None = None) -> bool:
    """Whether `device`, or else the default device of this process, is a CPU."""
    import tensorflow as tf

    return tf.DeviceSpec.from_string(device or default_device()).device_type == "CPU"

"""Simulates a machine with GPUs: a stand-in `tensorflow` module and NVML list that follow CUDA's rules."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

from myxtts.devices import configuration as devices
from myxtts.devices.gpu_monitor import GPU, NVMLUnavailable

TENSORFLOW = '''
"""GPUs by CUDA's and TensorFlow's rules: CUDA_VISIBLE_DEVICES selects and orders, set_visible_devices only selects."""
import os
from types import SimpleNamespace

_entries = os.environ.get("CUDA_VISIBLE_DEVICES")
_machine = [str(i) for i in range(int(os.environ["STAND_IN_GPUS"]))]
_cuda = _machine if _entries is None else [e for e in _entries.split(",") if e in _machine]
_gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}", device_type="GPU", board=b) for i, b in enumerate(_cuda)]
_cpu = SimpleNamespace(name="/physical_device:CPU:0", device_type="CPU")
state = SimpleNamespace(visible=list(_gpus), growth=[], limits={}, soft_placement=True, policy=None, initialized=False)


def _changeable(kind):
    if state.initialized:
        raise RuntimeError(f"{kind} devices cannot be modified after being initialized")


def _set_visible_devices(chosen, kind):
    _changeable("Visible")
    assert kind == "GPU" and all(gpu in _gpus for gpu in chosen)
    state.visible = [gpu for gpu in _gpus if gpu in chosen]


def _set_memory_growth(gpu, enable):
    _changeable("Physical")
    if gpu.name in state.limits:
        raise ValueError("Cannot set memory growth on device when virtual devices configured")
    state.growth.append(gpu.board)


def _set_logical_device_configuration(device, configurations):
    _changeable("Virtual")
    state.limits[device.name] = [c.memory_limit for c in configurations]


def boards():
    """The board behind each logical device, in TensorFlow's order: element 0 is /GPU:0."""
    return [gpu.board for gpu in state.visible for _ in state.limits.get(gpu.name, [None])]


test = SimpleNamespace(is_built_with_cuda=lambda: True, is_built_with_rocm=lambda: False)
config = SimpleNamespace(
    list_physical_devices=lambda kind: list(_gpus) if kind == "GPU" else [_cpu],
    get_visible_devices=lambda kind: list(state.visible) if kind == "GPU" else [_cpu],
    set_visible_devices=_set_visible_devices,
    get_logical_device_configuration=lambda device: None,
    set_logical_device_configuration=_set_logical_device_configuration,
    LogicalDeviceConfiguration=lambda memory_limit=None: SimpleNamespace(memory_limit=memory_limit),
    set_soft_device_placement=lambda on: setattr(state, "soft_placement", on),
    experimental=SimpleNamespace(set_memory_growth=_set_memory_growth, get_device_details=lambda gpu: {},
                                 set_device_policy=lambda policy: setattr(state, "policy", policy)))
'''


@contextlib.contextmanager
def stand_in_machine(num_gpus, nvml=True, memory_mb=24000, **environment):
    """Simulates a machine with GPUs in a `with` block, where TensorFlow is not imported and nothing is configured.

    Args:
        num_gpus: Number of GPUs; their boards are called "0", "1", ...
        nvml: Whether NVML can be read.
        memory_mb: Memory of each GPU.
        environment: Environment variables to set, such as `CUDA_VISIBLE_DEVICES`; other device variables are unset.

    Yields:
        A function that returns the stand-in TensorFlow after its import. Its function `boards()` lists the board of
        each logical GPU, and its attribute `state` holds the configuration.
    """

    def list_gpus():
        if not nvml:
            raise NVMLUnavailable("no driver")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        ids = [str(i) for i in range(num_gpus)] if visible is None else visible.split(",")
        return tuple(GPU(gpu_id, "stand-in", memory_mb) for gpu_id in ids)

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ),
        mock.patch.dict(sys.modules),
        mock.patch.object(sys, "path", [folder, *sys.path]),
        mock.patch.object(devices, "_applied", None),
        mock.patch.object(devices, "list_gpus", list_gpus),
        mock.patch.object(devices, "GPU_DRIVER_PLACES", [folder]),
    ):
        package = Path(folder) / "tensorflow"
        package.mkdir()
        (package / "__init__.py").write_text(TENSORFLOW)
        ours = "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER MYXTTS_ACCELERATOR URVC_ACCELERATOR MYXTTS_VIRTUAL_DEVICES"
        for name in ours.split():
            os.environ.pop(name, None)
        os.environ.update(environment, STAND_IN_GPUS=str(num_gpus))
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
            del sys.modules[name]
        yield lambda: sys.modules["tensorflow"]

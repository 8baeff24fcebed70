"""The device plan: which device prepares data, and which devices train. Making a plan does not need TensorFlow."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from myxtts.config.checks import UserError, counted
from myxtts.config.flags import DeviceOptions
from myxtts.config.settings import Default
from myxtts.devices.gpu_monitor import GPU

ACCELERATORS = ("auto", "cpu", "cuda", "rocm")
VIRTUAL_NOTES = (
    "These devices are virtual: logical CPU devices in place of GPUs. Placement and results are as on GPUs; speed and "
    "memory are not.",
    "The memory limits are not enforced: virtual devices share the memory of this machine.",
)
ISOLATION_NOTES = ("Memory growth stays off: TensorFlow has either growth or a hard limit.",)


def accelerator_variable() -> str:
    """Returns the accelerator's environment variable: `MYXTTS_ACCELERATOR`, unless only `URVC_ACCELERATOR` is set."""
    return next(filter(os.environ.get, ("MYXTTS_ACCELERATOR", "URVC_ACCELERATOR")), "MYXTTS_ACCELERATOR")


class DeviceError(UserError):
    """Raised if devices are not available, options contradict each other, or variables are on the wrong device."""


@dataclass(frozen=True)
class DevicePlan:
    """The device that prepares data and the devices that train. All other modules take device names from a plan."""

    mode: str
    """`single` (one device for data and model), `dual` (separate devices) or `isolated` (`dual` with memory limits)."""
    data_device: str
    """TensorFlow name of the device that prepares batches."""
    model_devices: tuple[str, ...]
    """TensorFlow names of the devices that train, one per replica."""
    data_gpu: int | None = None
    """GPU or virtual device for data, by its index among those visible to this process; None without GPUs."""
    model_gpus: tuple[int, ...] = ()
    """Indices of the model GPUs or virtual devices, in the order of `model_devices`."""
    visible: tuple[int, ...] = ()
    """Indices of the GPUs that the plan makes visible to TensorFlow, in TensorFlow's order."""
    visible_ids: tuple[str, ...] = ()
    """`CUDA_VISIBLE_DEVICES` entries of the GPUs in `visible`; empty without GPUs."""
    data_memory_mb: int | None = None
    """Hard memory limit of the data device in MB; None for no limit."""
    model_memory_mb: int | None = None
    """Hard memory limit of each model device in MB; None for no limit."""
    virtual: bool = False
    """Whether the devices are logical CPU devices in place of GPUs."""
    accelerator: str = "auto"
    """Device type that the user demands, one of `ACCELERATORS`; `auto` allows any."""
    notes: tuple[str, ...] = ()
    """Remarks on the plan that are printed for the user."""

    @property
    def model_device(self) -> str:
        """TensorFlow name of the first model device."""
        return self.model_devices[0]

    @property
    def is_dual(self) -> bool:
        """Whether data and model have separate devices (Multi-GPU Mode)."""
        return self.data_device not in self.model_devices

    @property
    def gpu_roles(self) -> tuple[str, ...]:
        """Role of each GPU in `visible_ids`, for `GPUReport.figures`: `model` if the GPU trains, else `data`."""
        return tuple("model" if gpu in self.model_gpus else "data" for gpu, _ in zip(self.visible, self.visible_ids))

    def describe(self) -> str:
        """Returns the mode and the devices in one line, for messages."""
        if not self.is_dual:
            return f"{self.mode}: data and model on {self.data_device}"
        kind = "virtual device" if self.virtual else "GPU"
        models = ", ".join(f"{device} ({kind} {gpu})" for device, gpu in zip(self.model_devices, self.model_gpus))
        return f"{self.mode}: data on {self.data_device} ({kind} {self.data_gpu}), model on {models}"


@dataclass
class DeviceRequest(DeviceOptions):
    """Device options of the user. GPUs are given by their index among the GPUs that are visible to this process."""

    data_gpu: int | None = None
    model_gpu: int | None = None
    """GPU that trains; requires `data_gpu`, and cannot be combined with `model_gpus`."""
    accelerator: str = "auto"
    """Device type that the user demands, one of `ACCELERATORS`; `auto` allows any."""

    @property
    def models(self) -> tuple[int, ...]:
        """Indices of all model GPUs, from `model_gpu` or `model_gpus`; empty if neither is given."""
        return tuple(self.model_gpus or (self.model_gpu,) * (self.model_gpu is not None))


def plan_devices(*, num_gpus: int, gpus: Sequence[GPU] | None = None, **request) -> DevicePlan:
    """Chooses the device that prepares data and the devices that train; the result depends only on the arguments.

    Args:
        num_gpus: Number of GPUs visible to this process.
        gpus: The visible GPUs with ids and memory. If None, indices are used as ids, and memory is not checked.
        request: Fields of `DeviceRequest`.

    Raises `DeviceError` if the options contradict each other, or the machine lacks the devices.
    """
    wanted = DeviceRequest(**request)
    _check_request(wanted)
    data_gpu, models, isolation = wanted.data_gpu, wanted.models, wanted.memory_isolation
    virtual, accelerator = bool(wanted.virtual_devices), wanted.accelerator
    count, kind = (wanted.virtual_devices, "virtual device") if virtual else (num_gpus, "GPU")
    ids = [gpu.id for gpu in gpus] if gpus else [str(index) for index in range(num_gpus)]
    if data_gpu is None and virtual:
        data_gpu, models = 0, tuple(range(1, count))
    elif data_gpu is None:
        has_accelerator = num_gpus > 0 or accelerator in ("auto", "cpu")
        demand = f"{accelerator_variable()}={accelerator} demands a GPU, but this process sees none."
        _require(has_accelerator, f"{demand} Check the driver and CUDA_VISIBLE_DEVICES, or set it to auto or cpu.")
        if accelerator == "cpu" or num_gpus == 0:
            return DevicePlan("single", "/CPU:0", ("/CPU:0",), accelerator=accelerator)
        return DevicePlan("single", "/GPU:0", ("/GPU:0",), 0, (0,), (0,), (ids[0],), accelerator=accelerator)
    rule = f"--data-gpu and --model-gpu must name two {kind}s. Received: {data_gpu} for both."
    _require(isolation or data_gpu not in models, f"{rule} Leave both out, or add --enable-memory-isolation.")
    needed, flag = len({data_gpu, *models}), f"--model-gpu{'s' * (len(models) > 1)}"
    named = f"--data-gpu {data_gpu} with {flag} {','.join(map(str, models))} (data.data_gpu, data.model_gpu)"
    hint = "Leave the flags out to train on one device, check CUDA_VISIBLE_DEVICES, or try --virtual-devices 2."
    hint = hint if kind == "GPU" else f"Raise --virtual-devices to {needed}."
    rule = f"Insufficient GPUs for Multi-GPU Mode: {named} needs {needed} {kind}s and this process sees {count}."
    _require(needed <= count, f"{rule} {hint}")
    for name, index in [("--data-gpu", data_gpu), *((flag, model) for model in models)]:
        sees = f"this process sees {counted(count, kind)}, so the valid range is 0 to {count - 1}"
        _require(0 <= index < count, f"{name} {index} is out of range: {sees}.")
    data_limit = model_limit = None
    if isolation and not virtual:
        data_limit, model_limit = wanted.data_gpu_memory, wanted.model_gpu_memory
        for gpu in {data_gpu, *models} if gpus else ():
            needed, total = data_limit * (gpu == data_gpu) + model_limit * (gpu in models), gpus[gpu].memory_mb
            rule = f"The memory limits of GPU {gpu} must fit in its {total} MB. Received: {needed} MB."
            _require(needed <= total, f"{rule} Lower --data-gpu-memory or --model-gpu-memory.")
    # TensorFlow numbers the logical devices GPU by GPU. The first one on the first visible GPU is the data device.
    visible = tuple(dict.fromkeys((data_gpu, *models)))
    mode, unit = "isolated" if isolation else "dual", "CPU" if virtual else "GPU"
    trained = [gpu for gpu in visible if gpu in models]
    devices = f"/{unit}:0", tuple(f"/{unit}:{1 + trained.index(gpu)}" for gpu in models)
    visible_ids = () if virtual else tuple(ids[gpu] for gpu in visible)
    notes = VIRTUAL_NOTES[: 1 + isolation] if virtual else ISOLATION_NOTES[:isolation]
    return DevicePlan(
        mode, *devices, data_gpu, models, visible, visible_ids, data_limit, model_limit, virtual, accelerator, notes
    )


def _require(holds, message):
    if not holds:
        raise DeviceError(message)


def _check_request(request):
    models, paired, pair = request.models, request.data_gpu is not None, "--data-gpu and --model-gpu"
    virtual, accelerator = request.virtual_devices or 0, request.accelerator
    variable, kinds, named = accelerator_variable(), ", ".join(ACCELERATORS), ",".join(map(str, models))
    rule = f"--model-gpu and --model-gpus exclude each other. Received: {request.model_gpu} and {named}."
    _require(not request.model_gpus or request.model_gpu is None, rule)
    _require(accelerator in ACCELERATORS, f"{variable} must be one of {kinds}. Received: {accelerator}.")
    _require(len({*models}) == len(models), f"--model-gpus must name each GPU once. Received: {named}.")
    for role, limit in {"data": request.data_gpu_memory, "model": request.model_gpu_memory}.items():
        _require(limit > 0, f"--{role}-gpu-memory must be more than 0 MB. Received: {limit}.")
    _require(virtual == 0 or 2 <= virtual <= 64, f"--virtual-devices must be from 2 to 64. Received: {virtual}.")
    given = "--data-gpu" if paired else f"--model-gpu{'s' * bool(request.model_gpus)}"
    rule = f"Multi-GPU Mode needs both {pair} (data.data_gpu, data.model_gpu). Received: {given} alone."
    _require(paired == bool(models), f"{rule} Add the other, or leave it out to train on one device.")
    rule = f"{variable}={accelerator} demands a GPU, but --virtual-devices are CPU devices. Leave one of them out."
    _require(not virtual or accelerator in ("auto", "cpu"), rule)
    fits = accelerator != "cpu" or not paired or virtual
    _require(fits, f"{variable}=cpu forbids the GPUs of {pair}. Unset it, or add --virtual-devices 2.")
    rule = f"--enable-memory-isolation needs {pair}, which may name the same GPU. Received: neither."
    _require(not request.memory_isolation or paired or virtual, rule)
    are_given = not all(isinstance(one, Default) for one in (request.data_gpu_memory, request.model_gpu_memory))
    rule = "--data-gpu-memory and --model-gpu-memory are limits of --enable-memory-isolation"
    _require(request.memory_isolation or not are_given, f"{rule}. Add it, or leave them out.")

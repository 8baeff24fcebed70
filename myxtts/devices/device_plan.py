"""Which device prepares data and which trains, decided by arithmetic: no TensorFlow, no look at the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from myxtts.config.checks import UserError

DATA_GPU_MEMORY_MB = 8192
MODEL_GPU_MEMORY_MB = 16384
ACCELERATORS = ("auto", "cpu", "cuda", "rocm")
ACCELERATOR_VARIABLES = ("MYXTTS_ACCELERATOR", "URVC_ACCELERATOR")


class DeviceError(UserError):
    """The devices asked for cannot be had. The message is for the user; the command line exits with code 2."""


@dataclass(frozen=True)
class DevicePlan:
    """Who works where. Made by `plan_devices`; everyone else takes device names from here and writes none."""

    mode: str
    """`single` (both roles on one device), `dual` (a device each), `isolated` (a device each, under memory limits)."""
    data_device: str
    """TensorFlow's name of the device that prepares batches."""
    model_devices: tuple[str, ...]
    """TensorFlow's names of the devices that train, one per replica."""
    data_gpu: int | None = None
    """The data GPU's index among the GPUs this process may see; in a virtual plan, the virtual device's."""
    model_gpus: tuple[int, ...] = ()
    """The model GPUs' indices, likewise, in the order of `model_devices`."""
    visible: tuple[int, ...] = ()
    """The GPUs that TensorFlow sees, in the order in which it numbers them."""
    visible_ids: tuple[str, ...] = ()
    """The same as `CUDA_VISIBLE_DEVICES` entries, for CUDA and NVML; empty where no GPU works."""
    data_memory_mb: int | None = None
    """Hard memory limit of the data device, or None."""
    model_memory_mb: int | None = None
    """Hard memory limit of each model device, or None."""
    virtual: bool = False
    """Whether logical CPU devices stand in for GPUs."""
    accelerator: str = "auto"
    num_gpus: int = 0
    """How many GPUs the process could see when the plan was made."""
    notes: tuple[str, ...] = ()
    """What the user should know about this plan."""

    @property
    def model_device(self):
        """The first model device."""
        return self.model_devices[0]

    @property
    def num_replicas(self):
        return len(self.model_devices)

    @property
    def is_dual(self):
        """Whether data and model work on different devices (Multi-GPU Mode)."""
        return self.data_device not in self.model_devices

    @property
    def gpu_roles(self):
        """What each GPU of `visible_ids` does, `data` or `model`: the labels of `GPUReport.log_fields`."""
        return tuple("model" if gpu in self.model_gpus else "data" for gpu, _ in zip(self.visible, self.visible_ids))

    def describe(self):
        """One line: the mode and who works where."""
        if not self.is_dual:
            return f"{self.mode}: data and model on {self.data_device}"
        kind = "virtual device" if self.virtual else "GPU"
        models = ", ".join(f"{device} ({kind} {gpu})" for device, gpu in zip(self.model_devices, self.model_gpus))
        return f"{self.mode}: data on {self.data_device} ({kind} {self.data_gpu}), model on {models}"


def plan_devices(
    *,
    data_gpu: int | None = None,
    model_gpu: int | None = None,
    model_gpus: Sequence[int] | None = None,
    num_gpus: int,
    memory_isolation=False,
    data_gpu_memory=DATA_GPU_MEMORY_MB,
    model_gpu_memory=MODEL_GPU_MEMORY_MB,
    virtual_devices=0,
    accelerator="auto",
    gpu_ids: Sequence[str] | None = None,
    gpu_memory_mb: Sequence[int] | None = None,
) -> DevicePlan:
    """Decides who works where. Pure: looks at nothing but its arguments.

    Args:
        data_gpu, model_gpu: Indices among the GPUs this process may see. Both, or neither.
        model_gpus: Several model GPUs (mirrored training), instead of `model_gpu`.
        num_gpus: How many GPUs this process may see.
        memory_isolation: Whether each GPU gets a hard memory limit; then one GPU can play both roles.
        data_gpu_memory, model_gpu_memory: Those limits, MB.
        virtual_devices: How many logical CPU devices stand in for GPUs; 0 for none.
        accelerator: One of `ACCELERATORS`.
        gpu_ids: The `CUDA_VISIBLE_DEVICES` entry of each GPU, `num_gpus` of them; their indices when `None`.
        gpu_memory_mb: Total memory of each GPU, to check the limits against; `None` leaves that to TensorFlow.

    Raises:
        DeviceError: The request contradicts itself or the machine; the message says how, and what to do.
    """
    if accelerator not in ACCELERATORS:
        raise DeviceError(
            f"{ACCELERATOR_VARIABLES[0]} must be one of {', '.join(ACCELERATORS)}. Received: {accelerator}."
        )
    for flag, limit in (("--data-gpu-memory", data_gpu_memory), ("--model-gpu-memory", model_gpu_memory)):
        if limit <= 0:
            raise DeviceError(f"{flag} must be more than 0 MB. Received: {limit}.")
    if virtual_devices and virtual_devices < 2:
        raise DeviceError(
            "--virtual-devices must be 2 or more, one for data and the others for the model. "
            f"Received: {virtual_devices}."
        )
    models = _model_indices(model_gpu, model_gpus)
    if (data_gpu is None) != (not models):
        given, missing = ("--data-gpu", "--model-gpu") if models == () else ("--model-gpu", "--data-gpu")
        raise DeviceError(
            f"Multi-GPU Mode needs both --data-gpu and --model-gpu. Received: {given} alone. "
            f"Add {missing}, or leave {given} out to train on one device."
        )

    if virtual_devices:
        if accelerator in ("cuda", "rocm"):
            raise DeviceError(
                f"{ACCELERATOR_VARIABLES[0]}={accelerator} demands a GPU and virtual devices are CPU "
                "devices. Leave one of the two out."
            )
        if data_gpu is None:
            data_gpu, models = 0, tuple(range(1, virtual_devices))
        _check_roles(data_gpu, models, virtual_devices, memory_isolation, virtual=True)
        return _pair_plan(data_gpu, models, memory_isolation, None, None, accelerator, num_gpus, None)

    if data_gpu is not None:
        if accelerator == "cpu":
            raise DeviceError(
                f"{ACCELERATOR_VARIABLES[0]}=cpu forbids the GPUs that --data-gpu and --model-gpu ask "
                "for. Unset it, or add --virtual-devices 2 to use logical CPU devices."
            )
        _check_roles(data_gpu, models, num_gpus, memory_isolation, virtual=False)
        ids = gpu_ids or tuple(str(i) for i in range(num_gpus))
        if not memory_isolation:
            return _pair_plan(data_gpu, models, False, None, None, accelerator, num_gpus, ids)
        _check_limits(data_gpu, models, data_gpu_memory, model_gpu_memory, gpu_memory_mb)
        return _pair_plan(data_gpu, models, True, data_gpu_memory, model_gpu_memory, accelerator, num_gpus, ids)

    if memory_isolation:
        raise DeviceError(
            "--enable-memory-isolation needs --data-gpu and --model-gpu, which may name the same GPU. "
            "Received: neither. Add them, or --virtual-devices 2 to use logical CPU devices."
        )
    if accelerator in ("cuda", "rocm") and num_gpus == 0:
        raise DeviceError(
            f"{ACCELERATOR_VARIABLES[0]}={accelerator} demands a GPU and this process sees none. Check "
            "the driver and CUDA_VISIBLE_DEVICES, or set the variable to auto or cpu."
        )
    if accelerator == "cpu" or num_gpus == 0:
        return DevicePlan("single", "/CPU:0", ("/CPU:0",), accelerator=accelerator, num_gpus=num_gpus)
    return DevicePlan(
        "single",
        "/GPU:0",
        ("/GPU:0",),
        data_gpu=0,
        model_gpus=(0,),
        visible=(0,),
        visible_ids=(gpu_ids[0] if gpu_ids else "0",),
        accelerator=accelerator,
        num_gpus=num_gpus,
    )


def _model_indices(model_gpu, model_gpus):
    models = tuple(model_gpus or ())
    if models and model_gpu is not None:
        raise DeviceError(
            f"--model-gpu and --model-gpus exclude each other. Received: {model_gpu} and "
            f"{listed(models)}. Keep one of them."
        )
    if len(set(models)) < len(models):
        raise DeviceError(f"--model-gpus must name each GPU once. Received: {listed(models)}.")
    return models if model_gpu is None else (model_gpu,)


def _check_roles(data_gpu, models, count, isolation, virtual):
    """Raises unless `count` devices can play these roles."""
    noun = "virtual device" if virtual else "GPU"
    asked = [("--data-gpu", data_gpu), *(("--model-gpu" if len(models) == 1 else "--model-gpus", m) for m in models)]
    for flag, index in asked:
        if index < 0:
            raise DeviceError(f"{flag} must be a {noun} number, 0 or more. Received: {index}.")
    if data_gpu in models and not isolation:
        raise DeviceError(
            f"--data-gpu and --model-gpu must name two {noun}s. Received: {data_gpu} for both. One "
            f"{noun} plays both roles with --enable-memory-isolation, or without the two flags "
            "(Single-GPU Buffered Mode)."
        )
    needed = len({data_gpu, *models})
    if count < needed:
        way_out = (
            f"Raise --virtual-devices to {needed}."
            if virtual
            else "Leave the flags out to train on one device (Single-GPU Buffered Mode), check CUDA_VISIBLE_DEVICES "
            "if the machine has more, or try the pipeline on logical CPU devices with --virtual-devices 2."
        )
        raise DeviceError(
            f"Insufficient GPUs for Multi-GPU Mode: --data-gpu {data_gpu} with --model-gpu "
            f"{listed(models)} needs {needed} {noun}s and this process sees {count}. {way_out}"
        )
    for flag, index in asked:
        if index >= count:
            raise DeviceError(
                f"{flag} {index} is out of range: this process sees {count} {noun}"
                f"{'s' if count > 1 else ''}, so the valid range is 0 to {count - 1}."
            )


def _check_limits(data_gpu, models, data_mb, model_mb, totals_mb):
    """Raises where the limits of one GPU add up to more than its memory."""
    for gpu in {data_gpu, *models} if totals_mb is not None else ():
        asked = data_mb * (gpu == data_gpu) + model_mb * (gpu in models)
        if asked > totals_mb[gpu]:
            raise DeviceError(
                f"The memory limits of GPU {gpu} must fit in its {totals_mb[gpu]} MB. Received: {asked} "
                "MB. Lower --data-gpu-memory or --model-gpu-memory."
            )


def _pair_plan(data_gpu, models, isolation, data_mb, model_mb, accelerator, num_gpus, ids):
    """Numbers the logical devices: TensorFlow counts through the GPUs as it sees them, and through the logical devices
    of each; the data GPU comes first and its own logical device is its first. `ids` is `None` for virtual devices."""
    kind = "CPU" if ids is None else "GPU"
    visible = tuple(dict.fromkeys((data_gpu, *models)))
    roles = []
    for gpu in visible:
        if gpu == data_gpu:
            roles.append(("data", gpu))
        if gpu in models:
            roles.append(("model", gpu))
    names = {role: f"/{kind}:{number}" for number, role in enumerate(roles)}
    notes = []
    if ids is None:
        notes.append(
            "These devices are virtual: logical CPU devices that stand in for GPUs. Placement and results "
            "are those of a machine with GPUs, speed and memory are not."
        )
        if isolation:
            notes.append("The memory limits are not enforced: virtual devices share the memory of this machine.")
    elif isolation:
        notes.append("Memory growth stays off: TensorFlow has either growth or a hard limit, and the limits win.")
    return DevicePlan(
        "isolated" if isolation else "dual",
        names["data", data_gpu],
        tuple(names["model", gpu] for gpu in models),
        data_gpu=data_gpu,
        model_gpus=models,
        visible=visible,
        visible_ids=() if ids is None else tuple(ids[gpu] for gpu in visible),
        data_memory_mb=data_mb,
        model_memory_mb=model_mb,
        virtual=ids is None,
        accelerator=accelerator,
        num_gpus=num_gpus,
        notes=tuple(notes),
    )


def listed(indices):
    return ",".join(str(index) for index in indices)

"""Device plan: which device prepares data and which train, computed from the request alone, without TensorFlow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from myxtts.config.checks import UserError, counted
from myxtts.config.data import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB
from myxtts.devices.gpu_monitor import GPU

ACCELERATORS = ("auto", "cpu", "cuda", "rocm")
ACCELERATOR_VARIABLES = ("MYXTTS_ACCELERATOR", "URVC_ACCELERATOR")
VIRTUAL_NOTES = (
    "These devices are virtual: logical CPU devices in place of GPUs. Placement and results are as on GPUs; speed and "
    "memory are not.",
    "The memory limits are not enforced: virtual devices share the memory of this machine.",
)
ISOLATION_NOTES = ("Memory growth stays off: TensorFlow has either growth or a hard limit.",)
PAIR = "--data-gpu and --model-gpu"


class DeviceError(UserError):
    """The requested devices are not available. The command line prints the message and exits with code 2."""


@dataclass(frozen=True)
class DevicePlan:
    """Devices that prepare data and devices that train; device names come from here only."""

    mode: str
    """`single` (one device for both), `dual` (a device each) or `isolated` (a device each, with memory limits)."""
    data_device: str
    """TensorFlow's name of the device that prepares batches."""
    model_devices: tuple[str, ...]
    """TensorFlow's names of the devices that train, one per replica."""
    data_gpu: int | None = None
    """Index of the data GPU among the GPUs visible to this process, or of the virtual device."""
    model_gpus: tuple[int, ...] = ()
    """Indices of the model GPUs, likewise, in the order of `model_devices`."""
    visible: tuple[int, ...] = ()
    """Indices of the GPUs that TensorFlow sees, in its order."""
    visible_ids: tuple[str, ...] = ()
    """The same as `CUDA_VISIBLE_DEVICES` entries, for CUDA and NVML; empty without GPUs."""
    data_memory_mb: int | None = None
    """Hard memory limit of the data device; None for no limit."""
    model_memory_mb: int | None = None
    """Hard memory limit of each model device; None for no limit."""
    virtual: bool = False
    """Whether the devices are logical CPU devices in place of GPUs."""
    accelerator: str = "auto"
    """One of `ACCELERATORS`."""
    num_gpus: int = 0
    """Number of GPUs visible to the process when the plan was made."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about this plan."""

    @property
    def model_device(self) -> str:
        """The first model device."""
        return self.model_devices[0]

    @property
    def num_replicas(self) -> int:
        """Number of model devices."""
        return len(self.model_devices)

    @property
    def is_dual(self) -> bool:
        """Whether data and model are on different devices (Multi-GPU Mode)."""
        return self.data_device not in self.model_devices

    @property
    def gpu_roles(self) -> tuple[str, ...]:
        """Role of each GPU of `visible_ids`, `data` or `model`, as `GPUReport.figures` takes them."""
        return tuple("model" if gpu in self.model_gpus else "data" for gpu, _ in zip(self.visible, self.visible_ids))

    def describe(self) -> str:
        """Returns one line with the mode and the devices."""
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
    memory_isolation: bool = False,
    data_gpu_memory: int = DATA_GPU_MEMORY_MB,
    model_gpu_memory: int = MODEL_GPU_MEMORY_MB,
    virtual_devices: int = 0,
    accelerator: str = "auto",
    gpus: Sequence[GPU] | None = None,
) -> DevicePlan:
    """Assigns devices to roles. Pure: depends on its arguments alone.

    Args:
        data_gpu, model_gpu: Indices among the GPUs visible to this process. Both, or neither.
        model_gpus: Several model GPUs (mirrored training), instead of `model_gpu`.
        num_gpus: Number of GPUs visible to this process.
        memory_isolation: Whether each GPU gets a hard memory limit; then one GPU can have both roles.
        data_gpu_memory, model_gpu_memory: Those limits, MB.
        virtual_devices: Number of logical CPU devices to use in place of GPUs; 0 for none.
        accelerator: One of `ACCELERATORS`.
        gpus: Names and memory of the GPUs; None names them by index and does not check the limits.

    Raises:
        DeviceError: The options contradict each other, or the machine lacks the devices.
    """
    models = tuple(model_gpus or ()) or (model_gpu,) * (model_gpu is not None)
    limits = data_gpu_memory, model_gpu_memory
    received = f"Received: {model_gpu} and {listed(models)}."
    _require(not model_gpus or model_gpu is None, f"--model-gpu and --model-gpus exclude each other. {received}")
    _check_request(data_gpu, models, memory_isolation, limits, virtual_devices, accelerator)
    common = {"accelerator": accelerator, "num_gpus": num_gpus}
    if virtual_devices:
        if data_gpu is None:
            data_gpu, models = 0, tuple(range(1, virtual_devices))
        _check_indices(data_gpu, models, memory_isolation, virtual_devices, "virtual device")
        return _pair_plan(data_gpu, models, memory_isolation, (None, None), None, common)
    ids = [gpu.id for gpu in gpus] if gpus else [str(index) for index in range(num_gpus)]
    if data_gpu is None:
        has_accelerator = num_gpus > 0 or accelerator in ("auto", "cpu")
        demand = f"{ACCELERATOR_VARIABLES[0]}={accelerator} demands a GPU, but this process sees none."
        _require(has_accelerator, f"{demand} Check the driver and CUDA_VISIBLE_DEVICES, or set it to auto or cpu.")
        if accelerator == "cpu" or num_gpus == 0:
            return DevicePlan("single", "/CPU:0", ("/CPU:0",), **common)
        return DevicePlan("single", "/GPU:0", ("/GPU:0",), 0, (0,), (0,), (ids[0],), **common)
    _check_indices(data_gpu, models, memory_isolation, num_gpus, "GPU")
    for gpu in {data_gpu, *models} if memory_isolation and gpus else ():
        asked, total = data_gpu_memory * (gpu == data_gpu) + model_gpu_memory * (gpu in models), gpus[gpu].memory_mb
        rule = f"The memory limits of GPU {gpu} must fit in its {total} MB. Received: {asked} MB."
        _require(asked <= total, f"{rule} Lower --data-gpu-memory or --model-gpu-memory.")
    return _pair_plan(data_gpu, models, memory_isolation, limits if memory_isolation else (None, None), ids, common)


def _require(holds, message):
    if not holds:
        raise DeviceError(message)


def _check_request(data_gpu, models, isolation, limits, virtual_devices, accelerator):
    """Raises `DeviceError` if the options contradict each other."""
    paired, variable = data_gpu is not None, ACCELERATOR_VARIABLES[0]
    kinds = ", ".join(ACCELERATORS)
    _require(accelerator in ACCELERATORS, f"{variable} must be one of {kinds}. Received: {accelerator}.")
    _require(len({*models}) == len(models), f"--model-gpus must name each GPU once. Received: {listed(models)}.")
    for role, limit in zip(("data", "model"), limits):
        _require(limit > 0, f"--{role}-gpu-memory must be more than 0 MB. Received: {limit}.")
    rule = f"--virtual-devices must be from 2 to 64, one of them for data. Received: {virtual_devices}."
    _require(virtual_devices == 0 or 2 <= virtual_devices <= 64, rule)
    given = "--data-gpu" if paired else f"--model-gpu{'s' * (len(models) > 1)}"
    rule = f"Multi-GPU Mode needs both {PAIR} (data.data_gpu, data.model_gpu). Received: {given} alone."
    _require(paired == bool(models), f"{rule} Add the other, or leave it out to train on one device.")
    rule = f"{variable}={accelerator} demands a GPU, but --virtual-devices are CPU devices. Leave one of them out."
    _require(not virtual_devices or accelerator in ("auto", "cpu"), rule)
    rule = f"{variable}=cpu forbids the GPUs of {PAIR}. Unset it, or add --virtual-devices 2."
    _require(accelerator != "cpu" or not paired or virtual_devices, rule)
    rule = f"--enable-memory-isolation needs {PAIR}, which may name the same GPU. Received: neither."
    _require(not isolation or paired or virtual_devices, rule)
    rule = (
        "--data-gpu-memory and --model-gpu-memory are limits of --enable-memory-isolation. Add it, or leave them out."
    )
    _require(isolation or limits == (DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB), rule)


def _check_indices(data_gpu, models, isolation, count, noun):
    """Raises `DeviceError` unless `count` devices, each a `noun`, can have these roles."""
    rule = f"--data-gpu and --model-gpu must name two {noun}s. Received: {data_gpu} for both."
    _require(isolation or data_gpu not in models, f"{rule} Leave both out, or add --enable-memory-isolation.")
    needed, flag = len({data_gpu, *models}), f"--model-gpu{'s' * (len(models) > 1)}"
    asked = f"--data-gpu {data_gpu} with {flag} {listed(models)} (data.data_gpu, data.model_gpu) needs {needed} {noun}s"
    hint = "Leave the flags out to train on one device, check CUDA_VISIBLE_DEVICES, or try --virtual-devices 2."
    hint = hint if noun == "GPU" else f"Raise --virtual-devices to {needed}."
    rule = f"Insufficient GPUs for Multi-GPU Mode: {asked} and this process sees {count}."
    _require(needed <= count, f"{rule} {hint}")
    for name, index in [("--data-gpu", data_gpu), *((flag, model) for model in models)]:
        sees = f"this process sees {counted(count, noun)}, so the valid range is 0 to {count - 1}"
        _require(0 <= index < count, f"{name} {index} is out of range: {sees}.")


def _pair_plan(data_gpu, models, isolation, limits, ids, common):
    """Makes the plan of a device for each role; `ids` is None for virtual devices.

    TensorFlow numbers logical devices through the GPUs as it sees them, and within each. The data GPU comes first, and
    on it the data device.
    """
    virtual = ids is None
    visible = tuple(dict.fromkeys((data_gpu, *models)))
    players = {"data": (data_gpu,), "model": models}
    roles = [(role, gpu) for gpu in visible for role, gpus in players.items() if gpu in gpus]
    names = {role: f"/{'CPU' if virtual else 'GPU'}:{number}" for number, role in enumerate(roles)}
    notes = VIRTUAL_NOTES[: 1 + isolation] if virtual else ISOLATION_NOTES[:isolation]
    mode, visible_ids = "isolated" if isolation else "dual", () if virtual else tuple(ids[gpu] for gpu in visible)
    devices = names["data", data_gpu], tuple(names["model", gpu] for gpu in models)
    return DevicePlan(
        mode, *devices, data_gpu, models, visible, visible_ids, *limits, virtual=virtual, notes=notes, **common
    )


def listed(indices: Iterable[int]) -> str:
    """Joins numbers with commas."""
    return ",".join(map(str, indices))

"""Which device prepares data and which trains, decided by arithmetic: no TensorFlow, no look at the machine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from myxtts.config.checks import UserError
from myxtts.config.data import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB

ACCELERATORS = ("auto", "cpu", "cuda", "rocm")
ACCELERATOR_VARIABLES = ("MYXTTS_ACCELERATOR", "URVC_ACCELERATOR")
VIRTUAL_NOTES = (
    "These devices are virtual: logical CPU devices in place of GPUs. Placement and results are as on GPUs; speed and "
    "memory are not.",
    "The memory limits are not enforced: virtual devices share the memory of this machine.",
)
TOO_FEW_GPUS_WAY_OUT = (
    "Leave the flags out to train on one device (Single-GPU Buffered Mode), check CUDA_VISIBLE_DEVICES if the machine "
    "has more, or try the pipeline on logical CPU devices with --virtual-devices 2."
)
ISOLATION_NOTES = ("Memory growth stays off: TensorFlow has either growth or a hard limit, and the limits win.",)


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
    model_memory_mb: int | None = None
    """Hard memory limits of the data device and of each model device, or None."""
    virtual: bool = False
    """Whether the devices are logical CPU devices in place of GPUs."""
    accelerator: str = "auto"
    num_gpus: int = 0
    """How many GPUs the process could see when the plan was made."""
    notes: tuple[str, ...] = ()
    """What the user should know about this plan."""

    @property
    def model_device(self) -> str:
        """The first model device."""
        return self.model_devices[0]

    @property
    def num_replicas(self) -> int:
        return len(self.model_devices)

    @property
    def is_dual(self) -> bool:
        """Whether data and model work on different devices (Multi-GPU Mode)."""
        return self.data_device not in self.model_devices

    @property
    def gpu_roles(self) -> tuple[str, ...]:
        """What each GPU of `visible_ids` does, `data` or `model`: the labels of `GPUReport.figures`."""
        return tuple("model" if gpu in self.model_gpus else "data" for gpu, _ in zip(self.visible, self.visible_ids))

    def describe(self) -> str:
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
    memory_isolation: bool = False,
    data_gpu_memory: int = DATA_GPU_MEMORY_MB,
    model_gpu_memory: int = MODEL_GPU_MEMORY_MB,
    virtual_devices: int = 0,
    accelerator: str = "auto",
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
        virtual_devices: How many logical CPU devices to use in place of GPUs; 0 for none.
        accelerator: One of `ACCELERATORS`.
        gpu_ids: The `CUDA_VISIBLE_DEVICES` entry of each GPU, `num_gpus` of them; their indices when `None`.
        gpu_memory_mb: Total memory of each GPU, to check the limits against; `None` leaves that to TensorFlow.

    Raises:
        DeviceError: The request contradicts itself or the machine; the message says how, and what to do.
    """
    models, limits = (
        tuple(model_gpus or ()) or (model_gpu,) * (model_gpu is not None),
        (data_gpu_memory, model_gpu_memory),
    )
    if model_gpus and model_gpu is not None:
        received = f"Received: {model_gpu} and {listed(models)}. Keep one of them."
        raise DeviceError(f"--model-gpu and --model-gpus exclude each other. {received}")
    for problem in _contradictions(data_gpu, models, num_gpus, memory_isolation, limits, virtual_devices, accelerator):
        raise DeviceError(problem)
    if virtual_devices and data_gpu is None:
        data_gpu, models = 0, tuple(range(1, virtual_devices))
    common = {"accelerator": accelerator, "num_gpus": num_gpus}
    ids = gpu_ids or [str(index) for index in range(num_gpus)]
    if data_gpu is None:
        if accelerator == "cpu" or num_gpus == 0:
            return DevicePlan("single", "/CPU:0", ("/CPU:0",), **common)
        return DevicePlan("single", "/GPU:0", ("/GPU:0",), 0, (0,), (0,), (ids[0],), **common)
    devices = (virtual_devices, "virtual device") if virtual_devices else (num_gpus, "GPU")
    for problem in _misfits(data_gpu, models, memory_isolation, *devices):
        raise DeviceError(problem)
    if virtual_devices:
        return _pair_plan(data_gpu, models, memory_isolation, (None, None), None, common)
    if memory_isolation and gpu_memory_mb is not None:
        _check_limits(data_gpu, models, *limits, gpu_memory_mb)
    return _pair_plan(data_gpu, models, memory_isolation, limits if memory_isolation else (None, None), ids, common)


def _contradictions(data_gpu, models, num_gpus, isolation, limits, virtual_devices, accelerator) -> Iterator[str]:
    """Sentences on how a request contradicts itself, or demands an accelerator that is not there."""
    variable, paired, demanded = ACCELERATOR_VARIABLES[0], data_gpu is not None, accelerator in ("cuda", "rocm")
    demand = f"{variable}={accelerator} demands a GPU and"
    pair, instead = "--data-gpu and --model-gpu", "--virtual-devices 2 to use logical CPU devices."
    if len(set(models)) < len(models):
        yield f"--model-gpus must name each GPU once. Received: {listed(models)}."
    if accelerator not in ACCELERATORS:
        yield f"{variable} must be one of {', '.join(ACCELERATORS)}. Received: {accelerator}."
    for role, limit in zip(("data", "model"), limits):
        if limit <= 0:
            yield f"--{role}-gpu-memory must be more than 0 MB. Received: {limit}."
    if virtual_devices == 1 or virtual_devices < 0:
        yield f"--virtual-devices must be 2 or more, one of them for data. Received: {virtual_devices}."
    if paired != bool(models):
        several = "s" * (len(models) > 1)
        given, missing = ("--data-gpu", "--model-gpu") if paired else (f"--model-gpu{several}", "--data-gpu")
        settings = f"data.data_gpu, data.model_gpu{several}"
        way_out = f"Add {missing}, or leave {given} out to train on one device; in settings: {settings}."
        yield f"Multi-GPU Mode needs both {pair}. Received: {given} alone. {way_out}"
    if virtual_devices and demanded:
        yield f"{demand} virtual devices are CPU devices. Leave one of the two out."
    if paired and not virtual_devices and accelerator == "cpu":
        yield f"{variable}=cpu forbids the GPUs that {pair} ask for. Unset it, or add {instead}"
    if isolation and not paired and not virtual_devices:
        rule = f"--enable-memory-isolation needs {pair}, which may name the same GPU."
        yield f"{rule} Received: neither. Add them, or {instead}"
    if demanded and not paired and num_gpus == 0:
        way_out = "Check the driver and CUDA_VISIBLE_DEVICES, or set the variable to auto or cpu."
        yield f"{demand} this process sees none. {way_out}"


def _misfits(data_gpu, models, isolation, count, noun) -> Iterator[str]:
    """Sentences on why `count` devices, each a `noun`, cannot play these roles."""
    model_flag = "--model-gpu" if len(models) == 1 else "--model-gpus"
    asked = [("--data-gpu", data_gpu), *((model_flag, model) for model in models)]
    for flag, index in asked:
        if index < 0:
            yield f"{flag} must be a {noun} number, 0 or more. Received: {index}."
    if data_gpu in models and not isolation:
        rule = f"--data-gpu and --model-gpu must name two {noun}s. Received: {data_gpu} for both."
        way_out = "with --enable-memory-isolation, or without the two flags (Single-GPU Buffered Mode)."
        yield f"{rule} One {noun} plays both roles {way_out}"
    if count < (needed := len({data_gpu, *models})):
        asks = f"--data-gpu {data_gpu} with --model-gpu {listed(models)} (data.data_gpu, data.model_gpu) needs {needed}"
        way_out = TOO_FEW_GPUS_WAY_OUT if noun == "GPU" else f"Raise --virtual-devices to {needed}."
        seen = f"{asks} {noun}s and this process sees {count}"
        yield f"Insufficient GPUs for Multi-GPU Mode: {seen}. {way_out}"
    for flag, index in asked:
        if index >= count:
            sees = f"this process sees {count} {noun}{'s' if count > 1 else ''}"
            yield f"{flag} {index} is out of range: {sees}, so the valid range is 0 to {count - 1}."


def _check_limits(data_gpu, models, data_mb, model_mb, totals_mb):
    """Raises where the limits of one GPU add up to more than its memory."""
    for gpu in {data_gpu, *models}:
        asked = data_mb * (gpu == data_gpu) + model_mb * (gpu in models)
        if asked > totals_mb[gpu]:
            rule = f"The memory limits of GPU {gpu} must fit in its {totals_mb[gpu]} MB."
            raise DeviceError(f"{rule} Received: {asked} MB. Lower --data-gpu-memory or --model-gpu-memory.")


def _pair_plan(data_gpu, models, isolation, limits, ids, common):
    """Numbers the logical devices: TensorFlow counts through the GPUs as it sees them, and through the logical devices
    of each; the data GPU comes first and its own logical device is its first. `ids` is `None` for virtual devices."""
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
    """Numbers with commas between them."""
    return ",".join(map(str, indices))

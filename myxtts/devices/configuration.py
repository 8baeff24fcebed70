"""Devices have one author: a `DevicePlan` says who works where, and `apply_plan` tells TensorFlow.

Importing this module does not import TensorFlow, because a plan must be applied before TensorFlow's runtime starts:
parse the command line, call `early_gpu_configuration`, then import the rest.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from myxtts.config.checks import UserError, say
from myxtts.devices.device_plan import (
    ACCELERATOR_VARIABLES,
    DATA_GPU_MEMORY_MB,
    MODEL_GPU_MEMORY_MB,
    DeviceError,
    DevicePlan,
    listed,
    plan_devices,
)
from myxtts.devices.gpu_monitor import NVMLUnavailable, list_gpus
from myxtts.devices.kinds import short_name
from myxtts.devices.tensorflow_start import GPU_DRIVER_PLACES

VIRTUAL_DEVICES_VARIABLE = "MYXTTS_VIRTUAL_DEVICES"


class PlacementError(UserError):
    """Variables live on another device than the plan says."""


_applied: tuple[dict, DevicePlan] | None = None
"""What `early_gpu_configuration` was last asked, and the plan it applied."""


def plan_for(data_gpu: int | None = None, model_gpu: int | None = None) -> DevicePlan:
    """The plan applied in this process, if it is for these GPUs or none are named; else one for them, applied now.

    Where none are named or applied: single mode on TensorFlow's first device, which configures nothing. Errors are
    those of `early_gpu_configuration`.
    """
    is_named = (data_gpu, model_gpu) != (None, None)
    if _applied and not (is_named and (_applied[1].data_gpu, _applied[1].model_gpus) != (data_gpu, (model_gpu,))):
        return _applied[1]
    if is_named:
        return early_gpu_configuration(data_gpu, model_gpu)
    import tensorflow as tf

    return plan_devices(num_gpus=len(tf.config.get_visible_devices("GPU")))


def count_gpus() -> int:
    """How many GPUs this process may use, `CUDA_VISIBLE_DEVICES` respected.

    NVML answers without TensorFlow; where it cannot (no NVIDIA driver), TensorFlow is imported and asked.
    """
    gpus = _nvml_gpus()
    return len(_physical_gpus() if gpus is None else gpus)


def check_devices(data_gpu: int | None = None, model_gpu: int | None = None, **options) -> None:
    """Raises as `early_gpu_configuration`, as far as it can be seen without TensorFlow; applies nothing."""
    gpus, asked = _nvml_gpus(), [data_gpu, model_gpu, *(options.get("model_gpus") or ())]
    if gpus is None and "tensorflow" in sys.modules:
        gpus = _physical_gpus()
    unknown = gpus is None and any(map(os.path.exists, GPU_DRIVER_PLACES))
    enough = max((index for index in asked if index is not None), default=0) + 2
    virtual = options.pop("virtual_devices", None)
    options |= {"virtual_devices": _virtual_devices_variable() if virtual is None else virtual}
    options |= {"accelerator": _accelerator_variable(), "num_gpus": enough if unknown else len(gpus or ())}
    plan_devices(data_gpu=data_gpu, model_gpu=model_gpu, **options)


def early_gpu_configuration(
    data_gpu: int | None = None,
    model_gpu: int | None = None,
    *,
    model_gpus: Sequence[int] | None = None,
    memory_isolation: bool = False,
    data_gpu_memory: int = DATA_GPU_MEMORY_MB,
    model_gpu_memory: int = MODEL_GPU_MEMORY_MB,
    virtual_devices: int | None = None,
    accelerator: str | None = None,
) -> DevicePlan:
    """Counts the GPUs, plans, applies, prints. To be called before anything initializes TensorFlow's devices.

    The arguments are those of `plan_devices`. `virtual_devices` and `accelerator` are read from the environment where
    they are `None`: `MYXTTS_VIRTUAL_DEVICES`; `MYXTTS_ACCELERATOR`, else `URVC_ACCELERATOR`. The same call again
    returns the same plan.

    Raises:
        DeviceError: As in `plan_devices` and `apply_plan`; or another GPU pair was configured in this process.
    """
    global _applied
    model_gpus = tuple(model_gpus or ())
    virtual_devices = _virtual_devices_variable() if virtual_devices is None else virtual_devices
    accelerator = _accelerator_variable() if accelerator is None else accelerator
    request = dict(locals())  # the arguments of `plan_devices`
    if _applied is not None:
        asked, plan = _applied
        pair, models = (plan.data_gpu, plan.model_gpus, plan.mode), model_gpus or (model_gpu,)
        is_virtual_pair = plan.virtual and pair == (data_gpu, models, "isolated" if memory_isolation else "dual")
        if asked == request or is_virtual_pair:
            return plan
        if plan.is_dual and not plan.virtual:
            hint = "Start a new process for another pair."
            raise DeviceError(f"This process is already configured ({plan.describe()}). {hint}")
    plan = _plan_for_this_machine(request)
    apply_plan(plan)
    _applied = request, plan
    return plan


def _plan_for_this_machine(request):
    gpus = _nvml_gpus()
    if request["virtual_devices"]:
        num_gpus = 0
    elif gpus is not None and (request["data_gpu"], request["model_gpu"], request["model_gpus"]) != (None, None, ()):
        num_gpus = len(gpus)  # without importing TensorFlow: CUDA_VISIBLE_DEVICES can still be set
    else:
        num_gpus = len(_physical_gpus())
    known = gpus if gpus is not None and len(gpus) == num_gpus else None
    ids, memory_mb = known and [gpu.id for gpu in known], known and [gpu.memory_mb for gpu in known]
    plan = plan_devices(**request, num_gpus=num_gpus, gpu_ids=ids, gpu_memory_mb=memory_mb)
    if gpus and plan.num_gpus == 0 and not plan.virtual and plan.accelerator == "auto":
        seen = f"NVML sees {len(gpus)} GPU(s) and this TensorFlow can use none of them, so the CPU works."
        return replace(plan, notes=(f"{seen} pip install 'tensorflow[and-cuda]' brings the CUDA libraries.",))
    return plan


def apply_plan(plan: DevicePlan) -> None:
    """Applies the plan to the environment and TensorFlow, and prints each step once it is done.

    TensorFlow's runtime is not started. In Multi-GPU Mode soft placement goes off, so that a missing device is an
    error instead of a CPU, and the device policy is `silent`: a tensor from another device is copied.

    Raises:
        DeviceError: TensorFlow sees other GPUs than the plan counted on, is built for another accelerator, or its
            runtime was initialized before.
    """
    if plan.is_dual:
        say(f"Configuring Multi-GPU Mode...\nData Processing GPU: {plan.data_gpu}")
        say(f"Model Training GPU: {listed(plan.model_gpus)}")
    narrowed = _narrow_environment(plan)
    import tensorflow as tf

    _require_build(tf, plan.accelerator)
    with _initialized_runtime_explained():
        if plan.visible_ids:
            _configure_gpus(tf, plan, narrowed)
        elif tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        if plan.virtual:
            _configure_virtual_devices(tf, plan)
    if plan.is_dual:
        tf.config.set_soft_device_placement(False)
        tf.config.experimental.set_device_policy("silent")
        say("Multi-GPU configuration completed successfully")
    say("\n".join([f"Devices: {plan.describe()}", *(f"Note: {note}" for note in plan.notes)]))


def configure_for_speech() -> None:
    """What a process needs that only speaks: the accelerator that the environment names, and no more memory of a GPU
    than is used.

    Raises:
        DeviceError: The environment demands an accelerator that is not there.
    """
    import tensorflow as tf

    if _applied is not None:
        return  # a run has settled it
    accelerator, gpus = _accelerator_variable(), tf.config.get_visible_devices("GPU")
    plan_devices(num_gpus=len(gpus), accelerator=accelerator)
    _require_build(tf, accelerator)
    with suppress(RuntimeError):  # the devices of a notebook, say, are in use already
        if accelerator == "cpu" and gpus:
            tf.config.set_visible_devices([], "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)


def _require_build(tf, accelerator):
    built_with = {"cuda": tf.test.is_built_with_cuda, "rocm": tf.test.is_built_with_rocm}
    if accelerator in built_with and not built_with[accelerator]():
        hint = "Install one, or set the variable to auto or cpu."
        raise DeviceError(
            f"{ACCELERATOR_VARIABLES[0]}={accelerator} needs a TensorFlow built with {accelerator}. {hint}"
        )


def _narrow_environment(plan):
    """Hands CUDA the chosen GPUs in the plan's order. Returns whether it could: not once TensorFlow is imported.

    `set_visible_devices` numbers GPUs by ascending physical index whatever the order of its list, so a reversed pair
    needs the environment variable.
    """
    if not (plan.is_dual and plan.visible_ids):
        return False
    if "tensorflow" not in sys.modules:
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            # Number GPUs as NVML and nvidia-smi do. A list of the user's was written for the order in force: keep that.
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(plan.visible_ids)
        return True
    if list(plan.visible) != sorted(plan.visible):
        raise DeviceError(
            f"GPUs {listed(plan.visible)} in this order need CUDA_VISIBLE_DEVICES to be set before TensorFlow is "
            f"imported, and {_importers_of_tensorflow()}. Call early_gpu_configuration first, or start with "
            f"CUDA_VISIBLE_DEVICES={','.join(plan.visible_ids)} CUDA_DEVICE_ORDER=PCI_BUS_ID and count GPUs from 0."
        )
    return False


def _configure_gpus(tf, plan, narrowed):
    physical = tf.config.list_physical_devices("GPU")
    expected = len(plan.visible) if narrowed else plan.num_gpus
    if len(physical) != expected:
        hint = "Check CUDA_VISIBLE_DEVICES and the CUDA libraries (pip install 'tensorflow[and-cuda]')."
        plan_needs = f"TensorFlow must see {expected} GPU(s) for this plan ({plan.describe()})."
        raise DeviceError(f"{plan_needs} It sees {len(physical)}. {hint}")
    chosen = physical if narrowed else [physical[index] for index in plan.visible]
    tf.config.set_visible_devices(chosen, "GPU")
    if plan.is_dual:
        say(f"Set visible devices: {_gpu_names(plan)}")
    limited = plan.data_memory_mb is not None
    for index, gpu in zip(plan.visible, chosen):
        if not limited:
            tf.config.experimental.set_memory_growth(gpu, True)
            continue
        limits = [plan.data_memory_mb] * (index == plan.data_gpu) + [plan.model_memory_mb] * (index in plan.model_gpus)
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
        tf.config.set_logical_device_configuration(gpu, parts)
    for role, limit in (("data", plan.data_memory_mb), ("model", plan.model_memory_mb)) if plan.is_dual else ():
        say(f"Configured memory {f'limit for {role} GPU: {limit} MB' if limited else f'growth for {role} GPU'}")


def _gpu_names(plan):
    return " and ".join(f"GPU {index}" for index in plan.visible)


def _configure_virtual_devices(tf, plan):
    cpu, count = tf.config.list_physical_devices("CPU")[0], 1 + plan.num_replicas
    # A process that already has enough of them (a notebook, a test run) keeps them: they are all alike.
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    say(f"Set visible devices: {_gpu_names(plan)} (virtual)")


@contextmanager
def _initialized_runtime_explained():
    """Turns TensorFlow's "cannot be modified after being initialized" into a `DeviceError` that helps."""
    try:
        yield
    except RuntimeError as error:
        if "after being initialized" not in str(error):
            raise
        raise DeviceError(
            "TensorFlow's runtime must be configured before it is initialized, and an operation, tensor or variable "
            f"made earlier in this process initialized it: {_importers_of_tensorflow()}. Call early_gpu_configuration "
            "before that code runs, as train_main.py does, and import what needs TensorFlow after it. "
            f"TensorFlow says: {error}."
        ) from error


def _importers_of_tensorflow():
    """Words for which loaded modules, other than TensorFlow's and Keras's own, hold TensorFlow."""
    tensorflow = sys.modules["tensorflow"]
    others = {name: m for name, m in list(sys.modules.items()) if name.partition(".")[0] not in ("tensorflow", "keras")}
    held = {name: list(getattr(module, "__dict__", {}).values()) for name, module in others.items()}
    names = sorted(name for name, values in held.items() if any(value is tensorflow for value in values))
    return f"TensorFlow was imported by {', '.join(names[:5])}" if names else "TensorFlow was imported"


def _nvml_gpus():
    try:
        return list_gpus()
    except NVMLUnavailable:
        return None


def _physical_gpus():
    import tensorflow as tf

    return tf.config.list_physical_devices("GPU")


def _virtual_devices_variable():
    value = os.environ.get(VIRTUAL_DEVICES_VARIABLE, "").strip() or "0"
    if not value.isdecimal():
        raise DeviceError(f"{VIRTUAL_DEVICES_VARIABLE} must be a number of devices. Received: {value}. Try 2.")
    return int(value)


def _accelerator_variable():
    given = (os.environ[name].strip().lower() for name in ACCELERATOR_VARIABLES if os.environ.get(name))
    return next(given, "auto")


def audit_placement(named_variables: Iterable[tuple[str, object]], plan: DevicePlan) -> list[str]:
    """Says, for each variable that does not live on the plan's model devices, where it lives instead.

    Variables are Keras's, TensorFlow's or distributed; every component of those must live on its replica's device.
    """
    strays = []
    for name, variable in named_variables:
        # `value` is an attribute of Keras variables and a method of TensorFlow's.
        held = variable if callable(variable.value) else variable.value
        devices = tuple(short_name(component.device) for component in getattr(held, "values", (held,)))
        if devices != plan.model_devices:
            strays.append(f"{name} lives on {', '.join(devices)} instead of {', '.join(plan.model_devices)}")
    return strays


def require_placement(named_variables: Iterable[tuple[str, object]], plan: DevicePlan) -> str:
    """Audits, and returns the line that says so.

    Raises:
        PlacementError: Names every stray.
    """
    named_variables = list(named_variables)
    strays = audit_placement(named_variables, plan)
    if strays:
        wrong = f"{len(strays)} of {len(named_variables)} variables are on the wrong device."
        raise PlacementError(f"{wrong} Build them in the scope of {plan.model_device}: {'; '.join(strays)}")
    return f"Placement audit: {len(named_variables)} variables, all on {', '.join(plan.model_devices)}"

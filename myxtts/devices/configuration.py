"""Chooses the devices of this machine (a `DevicePlan`) and configures TensorFlow for them.

A plan must be applied before TensorFlow's runtime starts: call `early_gpu_configuration`, then import TensorFlow.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from myxtts.config.checks import counted, say
from myxtts.devices.device_plan import DeviceError, DevicePlan, DeviceRequest, accelerator_variable, plan_devices
from myxtts.devices.gpu_monitor import GPU, NVMLUnavailable, list_gpus
from myxtts.devices.machine import device_named, short_name
from myxtts.devices.tensorflow_start import GPU_DRIVER_PLACES, import_sparingly

VIRTUAL_DEVICES_VARIABLE = "MYXTTS_VIRTUAL_DEVICES"
_applied: tuple[DeviceRequest, DevicePlan] | None = None
"""`DeviceRequest` and `DevicePlan` of the last successful `early_gpu_configuration`; None before the first call."""


def plan_for(data_gpu: int | None = None, model_gpu: int | None = None) -> DevicePlan:
    """Returns the device plan for the given GPUs. Calls `early_gpu_configuration` if this plan is not yet applied.

    Without arguments, returns the applied plan. If no plan is applied, returns a plan for the first GPU or, without a
    GPU, for the CPU, but does not apply this plan.
    """
    pair, plan = (data_gpu, model_gpu), _applied and _applied[1]
    if plan and (pair == (None, None) or plan.is_dual and pair == (plan.data_gpu, *plan.model_gpus)):
        return plan
    if pair != (None, None):
        return early_gpu_configuration(*pair)
    tf, accelerator = import_sparingly(), device_request(None, None, 0).accelerator
    _require_build(tf, accelerator)
    return plan_devices(num_gpus=len(tf.config.get_visible_devices("GPU")), accelerator=accelerator)


def check_devices(data_gpu: int | None = None, model_gpu: int | None = None, **options) -> None:
    """Checks device options, which are the fields of `DeviceRequest`. Raises `DeviceError` for errors that can be found
    without importing TensorFlow."""
    request = device_request(data_gpu, model_gpu, **options)
    if _applied and _applied[0] == request:  # its indices are outdated: only the plan's GPUs are visible now
        return
    gpus = visible_gpus() if "tensorflow" in sys.modules else _nvml_gpus()
    # If only TensorFlow can count the GPUs, there may be enough.
    plan_devices(num_gpus=max(data_gpu or 0, *request.models, 0) + 2 if gpus is None else len(gpus), **vars(request))


def visible_gpus() -> Sequence[GPU]:
    """Returns the GPUs that this process can see, as listed by NVML or, if NVML cannot be read, by TensorFlow."""
    return _tensorflow_gpus() if (gpus := _nvml_gpus()) is None else gpus


def divide_gpus(count: int, virtual_devices: int | None = None) -> list[dict[str, str]]:
    """Divides the visible GPUs equally among `count` workers. Returns a dictionary of environment variables for each
    worker, or empty dictionaries on CPUs or with `virtual_devices`. Raises `DeviceError` if workers outnumber GPUs."""
    request = device_request(None, None, virtual_devices)
    gpus = () if request.virtual_devices or request.accelerator == "cpu" else visible_gpus()
    if not gpus:
        return [{}] * count
    if not (share := len(gpus) // count):
        raise DeviceError(f"--workers must be at most {len(gpus)} (GPUs), not {count}. Check CUDA_VISIBLE_DEVICES.")
    found = [_showing(gpu.id for gpu in gpus[share * n : share * (n + 1)]) for n in range(count)]
    say(f"CUDA_VISIBLE_DEVICES of each worker: {' | '.join(own['CUDA_VISIBLE_DEVICES'] for own in found)}")
    return found


def _showing(ids):
    """Returns the environment variables that make only the GPUs `ids` visible, in this order."""
    # NVML and nvidia-smi use this order. A list set by the user refers to the user's own order.
    order = {} if "CUDA_VISIBLE_DEVICES" in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return order | {"CUDA_VISIBLE_DEVICES": ",".join(ids)}


def device_request(data_gpu: int | None, model_gpu: int | None, virtual_devices=None, **options) -> DeviceRequest:
    """Creates a `DeviceRequest`. For defaults of `virtual_devices` and `accelerator`, see `early_gpu_configuration`."""
    if virtual_devices is None:
        value = os.environ.get(VIRTUAL_DEVICES_VARIABLE, "").strip() or "0"
        if not value.isdecimal():
            raise DeviceError(f"{VIRTUAL_DEVICES_VARIABLE} must be a number of devices. Received: {value}.")
        virtual_devices = int(value)
    options.setdefault("accelerator", os.environ.get(accelerator_variable(), "").strip().lower() or "auto")
    return DeviceRequest(data_gpu=data_gpu, model_gpu=model_gpu, virtual_devices=virtual_devices, **options)


def early_gpu_configuration(data_gpu: int | None = None, model_gpu: int | None = None, **options) -> DevicePlan:
    """Makes the device plan, applies it and prints it; must be called before TensorFlow's devices are initialized.

    Arguments are the fields of `DeviceRequest`. `virtual_devices` defaults to the variable `MYXTTS_VIRTUAL_DEVICES`,
    and `accelerator` to `MYXTTS_ACCELERATOR` or `URVC_ACCELERATOR`. A repeated call returns the same plan. Raises
    `DeviceError` if `plan_devices` or `apply_plan` fails, or if another pair of GPUs is already configured.
    """
    global _applied
    request = device_request(data_gpu, model_gpu, **options)
    if _applied is not None:
        configured, plan = _applied
        mode = "isolated" if request.memory_isolation else "dual"
        is_same_pair = (plan.data_gpu, plan.model_gpus, plan.mode) == (data_gpu, request.models, mode)
        if configured == request or plan.virtual and is_same_pair:
            return plan
        if plan.is_dual and not plan.virtual:
            raise DeviceError(f"Devices are already configured ({plan.describe()}). Start a new process to use others.")
    listed, gpus = _nvml_gpus(), ()
    if not request.virtual_devices:
        # For a pair, TensorFlow is not imported if NVML lists the GPUs, so that CUDA_VISIBLE_DEVICES can still be set.
        is_early = listed is not None and "tensorflow" not in sys.modules and (data_gpu is not None or request.models)
        gpus = listed if is_early else _tensorflow_gpus(listed)
    plan = plan_devices(num_gpus=len(gpus), gpus=gpus, **vars(request))
    if listed and not (gpus or request.virtual_devices) and plan.accelerator == "auto":
        seen = f"Using the CPU: NVML sees {counted(len(listed), 'GPU')}, but this TensorFlow can use none."
        plan = replace(plan, notes=(f"{seen} pip install 'tensorflow[and-cuda]' installs the CUDA libraries.",))
    apply_plan(plan)
    _applied = request, plan
    return plan


def apply_plan(plan: DevicePlan) -> None:
    """Sets environment variables and TensorFlow's devices for a plan, without starting the runtime; prints each step.

    If data and model have separate devices, turns off soft placement. TensorFlow then raises an error if a device is
    missing, and does not use the CPU instead. Also sets the policy `silent`, which permits copies between devices.

    Raises `DeviceError` if TensorFlow does not see the plan's GPUs, is built for another accelerator, or has started.
    """
    if plan.is_dual:
        say(f"Configuring Multi-GPU Mode...\nData Processing GPU: {plan.data_gpu}")
        say(f"Model Training GPU: {','.join(map(str, plan.model_gpus))}")
    narrowed = _narrow_environment(plan)
    tf = import_sparingly()
    _require_build(tf, plan.accelerator)
    try:
        if plan.visible_ids:
            _configure_gpus(tf, plan, narrowed)
        elif tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        cpu, count = tf.config.list_physical_devices("CPU")[0], 1 + len(plan.model_devices)
        # A process that already has enough logical devices (a notebook, a test run) keeps them.
        if plan.virtual and len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        if "after being initialized" not in str(error):
            raise
        raise DeviceError(
            "TensorFlow must be configured before it is initialized, and code in this process has used it: "
            f"{_importers_of_tensorflow()}. Call early_gpu_configuration before that code. TensorFlow: {error}."
        ) from error
    if plan.is_dual:
        say(f"Set visible devices: GPU {' and GPU '.join(map(str, plan.visible))}{' (virtual)' * plan.virtual}")
        if plan.visible_ids:
            for role, limit in (("data", plan.data_memory_mb), ("model", plan.model_memory_mb)):
                say(f"Configured memory {f'limit for {role} GPU: {limit} MB' if limit else f'growth for {role} GPU'}")
        tf.config.set_soft_device_placement(False)
        tf.config.experimental.set_device_policy("silent")
        say("Multi-GPU configuration completed successfully")
    say("\n".join([f"Devices: {plan.describe()}", *(f"Note: {note}" for note in plan.notes)]))


def configure_for_speech(device: str | None = None) -> AbstractContextManager:
    """Configures TensorFlow for synthesis or encoding: the accelerator (`MYXTTS_ACCELERATOR`) and memory growth.

    Returns a `tf.device` scope for `device`; None means the first visible GPU or, without a GPU, the CPU.
    Raises `DeviceError` if the accelerator is not available, and `UserError` if `device` does not exist.
    """
    tf = import_sparingly()
    if _applied is None:
        accelerator, gpus = plan_for().accelerator, tf.config.get_visible_devices("GPU")
        with suppress(RuntimeError):  # the devices are in use already, for example in a notebook
            if accelerator == "cpu" and gpus:
                tf.config.set_visible_devices([], "GPU")
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)
    return tf.device(device_named(device))


def _require_build(tf, accelerator):
    built_with = {"cuda": tf.test.is_built_with_cuda, "rocm": tf.test.is_built_with_rocm}
    if accelerator in built_with and not built_with[accelerator]():
        name = accelerator_variable()
        raise DeviceError(f"{name}={accelerator} needs a TensorFlow built with {accelerator}. Set it to auto or cpu.")


def _narrow_environment(plan):
    """If data and model have separate GPUs and TensorFlow is not imported yet, sets `CUDA_VISIBLE_DEVICES` and returns
    True. Otherwise, returns False, or raises `DeviceError` if the order of the GPUs requires this variable."""
    # After the import, GPUs in descending order are an error: `set_visible_devices` numbers them in ascending order.
    has_gpus = plan.is_dual and plan.visible_ids
    if has_gpus and "tensorflow" not in sys.modules:
        os.environ.update(_showing(plan.visible_ids))
        return True
    if has_gpus and list(plan.visible) != sorted(plan.visible):
        raise DeviceError(
            f"GPUs {','.join(map(str, plan.visible))} in this order need CUDA_VISIBLE_DEVICES before TensorFlow is "
            f"imported, but {_importers_of_tensorflow()}. Call early_gpu_configuration first, or set CUDA_DEVICE_ORDER"
            f"=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(plan.visible_ids)} and name GPUs by their place in that list."
        )
    return False


def _configure_gpus(tf, plan, narrowed):
    """Sets memory growth or limits for the plan's GPUs. Hides other GPUs; if `narrowed`, they are already hidden."""
    physical = tf.config.list_physical_devices("GPU")
    if narrowed and len(physical) != len(plan.visible):
        seen = f"{counted(len(plan.visible), 'GPU')}. It sees {len(physical)}"
        raise DeviceError(f"TensorFlow must see {seen}. Check CUDA_VISIBLE_DEVICES, or install tensorflow[and-cuda].")
    chosen = physical if narrowed else [physical[index] for index in plan.visible]
    tf.config.set_visible_devices(chosen, "GPU")
    for index, gpu in zip(plan.visible, chosen):
        if plan.data_memory_mb is None:
            tf.config.experimental.set_memory_growth(gpu, True)
            continue
        limits = [plan.data_memory_mb] * (index == plan.data_gpu) + [plan.model_memory_mb] * (index in plan.model_gpus)
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
        tf.config.set_logical_device_configuration(gpu, parts)


def _importers_of_tensorflow():
    """Returns a clause for error messages: `TensorFlow was imported by MODULES`, with at most five modules."""
    tensorflow, own = sys.modules["tensorflow"], ("tensorflow", "keras")
    others = [name for name in sorted(sys.modules) if name.partition(".")[0] not in own]
    values_of = lambda name: list(getattr(sys.modules[name], "__dict__", {}).values())
    names = [name for name in others if any(value is tensorflow for value in values_of(name))]
    return f"TensorFlow was imported by {', '.join(names[:5])}" if names else "TensorFlow was imported"


def _nvml_gpus():
    """Returns the GPUs that NVML lists. Without NVML: () if there is no GPU driver, None (unknown) if there is one."""
    with suppress(NVMLUnavailable):
        return list_gpus()
    return None if any(map(os.path.exists, GPU_DRIVER_PLACES)) else ()


def _tensorflow_gpus(listed=None):
    """Returns the GPUs in TensorFlow's order. If NVML's list `listed` has the same length as TensorFlow's list, returns
    the entries of `listed`. Otherwise, only the ids of the returned GPUs are known."""
    config = import_sparingly().config
    physical = config.list_physical_devices("GPU")
    if not listed or len(listed) != len(physical):
        entries = os.environ.get("CUDA_VISIBLE_DEVICES")
        ids = map(str, range(len(physical))) if entries is None else entries.split(",")
        return [GPU(one.strip(), "", sys.maxsize) for one, _ in zip(ids, physical)]
    # CUDA's default order is fastest first, NVML's is by slot.
    names = [config.experimental.get_device_details(one).get("device_name") for one in physical]
    own = [gpu.name for gpu in listed]
    return sorted(listed, key=lambda gpu: names.index(gpu.name)) if names != own and {*names} == {*own} else listed


def require_placement(named_variables: Iterable[tuple[str, object]], plan: DevicePlan) -> str:
    """Checks that variables are on the plan's model devices; returns a summary for the log.

    Variables may come from Keras or TensorFlow. A distributed variable must have a component on each model device.
    Raises `DeviceError` with the names of variables that are on other devices.
    """
    named_variables, strays = list(named_variables), []
    for name, variable in named_variables:
        # `value` is an attribute of Keras variables and a method of TensorFlow's.
        held = variable if callable(variable.value) else variable.value
        devices = tuple(short_name(component.device) for component in getattr(held, "values", (held,)))
        if devices != plan.model_devices:
            strays.append(f"{name} lives on {', '.join(devices)} instead of {', '.join(plan.model_devices)}")
    if strays:
        count, found = f"{len(strays)} of {len(named_variables)}", "; ".join(strays)
        raise DeviceError(f"{count} variables are on the wrong device: {found}. Build them on {plan.model_device}.")
    return f"Placement audit: {len(named_variables)} variables, all on {', '.join(plan.model_devices)}"

"""`myxtts doctor`: what this machine is, what TensorFlow can use of it, what the automatic settings would choose, and how
fast it trains, from a measurement. Each check is a small function; what cannot be known is said to be unknown."""

import contextlib
import os
import platform
import tempfile
from dataclasses import asdict, replace
from importlib import metadata
from statistics import median

from myxtts.config.optimizations import requested_switches
from myxtts.devices.device_plan import ACCELERATOR_VARIABLES
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus, nvml
from myxtts.devices.machine import BYTES_PER_GB, probe_disk, probe_files, read_memory, read_processor
from myxtts.planning.memory import RESERVED_GB, Optimizations, Shapes, largest_batch

PACKAGES = ("myxtts", "tensorflow", "keras", "numpy", "librosa", "soundfile", "tokenizers", "safetensors")
CLIP_SECONDS = 6.0
"""Length of the clips in the measured steps: about the mean of read-speech corpora."""
VOCABULARY = 512
FLAGS_OF_NOTE = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
BUSY_LOAD = 0.5
"""Processes that ran or waited for a core in the last minute, before the measurement, from which figures suffer."""
SLOW_DISK = 20 * 2**20
"""Bytes per second below which reading is worth a word: 16-bit sound at 22 050 Hz is 44 kB a second, and a GPU takes some
hundred seconds of it per second."""


def examine(config, seconds, folder, data_files=()):
    """Looks at everything and measures. TensorFlow is imported and configured for the default device plan.

    Args:
        config: `XTTSConfig` of the training that is asked about.
        seconds: Length of the measurement of training steps; 0 leaves it out.
        folder: Where the run would write.
        data_files: Recordings whose reading speed is measured.

    Returns:
        A dictionary of JSON types; None stands for what is not known.
    """
    found = {
        "versions": versions(),
        "processor": processor(),
        "memory": memory(),
        "gpus": gpus(),
        "disks": [asdict(probe_disk(folder))],
    }
    if data_files:
        found["disks"].append(asdict(probe_files(os.path.dirname(data_files[0]), data_files)))
    from myxtts.devices.configuration import early_gpu_configuration

    plan = early_gpu_configuration()
    found["tensorflow"] = tensorflow_build(plan.model_device)
    from myxtts.training.measurement import PRODUCT_SIZE, product_rates

    found["precision"] = {"size": PRODUCT_SIZE, "flops": product_rates(plan.model_device)}
    found["plan"] = plan.describe()
    found["automatic"] = automatic(config, plan, found, seconds > 0)
    found["training"] = training(config, plan, seconds) if seconds else None
    return found


def versions():
    """Versions of Python, the system and the packages that matter; None for one that is not installed."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def processor():
    """The CPU as JSON types, with those instruction sets that matter to training."""
    cpu = read_processor()
    return {
        "name": cpu.name,
        "cores": cpu.cores,
        "quota": cpu.quota,
        "load": os.getloadavg()[0],
        "instructions": [flag for flag in FLAGS_OF_NOTE if flag in cpu.flags] if cpu.flags else None,
    }


def memory():
    """Main memory in bytes as JSON types."""
    ram = read_memory()
    return {**asdict(ram), "usable": ram.usable}


def gpus():
    """NVIDIA GPUs and driver as NVML tells them, or why it does not."""
    try:
        listed = [asdict(gpu) for gpu in list_gpus()]
        with nvml() as pynvml:
            driver = pynvml.nvmlSystemGetDriverVersion()
        return {"listed": listed, "driver": driver if isinstance(driver, str) else driver.decode(), "reason": None}
    except NVMLUnavailable as error:
        return {"listed": None, "driver": None, "reason": str(error)}


def tensorflow_build(device):
    """What TensorFlow is built for, which GPUs it can use, and why XLA does not compile for `device`, or None."""
    import tensorflow as tf

    from myxtts.training.optimizations import xla_refusal

    build = tf.sysconfig.get_build_info()
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    return {
        "built_for": "CUDA" if build["is_cuda_build"] else "ROCm" if build["is_rocm_build"] else "CPU",
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "gpus": [
            {"name": one.get("device_name"), "compute_capability": one.get("compute_capability")} for one in details
        ],
        "xla_fails": xla_refusal(device),
    }


def automatic(config, plan, found, measures):
    """What `--precision auto` and `--attention auto` choose on the training device, why, and the largest batch that the
    memory planner lets in. The attention is measured, for some seconds, where `measures` says so."""
    from myxtts.devices.precision import choose_precision

    policy, reason = choose_precision("auto", plan.model_device)
    chosen = {"precision": policy, "precision_reason": reason, "attention": None, "attention_reason": "not measured"}
    if measures:
        from myxtts.training.attention_choice import choose_attention

        attention = choose_attention(config.model, policy, plan.model_device)
        chosen.update(attention=attention.form, attention_reason=attention.reason)
    room = found["memory"]["usable"]
    if found["tensorflow"]["gpus"]:
        listed = found["gpus"]["listed"]
        room = (
            None
            if listed is None
            else int(BYTES_PER_MB * min(gpu["memory_mb"] for gpu in listed) - RESERVED_GB * BYTES_PER_GB)
        )
    shapes = Shapes.of_data(config.data, batch=1)
    model = replace(config.model, num_text_tokens=config.model.num_text_tokens or VOCABULARY)
    fits = (
        None
        if room is None
        else {
            name: largest_batch(model, shapes, Optimizations(precision=name), room)
            for name in dict.fromkeys(("float32", policy))
        }
    )
    return {**chosen, "room": room, "clip_seconds": config.data.max_seconds, "largest_batch": fits}


def training(config, plan, seconds):
    """Steps per second of the GPT stage on this machine, on clips of `CLIP_SECONDS` of noise."""
    from myxtts.devices.precision import choose_precision
    from myxtts.training.measurement import measure_training

    config = replace(config, model=replace(config.model, num_text_tokens=config.model.num_text_tokens or VOCABULARY))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        times = measure_training(config, plan, folder, CLIP_SECONDS, seconds)
    batch = config.stage("gpt").batch_size
    policy, _ = choose_precision(requested_switches(config.training)["precision"][0], plan.model_device)
    step = median(times)
    return {
        "size": config.model.size,
        "batch_size": batch,
        "clip_seconds": CLIP_SECONDS,
        "precision": policy,
        "steps": len(times),
        "step_seconds": step,
        "steps_per_second": 1 / step,
        "audio_seconds_per_second": batch * CLIP_SECONDS / step,
    }


def gigabytes(count):
    """Bytes in words."""
    return "unknown" if count is None else f"{count / BYTES_PER_GB:.1f} GB"


def describe(found):
    """The findings of `examine` in lines for people."""
    lines = [
        "VERSIONS:",
        "  " + ", ".join(f"{name} {version or 'not installed'}" for name, version in found["versions"].items()),
        "",
        "HARDWARE:",
    ]
    cpu, ram = found["processor"], found["memory"]
    quota = f", limited to {cpu['quota']:g} cores' worth of time" if cpu["quota"] else ""
    known = "unknown" if cpu["instructions"] is None else ", ".join(cpu["instructions"]) or "none of note"
    lines += [f"  Processor: {cpu['name']}, {cores(cpu['cores'])}{quota}; instructions: {known}"]
    limit = (
        f", limit of the container {gigabytes(ram['limit'])}, {gigabytes(ram['used_of_limit'])} of it used"
        if ram["limit"]
        else ""
    )
    lines += [f"  Memory: {gigabytes(ram['total'])}{limit}; {gigabytes(ram['usable'])} can be used now"]
    nvidia = found["gpus"]
    if nvidia["listed"] is None:
        lines += [f"  NVIDIA GPUs: unknown ({nvidia['reason']})"]
    else:
        names = ", ".join(f"{gpu['id']}: {gpu['name']}, {gpu['memory_mb']} MB" for gpu in nvidia["listed"])
        lines += [f"  NVIDIA GPUs: {names or 'none that this process may use'}; driver {nvidia['driver']}"]
    for disk in found["disks"]:
        speed = disk["read_per_second"]
        read = f"reads {speed / 2**20:.0f} MB/s, " if speed else ""
        lines += [f"  Disk of {disk['folder']}: {gigabytes(disk['free'])} free, {read}{disk['note']}"]
    build = found["tensorflow"]
    cuda = f" {build['cuda']}, cuDNN {build['cudnn']}" if build["cuda"] else ""
    used = [
        f"{gpu['name'] or 'unnamed'} (compute capability {capability(gpu['compute_capability'])})"
        for gpu in build["gpus"]
    ]
    lines += [
        "",
        "TENSORFLOW:",
        f"  Built for {build['built_for']}{cuda}; uses {', '.join(used) or 'the CPU, no GPU'}",
        f"  XLA: {'fails: ' + build['xla_fails'] if build['xla_fails'] else 'compiles'}",
    ]
    rates = found["precision"]["flops"]
    lines += [
        f"  Matrix products of {found['precision']['size']}: "
        + ", ".join(
            f"{name} {rate / 1e9:.0f} GFLOP/s" + ("" if name == "float32" else f" ({rate / rates['float32']:.1f} x)")
            for name, rate in rates.items()
        )
    ]
    return "\n".join(
        [
            *lines,
            "",
            "AUTOMATIC CHOICES:",
            *(f"  {line}" for line in choices(found)),
            "",
            "VERDICT:",
            *(f"  {line}" for line in verdict(found)),
        ]
    )


def cores(count):
    """`1 core` or `N cores`."""
    return f"{count} core{'s' if count != 1 else ''}"


def capability(pair):
    """`8.6`, or unknown."""
    return ".".join(map(str, pair)) if pair else "unknown"


def choices(found):
    """What the automatic settings would choose here, a line each."""
    lines = [f"Devices without flags: {found['plan']}"]
    count = len(found["tensorflow"]["gpus"])
    lines += [
        "--device-plan auto: one device to train on, nothing to choose"
        if count < 2
        else f"--device-plan auto: {count} GPUs; measures single, dual{' and mirrored' if count > 2 else ''} and takes the "
        "quickest"
    ]
    auto, rates = found["automatic"], found["precision"]["flops"]
    lines += [f"--precision auto: {auto['precision']} ({auto['precision_reason']})"]
    dtype = auto["precision"].removeprefix("mixed_")
    if rates[dtype] < rates["float32"]:
        lines += [
            f"  but its matrix products were measured slower than those of float32: {rates[dtype] / 1e9:.0f} against "
            f"{rates['float32'] / 1e9:.0f} GFLOP/s. Compare --precision {auto['precision']} with float32."
        ]
    lines += [f"--attention auto: {auto['attention'] or 'unknown'} ({auto['attention_reason']})"]
    if auto["largest_batch"] is None:
        lines += ["Largest batch: unknown, as the memory of the GPU is"]
    else:
        fits = ", ".join(f"{batch} in {name}" for name, batch in auto["largest_batch"].items())
        lines += [
            f"Largest batch of clips up to {auto['clip_seconds']:g} s that the memory plan fits into "
            f"{gigabytes(auto['room'])}: {fits} (`myxtts plan` has the rest)"
        ]
    return lines


def verdict(found):
    """What to expect and what to mend, a sentence each."""
    lines, trained = [], found["training"]
    if trained:
        lines += [
            f"This machine will train `{trained['size']}` at about {trained['steps_per_second']:.2g} steps/s "
            f"(batches of {trained['batch_size']} clips of {trained['clip_seconds']:g} s, {trained['precision']}; "
            f"{trained['audio_seconds_per_second']:.0f} s of recordings per second; median of {trained['steps']} "
            f"step{'s' if trained['steps'] != 1 else ''})."
        ]
        cpu = found["processor"]
        if cpu["load"] > BUSY_LOAD:
            lines += [
                f"Other work was going on (load {cpu['load']:.1f} on {cores(cpu['cores'])}): alone it will be faster."
            ]
    nvidia = found["gpus"]["listed"]
    if nvidia and not found["tensorflow"]["gpus"]:
        lines += [
            f"NVML sees {len(nvidia)} GPU(s) and TensorFlow can use none: pip install 'tensorflow[and-cuda]', or "
            f"look at {ACCELERATOR_VARIABLES[0]}."
        ]
    elif not found["tensorflow"]["gpus"]:
        lines += ["There is no GPU to train on: `nano` and `tiny` are what a CPU can train."]
    for disk in found["disks"]:
        if disk["read_per_second"] and disk["read_per_second"] < SLOW_DISK:
            lines += [
                f"The disk of {disk['folder']} reads {disk['read_per_second'] / 2**20:.0f} MB/s: recordings that do "
                "not fit into data.cache_mb will be waited for."
            ]
        if disk["read_per_second"] is None:
            lines += [f"Reading from {disk['folder']} was {disk['note']}."]
    return lines

"""`myxtts doctor`: the machine, what TensorFlow can use of it, the automatic settings, and measured training speed.

Unknown values are None."""

import contextlib
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import metadata
from statistics import median
from typing import Any

from myxtts.config.checks import counted
from myxtts.config.config import XTTSConfig
from myxtts.config.optimizations import requested_switches
from myxtts.devices.device_plan import ACCELERATOR_VARIABLES, DevicePlan
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus, nvml
from myxtts.devices.machine import BYTES_PER_GB, probe_files, read_memory, read_processor
from myxtts.memory.estimates import RESERVED_GB, Optimizations, Shapes, largest_batch

PACKAGES = ("myxtts", "tensorflow", "keras", "numpy", "soundfile", "tokenizers", "safetensors")
CLIP_SECONDS = 6.0
"""Clip length in the measured steps, about the mean of read-speech corpora."""
TRAINING_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
SLOW_DISK = 20 * 2**20
"""Bytes per second below which a disk is reported as slow: a GPU reads about 100 s of 16-bit audio, 4 MB, a second."""
Findings = dict[str, Any]


def examine(config: XTTSConfig, seconds: float, folder: str, data_files: Sequence[str] = ()) -> Findings:
    """Examines the machine, and configures TensorFlow for the default device plan; returns JSON types.

    Args:
        seconds: Time to measure training steps; 0 skips the measurement.
        folder: Folder of runs, whose disk is measured, as is the reading of `data_files`.
    """
    tokens = config.model.num_text_tokens or config.data.vocabulary_size
    config = replace(config, model=replace(config.model, num_text_tokens=tokens))
    ram, cpu, disks = read_memory(), read_processor(), [probe_files(folder, ())]
    if data_files:
        disks.append(probe_files(os.path.dirname(data_files[0]), data_files))
    versions = {"python": platform.python_version(), "system": platform.platform(), **dict.fromkeys(PACKAGES)}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    known = [flag for flag in TRAINING_INSTRUCTIONS if flag in cpu.flags] if cpu.flags else None
    found = {"versions": versions, "memory": {**asdict(ram), "usable": ram.usable}, "disks": [*map(asdict, disks)]}
    found["processor"] = {"name": cpu.name, "cores": cpu.cores, "quota": cpu.quota, "instructions": known}
    found["gpus"] = _gpus()
    from myxtts.devices.configuration import early_gpu_configuration

    plan = early_gpu_configuration()
    found |= {"plan": plan.describe(), "tensorflow": _tensorflow_build(plan.model_device)}
    from myxtts.training.watching.measurement import PRODUCT_SIZE, product_rates

    found["precision"] = {"size": PRODUCT_SIZE, "flops": product_rates(plan.model_device)}
    found["automatic"] = _automatic(config, plan, found, seconds > 0)
    found["training"] = _training(config, plan, seconds) if seconds else None
    return found


def _gpus():
    """NVIDIA GPUs and driver as reported by NVML, or the reason why there is no report."""
    try:
        with nvml() as pynvml:
            driver = pynvml.nvmlSystemGetDriverVersion()
        return {"listed": [asdict(gpu) for gpu in list_gpus()], "driver": driver, "reason": None}
    except NVMLUnavailable as error:
        return {"listed": None, "driver": None, "reason": str(error)}


def _tensorflow_build(device):
    """TensorFlow's build, its visible GPUs, and the reason why XLA does not compile for `device`, or None."""
    import tensorflow as tf

    from myxtts.training.loop.switches import xla_refusal

    build = tf.sysconfig.get_build_info()
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    gpus = [{"name": one.get("device_name"), "compute_capability": one.get("compute_capability")} for one in details]
    built_for = "CUDA" if build["is_cuda_build"] else "ROCm" if build["is_rocm_build"] else "CPU"
    versions = {"cuda": build.get("cuda_version"), "cudnn": build.get("cudnn_version")}
    return {"built_for": built_for, **versions, "gpus": gpus, "xla_fails": xla_refusal(device)}


def _automatic(config, plan, found, measures):
    """What `--precision auto` and `--attention auto` choose and why, and the largest batch by the memory estimate.

    Attention is measured for some seconds if `measures`."""
    from myxtts.devices.kinds import choose_precision

    policy, reason = choose_precision("auto", plan.model_device)
    chosen = {"precision": policy, "precision_reason": reason, "attention": None, "attention_reason": "not measured"}
    if measures:
        from myxtts.training.loop.switches import choose_attention

        form, reason = choose_attention(config.model, policy, plan.model_device)
        chosen |= {"attention": form, "attention_reason": reason}
    room = found["memory"]["usable"]
    if found["tensorflow"]["gpus"]:
        memories = [BYTES_PER_MB * gpu["memory_mb"] for gpu in found["gpus"]["listed"] or ()]
        room = int(min(memories) - RESERVED_GB * BYTES_PER_GB) if memories else None
    shapes, fits = Shapes.of_data(config.data, batch=1), {}
    for name in ("float32", policy) if room is not None else ():
        fits[name] = largest_batch(config.model, shapes, Optimizations(precision=name), room)
    return {**chosen, "room": room, "clip_seconds": config.data.max_seconds, "largest_batch": fits or None}


def _training(config: XTTSConfig, plan: DevicePlan, seconds: float) -> Findings:
    """Measures steps per second of the GPT stage on clips of noise."""
    from myxtts.devices.kinds import choose_precision
    from myxtts.training.watching.measurement import measure_training

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        times = measure_training(config, plan, folder, CLIP_SECONDS, seconds)
    batch, step = config.stage("gpt").batch_size, median(times)
    policy, _ = choose_precision(requested_switches(config.training)["precision"][0], plan.model_device)
    found = {"size": config.model.size, "batch_size": batch, "clip_seconds": CLIP_SECONDS, "precision": policy}
    rates = {"steps_per_second": 1 / step, "audio_seconds_per_second": batch * CLIP_SECONDS / step}
    return {**found, "steps": len(times), "step_seconds": step, **rates}


def describe(found: Findings) -> str:
    """Formats the findings of `examine` for users."""
    installed = (f"{name} {version or 'not installed'}" for name, version in found["versions"].items())
    sections = {
        "VERSIONS": [", ".join(installed)],
        "HARDWARE": _hardware(found),
        "TENSORFLOW": _tensorflow(found),
        "AUTOMATIC CHOICES": _choices(found),
        "VERDICT": _verdict(found),
    }
    return "\n\n".join("\n  ".join([f"{title}:", *lines]) for title, lines in sections.items())


def _gigabytes(count):
    return "unknown" if count is None else f"{count / BYTES_PER_GB:.1f} GB"


def _hardware(found):
    cpu, ram, nvidia = found["processor"], found["memory"], found["gpus"]
    quota = f", limited to {cpu['quota']:g} cores' worth of time" if cpu["quota"] else ""
    known = "unknown" if cpu["instructions"] is None else ", ".join(cpu["instructions"]) or "none of note"
    yield f"Processor: {cpu['name']}, {counted(cpu['cores'], 'core')}{quota}; instructions: {known}"
    total, limit, used, usable = (_gigabytes(ram[name]) for name in ("total", "limit", "used_of_limit", "usable"))
    limited = f", limit of the container {limit}, {used} of it used" if ram["limit"] else ""
    yield f"Memory: {total}{limited}; {usable} can be used now"
    if nvidia["listed"] is None:
        yield f"NVIDIA GPUs: unknown ({nvidia['reason']})"
    else:
        names = ", ".join(f"{gpu['id']}: {gpu['name']}, {gpu['memory_mb']} MB" for gpu in nvidia["listed"])
        yield f"NVIDIA GPUs: {names or 'none visible to this process'}; driver {nvidia['driver']}"
    for disk in found["disks"]:
        speed = disk["read_per_second"]
        read = f"reads {speed / 2**20:.0f} MB/s, " if speed else ""
        yield f"Disk of {disk['folder']}: {_gigabytes(disk['free'])} free, {read}{disk['note']}"


def _tensorflow(found):
    build, rates = found["tensorflow"], found["precision"]["flops"]
    cuda = f" {build['cuda']}, cuDNN {build['cudnn']}" if build["cuda"] else ""
    used = []
    for gpu in build["gpus"]:
        capability = ".".join(map(str, gpu["compute_capability"] or ["unknown"]))
        used.append(f"{gpu['name'] or 'unnamed'} (compute capability {capability})")
    yield f"Built for {build['built_for']}{cuda}; uses {', '.join(used) or 'the CPU, no GPU'}"
    yield f"XLA: {'fails: ' + build['xla_fails'] if build['xla_fails'] else 'compiles'}"
    shown = (f"{name} {rate / 1e9:.0f} GFLOP/s ({rate / rates['float32']:.1f} x)" for name, rate in rates.items())
    yield f"Matrix products of {found['precision']['size']}: {', '.join(shown)}"


def _choices(found):
    auto, count = found["automatic"], len(found["tensorflow"]["gpus"])
    ways = f"{count} GPUs; measures single, dual{' and mirrored' if count > 2 else ''} and chooses the fastest"
    yield f"Devices without flags: {found['plan']}"
    yield f"--device-plan auto: {ways if count >= 2 else 'only one device'}"
    yield f"--precision auto: {auto['precision']} ({auto['precision_reason']})"
    yield f"--attention auto: {auto['attention'] or 'unknown'} ({auto['attention_reason']})"
    fits = ", ".join(f"{batch} in {name}" for name, batch in (auto["largest_batch"] or {}).items())
    limits = f"clips up to {auto['clip_seconds']:g} s in {_gigabytes(auto['room'])}"
    yield f"Largest batch of {limits}: {fits or 'unknown'} (estimated; see `myxtts plan`)"


def _verdict(found):
    trained, nvidia = found["training"], found["gpus"]["listed"]
    if trained:
        batches = f"{trained['batch_size']} clips of {trained['clip_seconds']:g} s, {trained['precision']}"
        audio = f"{trained['audio_seconds_per_second']:.0f} s of recordings per second"
        speed = f"This machine trains `{trained['size']}` at about {trained['steps_per_second']:.2g} steps/s"
        yield f"{speed} (batches of {batches}; {audio}; median of {counted(trained['steps'], 'step')})."
    if nvidia and not found["tensorflow"]["gpus"]:
        unused = f"NVML finds {counted(len(nvidia), 'GPU')}, but TensorFlow can use none"
        yield f"{unused}: pip install 'tensorflow[and-cuda]', or check {ACCELERATOR_VARIABLES[0]}."
    elif not found["tensorflow"]["gpus"]:
        yield "There is no GPU to train on. A CPU can train `nano` and `tiny`."
    for disk in found["disks"]:
        speed = disk["read_per_second"]
        if speed is not None and speed < SLOW_DISK:
            slow = f"The disk of {disk['folder']} reads {speed / 2**20:.0f} MB/s"
            yield f"{slow}: training will wait for recordings that do not fit into data.cache_mb."

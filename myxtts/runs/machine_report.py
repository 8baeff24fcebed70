"""Reports of `myxtts doctor`: on one machine (hardware, TensorFlow, `auto` settings, speed), or on several workers."""

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, replace
from importlib import metadata
from statistics import median
from typing import Any

from myxtts.config.checks import counted
from myxtts.config.config import XTTSConfig
from myxtts.config.model import MODEL_SIZES, ModelConfig
from myxtts.config.training import requested_switches
from myxtts.data.corpora import load_corpus
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.devices.device_plan import accelerator_variable
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus, nvml
from myxtts.devices.machine import BYTES_PER_GB, choose_precision, probe_files, read_memory, read_processor
from myxtts.distributed.workers import join_workers, leaving_together
from myxtts.memory.estimates import RESERVED_GB, Optimizations, Shapes, count_gpt, largest_batch
from myxtts.storage.files import digest_bytes

PACKAGES = ("myxtts", "tensorflow", "keras", "numpy", "soundfile", "tokenizers", "safetensors")
CLIP_SECONDS = 6.0
"""Clip length in seconds for timing training steps; about the mean of read-speech corpora."""
TRAINING_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
SUMS_MB, REPEATS, MESSAGES = (1, 4, 16, 64, 256), 5, 50
"""For `examine_workers`: sizes in MB of all-reduces to time, repetitions per size, number of messages to time."""


def examine(config: XTTSConfig, seconds: float, folder: str, data_files: Sequence[str] = ()) -> dict[str, Any]:
    """Examines the machine and configures TensorFlow; returns findings as JSON types, with None for unknown values.

    Measures training speed for `seconds` (0: not at all), free disk space in `folder`, and read speed of `data_files`.
    """
    config = replace(config, model=replace(config.model, num_text_tokens=config.data.vocabulary_size))
    ram, cpu, disks = read_memory(), read_processor(), [probe_files(folder, ())]
    if data_files:
        disks.append(probe_files(os.path.dirname(data_files[0]), data_files))
    versions = {"python": platform.python_version(), "system": platform.platform(), **dict.fromkeys(PACKAGES)}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    known = [flag for flag in TRAINING_INSTRUCTIONS if flag in cpu.flags] if cpu.flags else None
    found = {"versions": versions, "memory": {**asdict(ram), "usable": ram.usable}, "disks": disks}
    found["processor"] = {"name": cpu.name, "cores": cpu.cores, "quota": cpu.quota, "instructions": known}
    try:
        with nvml() as pynvml:
            driver = pynvml.nvmlSystemGetDriverVersion()
        found["gpus"] = {"listed": [asdict(gpu) for gpu in list_gpus()], "driver": driver, "reason": None}
    except NVMLUnavailable as error:
        found["gpus"] = {"listed": None, "driver": None, "reason": str(error)}
    plan = early_gpu_configuration()
    import tensorflow as tf

    from myxtts.training.loop.switches import xla_refusal
    from myxtts.training.watching.measurement import PRODUCT_SIZE, measure_training, product_rates

    build, device = tf.sysconfig.get_build_info(), plan.model_device
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    gpus = [{"name": one.get("device_name"), "compute_capability": one.get("compute_capability")} for one in details]
    built_for = "CUDA" if build["is_cuda_build"] else "ROCm" if build["is_rocm_build"] else "CPU"
    versions = {"cuda": build.get("cuda_version"), "cudnn": build.get("cudnn_version")}
    found["tensorflow"] = {"built_for": built_for, **versions, "gpus": gpus, "xla_fails": xla_refusal(device)}
    found |= {"plan": plan.describe(), "precision": {"size": PRODUCT_SIZE, "flops": product_rates(device)}}
    found |= {"automatic": _automatic(config, plan, found, seconds > 0), "training": None}
    if seconds:  # steps of the GPT stage on clips of noise
        with tempfile.TemporaryDirectory() as home, redirect_stdout(None):
            times = measure_training(config, plan, home, CLIP_SECONDS, seconds)
        batch, step = config.stage("gpt").batch_size, median(times)
        policy, _ = choose_precision(requested_switches(config.training)["precision"][0], device)
        sizes = {"size": config.model.size, "batch_size": batch, "clip_seconds": CLIP_SECONDS, "precision": policy}
        rates = {"steps_per_second": 1 / step, "audio_seconds_per_second": batch * CLIP_SECONDS / step}
        found["training"] = {**sizes, "steps": len(times), "step_seconds": step, **rates}
    return found


def _automatic(config, plan, found, measures):
    """Returns what `auto` selects: precision, batch size, and attention, which is None if `measures` is False."""
    from myxtts.training.loop.switches import choose_attention

    policy, reason = choose_precision("auto", plan.model_device)
    form, why = choose_attention(config.model, policy, plan.model_device) if measures else (None, "not measured")
    chosen = {"precision": policy, "precision_reason": reason, "attention": form, "attention_reason": why}
    room = found["memory"]["usable"]
    if found["tensorflow"]["gpus"]:
        memories = [BYTES_PER_MB * gpu["memory_mb"] for gpu in found["gpus"]["listed"] or ()]
        room = int(min(memories) - RESERVED_GB * BYTES_PER_GB) if memories else None
    shapes, fits = Shapes.of_data(config.data, batch=1), {}
    for name in ("float32", policy) if room is not None else ():
        fits[name] = largest_batch(config.model, shapes, Optimizations(precision=name), room)
    return {**chosen, "room": room, "clip_seconds": config.data.max_seconds, "largest_batch": fits or None}


def describe(found: dict[str, Any]) -> str:
    """Formats the findings of `examine` as a report for the user."""
    installed = (f"{name} {version or 'not installed'}" for name, version in found["versions"].items())
    build, auto, count = found["tensorflow"], found["automatic"], len(found["tensorflow"]["gpus"])
    cuda = f" {build['cuda']}, cuDNN {build['cudnn']}" if build["cuda"] else ""
    capability = lambda gpu: ".".join(map(str, gpu["compute_capability"] or ["unknown"]))
    used = [f"{gpu['name'] or 'unnamed'} (compute capability {capability(gpu)})" for gpu in build["gpus"]]
    rates = found["precision"]["flops"]
    shown = (f"{name} {rate / 1e9:.0f} GFLOP/s ({rate / rates['float32']:.1f} x)" for name, rate in rates.items())
    ways = f"{count} GPUs; measures single, dual{' and mirrored' if count > 2 else ''} and chooses the fastest"
    fits = ", ".join(f"{batch} in {name}" for name, batch in (auto["largest_batch"] or {}).items())
    limits = f"clips up to {auto['clip_seconds']:g} s in {_gigabytes(auto['room'])}"
    sections = {
        "VERSIONS": [", ".join(installed)],
        "HARDWARE": _hardware(found),
        "TENSORFLOW": [
            f"Built for {build['built_for']}{cuda}; uses {', '.join(used) or 'the CPU, no GPU'}",
            f"XLA: {'fails: ' + build['xla_fails'] if build['xla_fails'] else 'compiles'}",
            f"Matrix products of {found['precision']['size']}: {', '.join(shown)}",
        ],
        "AUTOMATIC CHOICES": [
            f"Devices without flags: {found['plan']}",
            f"--device-plan auto: {ways if count >= 2 else 'only one device'}",
            f"--precision auto: {auto['precision']} ({auto['precision_reason']})",
            f"--attention auto: {auto['attention'] or 'unknown'} ({auto['attention_reason']})",
            f"Largest batch of {limits}: {fits or 'unknown'} (estimated; see `myxtts plan`)",
        ],
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
    names = ", ".join(f"{gpu['id']}: {gpu['name']}, {gpu['memory_mb']} MB" for gpu in nvidia["listed"] or ())
    listed = f"{names or 'none visible to this process'}; driver {nvidia['driver']}"
    yield f"NVIDIA GPUs: {listed if nvidia['reason'] is None else 'unknown (' + nvidia['reason'] + ')'}"
    for disk in found["disks"]:
        speed = disk["read_per_second"]
        read = f"reads {speed / 2**20:.0f} MB/s, " if speed else ""
        yield f"Disk of {disk['folder']}: {_gigabytes(disk['free'])} free, {read}{disk['note']}"


def _verdict(found):
    trained, nvidia = found["training"], found["gpus"]["listed"]
    if trained:
        batches = f"{trained['batch_size']} clips of {trained['clip_seconds']:g} s, {trained['precision']}"
        audio = f"{trained['audio_seconds_per_second']:.0f} s of recordings per second"
        speed = f"This machine trains `{trained['size']}` at about {trained['steps_per_second']:.2g} steps/s"
        yield f"{speed} (batches of {batches}; {audio}; median of {counted(trained['steps'], 'step')})."
    if nvidia and not found["tensorflow"]["gpus"]:
        unused = f"NVML finds {counted(len(nvidia), 'GPU')}, but TensorFlow can use none"
        yield f"{unused}: pip install 'tensorflow[and-cuda]', or check {accelerator_variable()}."
    elif not found["tensorflow"]["gpus"]:
        yield "There is no GPU to train on. A CPU can train `nano` and `tiny`."
    for disk in found["disks"]:
        if (speed := disk["read_per_second"]) is not None and speed < 20 * 2**20:  # a GPU trains on about 4 MB/s
            slow = f"The disk of {disk['folder']} reads {speed / 2**20:.0f} MB/s"
            yield f"{slow}: training will wait for recordings that do not fit into data.cache_mb."


def examine_workers(config: XTTSConfig) -> list[str]:
    """Compares the workers and measures their network; returns the lines of a report. All workers must call this.

    Raises `UserError` if a worker is missing, or if workers differ in code, versions, devices or `data.train_data`.
    """
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu)
    workers = join_workers(config.training, plan, {})
    with leaving_together(workers):
        lines = [f"All {workers.count} workers are connected, with the same code and versions, on {plan.model_device}"]
        if config.data.train_data:
            clips = load_corpus(config.data.train_data).utterances
            sizes = (os.path.getsize(clip.wav_path) if os.path.isfile(clip.wav_path) else -1 for clip in clips)
            listed = "".join(f"{clip.id}|{clip.text}|{size}\n" for clip, size in zip(clips, sizes))
            found = [len(clips), digest_bytes(listed.encode())[:12]]
            workers.require_equal("recordings", found, "Give each a copy of one data set in --train-data.")
            lines.append(f"Recordings: the same {found[0]} on all, by name, text and size (digest {found[1]})")
        workers.gather()
        times = workers.gather(time.time())
        lines.append(f"Clocks: at most {max(times) - min(times):.1f} s apart")
        began = time.perf_counter()
        for _ in range(MESSAGES):
            workers.gather()
        lines.append(f"A message to all and back: {1000 * (time.perf_counter() - began) / MESSAGES:.1f} ms")
        lines += _sums(workers, config.training.worker_timeout_seconds)
        lines = workers.ask(lambda: lines)
        workers.close()
    return lines


def _sums(workers, timeout_seconds):
    """Yields report lines: measured times of all-reduces of several sizes, and estimated times for GPT gradients."""
    from myxtts.training.watching.measurement import seconds_of_sum

    workers.watch(timeout_seconds)
    for size in SUMS_MB:
        seconds = seconds_of_sum(workers.strategy, size * BYTES_PER_MB, REPEATS)
        # Amount of data that each worker sends and receives in a ring all-reduce.
        rate = 2 * (workers.count - 1) / workers.count * size / seconds
        yield f"Sum of {size} MB over all: {1000 * seconds:.1f} ms, {rate:.0f} MB/s through each worker"
    workers.watch(None)
    for name in MODEL_SIZES:  # at the speed of the largest sum
        megabytes = 4 * count_gpt(ModelConfig(size=name, num_text_tokens=5000)) / BYTES_PER_MB
        milliseconds = 1000 * seconds * megabytes / SUMS_MB[-1]
        yield f"Gradients of the GPT, {name}: {megabytes:.0f} MB, {milliseconds:.0f} ms to sum"

"""Profiles a training step with the real model and pipeline, finds bottlenecks and recommends settings.

    python utilities/dual_gpu_bottleneck_profiler.py --batch-size 16 --num-steps 100 --data-gpu 0 --model-gpu 1
    python utilities/dual_gpu_bottleneck_profiler.py --virtual-devices 2 --num-steps 20 --plot timeline.png

Takes the flags of train_main.py and profiles the GPT stage on --train-data (default: the sample corpus, written to the
working folder). Writes no other files except --json and --plot. Each phase is timed alone with synchronized devices, so
that the phases add up; then the whole pipeline is timed.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.cli.errors import exits_with_sentence, require_output  # noqa: E402  the checkout must be on the path first
from myxtts.config.settings import Default  # noqa: E402
from myxtts.devices.configuration import visible_gpus  # noqa: E402
from myxtts.devices.gpu_monitor import BYTES_PER_MB, GPUMonitor  # noqa: E402

LOAD_LIMIT = 0.20
TRANSFER_LIMIT = 0.15
TRAIN_LIMIT = 0.50
VARIATION_LIMIT = 0.30
"""Limits, as fractions of the step time: `judge` reports training below its limit, and the others above theirs."""
PLOTTED_STEPS = 12
LANES = {"preprocess": (1, "tab:blue"), "transfer": (1, "tab:orange"), "train": (0, "tab:green")}
"""Row and color of each phase of the pipeline in the figure."""
TITLES = {"load": "Data loading", "preprocess": "Preprocessing", "transfer": "Transfer", "train": "Training"}


class Verdict(NamedTuple):
    """A bottleneck with a recommendation."""

    bottleneck: str
    """`data loading`, `transfer`, `training` or `variation`."""
    finding: str
    recommendation: str


def measure_phases(trainer, dataset, num_steps):
    """Times each phase alone; returns the mean seconds per step by phase. Trains the model, without accumulation.

    `load` covers reading, padding and the copy to the data device; `preprocess` covers mels, codes and augmentation.
    """
    import tensorflow as tf

    from myxtts.training.watching.measurement import WARMUP_STEPS, take_step, timed

    times, kept = {"preprocess": [], "transfer": [], "train": []}, []
    list(trainer.stream(dataset, 0, WARMUP_STEPS))  # the first reads import the decoders
    # Readers work in parallel and ahead of the steps, so the time per step is the mean over many reads.
    began = time.perf_counter()
    for wave in trainer.stream(dataset, WARMUP_STEPS, WARMUP_STEPS + num_steps):
        kept = [*kept, wave][-8:]
    tf.test.experimental.sync_devices()
    load = (time.perf_counter() - began) / num_steps
    for position in range(WARMUP_STEPS + num_steps):
        batch = timed(times["preprocess"], trainer.preparation, kept[position % len(kept)], position)
        batch = timed(times["transfer"], trainer.replicas.transfer, batch)
        timed(times["train"], take_step, trainer, batch, position)
    return {"load": load, **{phase: fmean(seconds[WARMUP_STEPS:]) for phase, seconds in times.items()}}


def judge(phases, variation, config, plan):
    """Finds the bottlenecks of a profile.

    Args:
        phases: Seconds per step by phase, from `measure_phases`.
        variation: Standard deviation of the step time divided by its mean.
        config: `XTTSConfig` of the profile.
        plan: `DevicePlan` of the profile.

    Returns:
        A list of `Verdict` in the order of the pipeline, empty if there is no bottleneck.
    """
    shares, found = {phase: seconds / sum(phases.values()) for phase, seconds in phases.items()}, []
    if (share := shares["load"]) > LOAD_LIMIT:
        finding = f"Data loading takes {share:.0%} of the step (limit {LOAD_LIMIT:.0%}): the host is the bottleneck."
        cores, workers = os.cpu_count(), config.data.num_workers
        fix = f"Read with more workers: --num-workers {min(cores, 2 * workers)} (now {workers})."
        if workers >= cores or isinstance(workers, Default):  # by default, tf.data adapts the number
            cache = f"Keep decoded clips: data.cache_mb: {4 * max(config.data.cache_mb, 512)} in --config"
            fix = f"{cache}, or store the recordings as 22 050 Hz 16-bit WAV."
        found.append(Verdict("data loading", finding, fix))
    if (share := shares["transfer"]) > TRANSFER_LIMIT:
        finding = f"Transfer takes {share:.0%} of the step (limit {TRANSFER_LIMIT:.0%}): the copy is the bottleneck."
        pair = f"GPU {plan.model_gpus[0] if plan.model_gpus else 0}"
        fix = f"Use a GPU for --data-gpu that `nvidia-smi topo -m` shows as NV# or PIX beside {pair}."
        if plan.virtual:
            fix = "Virtual devices share one memory: judge the transfer on GPUs (--data-gpu, --model-gpu)."
        found.append(Verdict("transfer", finding, fix))
    if (share := shares["train"]) < TRAIN_LIMIT:
        work = f"{1e3 * (sum(phases.values()) - phases['train']):.1f} ms of data work"
        waits = f"It waits for {work} per {1e3 * phases['train']:.1f} ms of training"
        finding = f"Training takes {share:.0%} of the step (limit {TRAIN_LIMIT:.0%}): the model device is under-used."
        found.append(Verdict("training", f"{finding} {waits}.", _trains_more(plan)))
    if variation > VARIATION_LIMIT:
        finding = f"Step times vary by {variation:.0%} (limit {VARIATION_LIMIT:.0%}): oscillation."
        fix = "Give every batch one shape: --enable-static-shapes."
        if config.data.static_shapes:
            size, depth = config.data.pipeline_buffer_size, config.training.pipeline_depth + 2
            deeper = f"training.pipeline_depth: {depth} in --config"
            fix = f"Buffer more: --buffer-size {2 * size} (now {size}) and {deeper}."
        found.append(Verdict("variation", finding, fix))
    return found


def _trains_more(plan):
    if not plan.is_dual:
        if len(visible_gpus()) > 1:
            return "Give the data work a device of its own: --data-gpu 0 --model-gpu 1."
        return "Prepare the codes once: myxtts prepare, then --prepared. Or train a larger --model-size."
    if len(plan.model_devices) > 1:
        return "Use fewer --model-gpus, which one data device can feed, or a larger --model-size."
    if plan.data_gpu in plan.model_gpus:
        return "One GPU prepares and trains: use the idle time for a larger --batch-size or --model-size."
    swapped = f"--data-gpu {plan.model_gpus[0]} --model-gpu {plan.data_gpu}"
    return f"Give the data work the quicker device: {swapped}; or use the idle time for a larger --model-size."


@dataclass(frozen=True)
class Profile:
    """Result of `DualGPUBottleneckProfiler`: measurements, the `XTTSConfig`, the `DevicePlan`, and a `GPUReport`."""

    config: object
    plan: object
    phases: dict[str, float]
    step_times: list[float]
    timing: dict[str, float]
    """Timing of the pipeline's steps, see `StepClock.report`."""
    spans: list[tuple[str, float, float]]
    """Phase, start and end of each call of a phase in `LANES`, in seconds since the end of the last untimed step."""
    gpus: object
    peak_mb: float | None = None
    """Peak memory that TensorFlow used on the model GPU, in MB, without what it only reserved; None on a CPU."""

    @property
    def verdicts(self):
        return judge(self.phases, self.timing["variation"], self.config, self.plan)

    @property
    def efficiency(self):
        """Overlap efficiency: the longer of data work and training, divided by the step time. 1 or more is ideal."""
        return 1e3 * max(sum(self.phases.values()) - self.phases["train"], self.phases["train"]) / self.timing["avg_ms"]

    @property
    def is_possible(self):
        """Whether no phase alone takes longer than a step. Reading, preparing (with transfer) and training overlap."""
        preparing = self.phases["preprocess"] + self.phases["transfer"]
        return bool(1e3 * max(self.phases["load"], preparing, self.phases["train"]) < 1.005 * self.timing["avg_ms"])

    @property
    def speedup(self):
        """Speed-up by overlap: the time of a step without overlap, divided by the measured step time."""
        return 1e3 * sum(self.phases.values()) / self.timing["avg_ms"]

    @property
    def busy(self):
        """Fraction of time in which the data device prepared or copied batches, and fraction in which training ran."""
        return min(1.0, self.timing["preparing"] + self.timing["copying"]), 1.0 - self.timing["stall"]

    def as_dict(self):
        """Returns the profile as JSON types, with times in milliseconds."""
        gpus = [dataclasses.asdict(usage) for usage in self.gpus.gpus]
        return {
            "devices": self.plan.describe(),
            "virtual": self.plan.virtual,
            "cpu_count": os.cpu_count(),
            "model_size": self.config.model.size,
            "batch_size": self.config.stage("gpt").batch_size,
            "steps": len(self.step_times),
            "phases_ms": {phase: 1e3 * seconds for phase, seconds in self.phases.items()},
            "sum_of_phases_ms": 1e3 * sum(self.phases.values()),
            "step_ms": self.timing["avg_ms"],
            **{name: self.timing[name] for name in ("variation", "stall", "steps_per_second")},
            "overlap_efficiency": self.efficiency,
            "speedup": self.speedup,
            "ceiling": self.speedup / self.efficiency,
            "is_possible": self.is_possible,
            "data_device_busy": self.busy[0],
            "model_device_busy": self.busy[1],
            "peak_memory_mb": self.peak_mb,
            "gpu": {"available": bool(gpus), "reason": self.gpus.unavailable_reason, "gpus": gpus},
            "verdicts": [verdict._asdict() for verdict in self.verdicts],
        }

    def describe(self):
        """Returns the report as text: timing, GPU utilization, bottlenecks and recommendations."""
        total, timing = sum(self.phases.values()), self.timing
        lines = ["TIMING BREAKDOWN:"]
        shown = ((title, self.phases[phase]) for phase, title in TITLES.items())
        lines += [f"  {title + ':':<20}{1e3 * seconds:9.2f} ms  {seconds / total:6.1%}" for title, seconds in shown]
        spread = f"std {timing['std_ms']:.2f} ms, variation {timing['variation']:.1%}"
        lines += [
            f"  {'Sum of the phases:':<20}{1e3 * total:9.2f} ms  a step without overlap",
            f"  {'Pipeline step:':<20}{timing['avg_ms']:9.2f} ms  measured; {spread}",
            f"  Throughput: {timing['steps_per_second']:.2f} steps/sec",
            f"  Overlap efficiency: {self.efficiency:.2f} (longer of data work and training / pipeline step)",
            f"  Speed-up by overlap: {self.speedup:.2f} (ceiling {self.speedup / self.efficiency:.2f})",
        ]
        if not self.is_possible:  # the machine was busy while the phases were timed
            lines.append("  Unreliable: both are more than is possible. Measure longer, on an idle machine.")
        (data, model), models = self.busy, ", ".join(self.plan.model_devices)
        busy = f"Data device {self.plan.data_device} busy {data:.0%}, model device {models} busy {model:.0%}"
        lines += ["", "GPU UTILIZATION:", f"  {busy}; waited for data {timing['stall']:.0%}"]
        for gpu in self.gpus.gpus:
            mean, greatest = gpu.mean_utilization, gpu.max_utilization
            busy = "not reported" if mean is None else f"mean {mean:.0f}%, max {greatest:.0f}%"
            memory = f"mean {gpu.mean_memory_mb:.0f}MB, max {gpu.max_memory_mb:.0f}MB of {gpu.total_memory_mb:.0f}MB"
            lines.append(f"  GPU {gpu.id} ({gpu.name}): utilization {busy}; memory {memory}")
        if not self.gpus.gpus:
            lines.append(f"  GPU utilization: not available ({self.gpus.unavailable_reason})")
        lines += ["", "BOTTLENECK ANALYSIS:"]
        lines += [f"  {verdict.finding}" for verdict in self.verdicts] or ["  NO MAJOR BOTTLENECKS DETECTED"]
        lines += ["", "RECOMMENDATIONS:"]
        lines += [f"  {verdict.recommendation}" for verdict in self.verdicts] or ["  Pipeline appears well-balanced"]
        return "\n".join(lines)

    def plot(self, path):
        """Draws when each device was busy during the first steps, and saves the figure."""
        from matplotlib.figure import Figure

        shown, figure = sum(self.step_times[:PLOTTED_STEPS]), Figure(figsize=(10, 2.6), dpi=100)
        axes = figure.subplots()
        for phase, (lane, color) in LANES.items():
            bars = [(1e3 * start, 1e3 * (end - start)) for name, start, end in self.spans if name == phase]
            axes.broken_barh(bars, (lane - 0.35, 0.7), facecolors=color, edgecolor="white", label=phase)
        axes.set(
            yticks=(0, 1),
            yticklabels=(f"model {self.plan.model_device}", f"data {self.plan.data_device}"),
            xlabel="milliseconds",
            xlim=(0, 1e3 * shown),
        )
        axes.set_title(f"{self.plan.describe()}; overlap efficiency {self.efficiency:.2f}", fontsize=9)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
        figure.savefig(path, bbox_inches="tight")


class DualGPUBottleneckProfiler:
    """Profiles a trainer on a data set. Trains the model's weights, but saves nothing.

    Args:
        trainer: `XTTSTrainer` of any stage, without gradient accumulation.
        dataset: `SpeechDataset`.
        num_steps: Steps of each of the two measurements: first phase by phase, then the whole pipeline.
    """

    def __init__(self, trainer, dataset, num_steps=100):
        self.trainer, self.dataset, self.num_steps = trainer, dataset, num_steps

    def run(self):
        """Measures the phases, then the pipeline; returns a `Profile`."""
        import tensorflow as tf

        from myxtts.training.watching.measurement import WARMUP_STEPS, measure_pipeline

        phases, spans = measure_phases(self.trainer, self.dataset, self.num_steps), []
        device, memory = self.trainer.plan.model_device, tf.config.experimental

        def watch(phase, call):
            def recorded(*arguments):
                began = time.perf_counter()
                result = call(*arguments)
                spans.append((phase, began, time.perf_counter()))
                return result

            return recorded

        with GPUMonitor(self.trainer.plan.visible_ids, interval_seconds=0.1) as monitor:
            clock = measure_pipeline(self.trainer, self.dataset, self.num_steps, self.num_steps, watch)
        first = [end for phase, _, end in spans if phase == "train"][WARMUP_STEPS - 1]
        spans = [(phase, start - first, end - first) for phase, start, end in spans]
        peak_mb = memory.get_memory_info(device)["peak"] / BYTES_PER_MB if "GPU" in device else None
        times = clock.step_times, clock.report(), spans
        return Profile(self.trainer.config, self.trainer.plan, phases, *times, monitor.report(), peak_mb)


@exits_with_sentence
def main(argv=None):
    """Profiles a model and prints the report; returns the exit code."""
    from myxtts.cli.train import build_parser, config_from_arguments
    from myxtts.config.flags import start_options
    from myxtts.runs.setup import set_up

    parser = build_parser()
    parser.prog, parser.description = "dual_gpu_bottleneck_profiler.py", __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    profile = parser.add_argument_group("profile")
    profile.add_argument("--num-steps", type=int, default=100, help="steps of each measurement (default: 100)")
    profile.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    profile.add_argument("--plot", metavar="FILE.png", help="draw when each device was busy")
    arguments = parser.parse_args(argv)
    if arguments.num_steps < 2:
        parser.error(f"--num-steps must be at least 2. Received: {arguments.num_steps}.")
    require_output("--json", arguments.json)
    require_output("--plot", arguments.plot)
    start = start_options(vars(arguments).copy())
    config, plan = set_up(config_from_arguments(arguments), start.download, **start.devices)
    from myxtts.runs.origin import settle_origin
    from myxtts.training.watching.measurement import open_trainer

    with tempfile.TemporaryDirectory() as folder:
        config = settle_origin(config)[0] if config.training.init_from else config
        trainer, dataset = open_trainer(config, plan, folder)
        what = f"batch size {trainer.stage_config.batch_size}, model {dataset.config.model.size}; {plan.describe()}"
        print(f"Profiling {arguments.num_steps} steps, {what}\n", flush=True)
        profile = DualGPUBottleneckProfiler(trainer, dataset, arguments.num_steps).run()
    print(profile.describe())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(profile.as_dict(), indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        profile.plot(arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the time of a training step goes and what to change, on the real model and the real pipeline.

    python utilities/dual_gpu_bottleneck_profiler.py --batch-size 16 --num-steps 100 --data-gpu 0 --model-gpu 1
    python utilities/dual_gpu_bottleneck_profiler.py --virtual-devices 2 --num-steps 20 --plot timeline.png

Takes the flags of train_main.py, so that what is profiled is what would be trained: the GPT stage on the files of
--train-data, else on the sample corpus. Nothing is written but --json and --plot. Each phase is timed alone with the
devices synchronized, so the phases add up; then the pipeline is timed as a whole.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.devices.gpu_monitor import GPUMonitor  # noqa: E402  the repository must be on the path first

__all__ = ["DualGPUBottleneckProfiler", "GPUMonitor", "Profile", "Verdict", "judge"]

LOAD_LIMIT = 0.20
TRANSFER_LIMIT = 0.15
TRAIN_LIMIT = 0.50
VARIATION_LIMIT = 0.30
"""Shares past which a phase is a bottleneck: of the sum of the phases, and for the variation of the mean step."""
PLOTTED_STEPS = 12
TITLES = {"load": "Data loading", "preprocess": "Preprocessing", "transfer": "Transfer", "train": "Training"}


@dataclass(frozen=True)
class Verdict:
    """One bottleneck, with what to do about it."""

    bottleneck: str
    """`data loading`, `transfer`, `training` or `variation`."""
    finding: str
    recommendation: str


def judge(phases, variation, config, plan):
    """The bottlenecks of a profile, worst first in the order of the pipeline.

    Args:
        phases: `PhaseTimes`.
        variation: Standard deviation over mean of the pipeline's steps.
        config: `XTTSConfig` that was profiled.
        plan: `DevicePlan` in force.

    Returns:
        A list of `Verdict`, empty when the pipeline is balanced.
    """
    found = []
    shares = {phase: getattr(phases, phase) / phases.total for phase in TITLES}
    if shares["load"] > LOAD_LIMIT:
        found.append(
            Verdict(
                "data loading",
                f"Data loading takes {shares['load']:.0%} of the step "
                f"(limit {LOAD_LIMIT:.0%}): the host is the bottleneck.",
                _reads_faster(config.data),
            )
        )
    if shares["transfer"] > TRANSFER_LIMIT:
        found.append(
            Verdict(
                "transfer",
                f"Transfer takes {shares['transfer']:.0%} of the step (limit "
                f"{TRANSFER_LIMIT:.0%}): the copy between the devices is the bottleneck.",
                _copies_faster(plan),
            )
        )
    if shares["train"] < TRAIN_LIMIT:
        found.append(
            Verdict(
                "training",
                f"Training takes {shares['train']:.0%} of the step (limit {TRAIN_LIMIT:.0%}): "
                f"the model device is under-used. It waits for {1e3 * phases.data:.1f} ms of data work "
                f"per {1e3 * phases.train:.1f} ms of training.",
                _trains_more(plan),
            )
        )
    if variation > VARIATION_LIMIT:
        found.append(
            Verdict(
                "variation",
                f"Step times vary by {variation:.0%} (limit {VARIATION_LIMIT:.0%}): oscillation.",
                _varies_less(config),
            )
        )
    return found


def _reads_faster(data):
    cores = os.cpu_count()
    if data.num_workers < cores:
        return f"Read with more workers: --num-workers {min(cores, 2 * data.num_workers)} (now {data.num_workers})."
    return (
        f"All {cores} cores read already (--num-workers {data.num_workers}). Keep decoded clips: data.cache_mb: "
        f"{4 * max(data.cache_mb, 512)} in --config, or store the recordings as 22 050 Hz 16-bit WAV."
    )


def _copies_faster(plan):
    if plan.virtual:
        return "Virtual devices share one memory: judge the transfer on GPUs (--data-gpu, --model-gpu)."
    return (
        f"Take a pair with a faster link: for --data-gpu a GPU that `nvidia-smi topo -m` shows as NV# or PIX beside "
        f"GPU {plan.model_gpus[0] if plan.model_gpus else 0}."
    )


def _trains_more(plan):
    if not plan.is_dual:
        return "Give the data work a device of its own: --data-gpu 0 --model-gpu 1."
    if plan.num_replicas > 1:
        return (
            f"One data device feeds {plan.num_replicas} training devices too slowly: fewer --model-gpus, or a larger "
            "--model-size."
        )
    if plan.data_gpu in plan.model_gpus:
        return "One GPU prepares and trains: use the idle time for a larger --batch-size or --model-size."
    return (
        f"Give the data work the quicker device: --data-gpu {plan.model_gpus[0]} --model-gpu {plan.data_gpu}; or use "
        "the idle time for a larger --model-size."
    )


def _varies_less(config):
    if not config.data.static_shapes:
        return "Give every batch one shape: --enable-static-shapes."
    return (
        f"Buffer more: --buffer-size {2 * config.data.pipeline_buffer_size} (now {config.data.pipeline_buffer_size}) "
        f"and training.pipeline_depth: {config.training.pipeline_depth + 2} in --config."
    )


@dataclass(frozen=True)
class Profile:
    """What was measured. `phases` is a `PhaseTimes`, `pipeline` a `PipelineTimes`, `gpus` a `GPUReport`."""

    config: object
    plan: object
    phases: object
    pipeline: object
    gpus: object
    verdicts: list[Verdict]

    @property
    def efficiency(self):
        """The longer of data work and training over the measured step: 1 when the shorter is hidden entirely."""
        return max(self.phases.data, self.phases.train) / self.pipeline.mean

    @property
    def data_busy(self):
        """Share of the time in which the data device prepared or copied a batch."""
        return self.pipeline.busy({"preprocess", "transfer"})

    @property
    def model_busy(self):
        """Share of the time in which the model device trained."""
        return self.pipeline.busy({"train"})

    def _unreliable(self):
        """A line where the pipeline took less time than its longer half alone, which only disturbed timing explains."""
        if self.efficiency > 1.005:
            yield "  Unreliable: both are more than is possible. Measure again, on an idle machine and with more steps."

    def as_dict(self):
        """The profile as JSON types, times in milliseconds."""
        return {
            "devices": self.plan.describe(),
            "virtual": self.plan.virtual,
            "cpu_count": os.cpu_count(),
            "model_size": self.config.model.size,
            "batch_size": self.config.stage("gpt").batch_size,
            "steps": len(self.pipeline.step_times),
            "phases_ms": {phase: 1e3 * getattr(self.phases, phase) for phase in TITLES},
            "sum_of_phases_ms": 1e3 * self.phases.total,
            "step_ms": 1e3 * self.pipeline.mean,
            "variation": self.pipeline.variation,
            "stall": self.pipeline.stall,
            "steps_per_second": 1.0 / self.pipeline.mean,
            "overlap_efficiency": self.efficiency,
            "speedup": self.phases.total / self.pipeline.mean,
            "ceiling": self.phases.ceiling,
            "data_device_busy": self.data_busy,
            "model_device_busy": self.model_busy,
            "gpu": self.gpus.as_dict(),
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
        }

    def describe(self):
        """The four sections, as printed."""
        phases, pipeline = self.phases, self.pipeline
        lines = ["TIMING BREAKDOWN:"]
        for phase, title in TITLES.items():
            seconds = getattr(phases, phase)
            lines.append(f"  {title + ':':<20}{1e3 * seconds:9.2f} ms  {seconds / phases.total:6.1%}")
        lines += [
            f"  {'Sum of the phases:':<20}{1e3 * phases.total:9.2f} ms  a step without overlap",
            f"  {'Pipeline step:':<20}{1e3 * pipeline.mean:9.2f} ms  measured; std "
            f"{1e3 * pipeline.variation * pipeline.mean:.2f} ms, variation {pipeline.variation:.1%}",
            f"  Throughput: {1.0 / pipeline.mean:.2f} steps/sec",
            f"  Overlap efficiency: {self.efficiency:.2f} (longer of data work and training / pipeline step)",
            f"  Speed-up by overlap: {phases.total / pipeline.mean:.2f} (ceiling {phases.ceiling:.2f})",
            *self._unreliable(),
            "",
            "GPU UTILIZATION:",
            f"  Data device {self.plan.data_device} busy {self.data_busy:.0%}, model device "
            f"{', '.join(self.plan.model_devices)} busy {self.model_busy:.0%} of the time; waited for data "
            f"{pipeline.stall:.0%}",
        ]
        lines += [f"  {line}" for line in self.gpus.describe().splitlines()]
        lines += ["", "BOTTLENECK ANALYSIS:"]
        lines += [f"  {verdict.finding}" for verdict in self.verdicts] or ["  NO MAJOR BOTTLENECKS DETECTED"]
        lines += ["", "RECOMMENDATIONS:"]
        lines += [f"  {verdict.recommendation}" for verdict in self.verdicts] or ["  Pipeline appears well-balanced"]
        return "\n".join(lines)

    def plot(self, path):
        """Writes a picture of which device was busy when, over the first steps."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        lanes = {"preprocess": (1, "tab:blue"), "transfer": (1, "tab:orange"), "train": (0, "tab:green")}
        shown = sum(self.pipeline.step_times[:PLOTTED_STEPS])
        figure, axes = pyplot.subplots(figsize=(10, 2.6), dpi=100)
        for phase, (lane, color) in lanes.items():
            bars = [
                (1e3 * max(start, 0.0), 1e3 * (min(end, shown) - max(start, 0.0)))
                for name, start, end in self.pipeline.spans
                if name == phase and end > 0 and start < shown
            ]
            axes.broken_barh(bars, (lane - 0.35, 0.7), facecolors=color, edgecolor="white", label=phase)
        axes.set(
            yticks=(0, 1),
            yticklabels=(f"model {self.plan.model_device}", f"data {self.plan.data_device}"),
            xlabel="milliseconds",
            xlim=(0, 1e3 * shown),
            title=f"{self.plan.describe()}; overlap efficiency {self.efficiency:.2f}",
        )
        axes.title.set_fontsize(9)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
        figure.savefig(path, bbox_inches="tight")
        pyplot.close(figure)


class DualGPUBottleneckProfiler:
    """Profiles a trainer on its data set. The model is trained a little by it; nothing is saved.

    Args:
        trainer: `XTTSTrainer` of any stage, with a gradient accumulation of 1.
        dataset: `SpeechDataset`.
        num_steps: Steps of each of the two measurements.
        monitor: `GPUMonitor` for the second one; None watches the GPUs of the trainer's plan.
    """

    def __init__(self, trainer, dataset, num_steps=100, monitor=None):
        self.trainer = trainer
        self.dataset = dataset
        self.num_steps = num_steps
        self.monitor = monitor or GPUMonitor(trainer.plan.visible_ids, interval_seconds=0.1)

    def run(self):
        """Measures; returns a `Profile`."""
        from myxtts.training.watching.measurement import measure_phases, measure_pipeline

        phases = measure_phases(self.trainer, self.dataset, self.num_steps)
        with self.monitor:
            pipeline = measure_pipeline(self.trainer, self.dataset, self.num_steps, start=self.num_steps)
        config, plan = self.trainer.config, self.trainer.plan
        return Profile(
            config, plan, phases, pipeline, self.monitor.report(), judge(phases, pipeline.variation, config, plan)
        )


def parse(argv):
    """The flags of train_main.py and those of this command."""
    from myxtts.cli.train import build_parser

    parser = build_parser()
    parser.prog, parser.description = "dual_gpu_bottleneck_profiler.py", __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    profile = parser.add_argument_group("profile")
    profile.add_argument("--num-steps", type=int, default=100, help="steps of each measurement (default: 100)")
    profile.add_argument("--json", metavar="FILE", help="write the figures there as well")
    profile.add_argument("--plot", metavar="FILE.png", help="draw which device was busy when")
    arguments = parser.parse_args(argv)
    if arguments.num_steps < 2:
        parser.error(f"--num-steps must be at least 2. Received: {arguments.num_steps}.")
    return arguments


def main(argv=None):
    """Profiles and prints; returns the exit code."""
    from myxtts.cli.errors import exits_with_sentence

    return exits_with_sentence(_main)(argv)


def _main(argv):
    arguments = parse(argv)
    from myxtts.cli.train import config_from_arguments, set_up_options
    from myxtts.runs.setup import set_up

    config, plan = set_up(config_from_arguments(arguments), **set_up_options(arguments))
    from myxtts.training.watching.measurement import open_trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer, dataset = open_trainer(config, plan, folder)
        print(
            f"Profiling {arguments.num_steps} steps, batch size {trainer.stage_config.batch_size}, model "
            f"{config.model.size}; {plan.describe()}\n",
            flush=True,
        )
        profile = DualGPUBottleneckProfiler(trainer, dataset, arguments.num_steps).run()
    print(profile.describe())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(profile.as_dict(), indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        profile.plot(arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How much of the data work hides behind the training: two logical CPU devices, one core each, the real model.

    python utilities/benchmarks/overlap.py [--steps 40] [--json FILE] [training flags of train_main.py]

Two cases. `alike`: the DVAE is sized so that data work D and training T take equally long; the asynchronous pipeline is
compared with the synchronous one (prepare, copy, train in turn). `third`: D is a third of T; the pipeline is compared
with training alone. Every device computes on one core: TensorFlow's single-threaded executor runs its operations. Wants
two idle cores, and says how busy others kept the machine meanwhile. For comparison it trains alone once more while a
process of its own trains beside it: what both lose by that is memory and cache, which no pipeline gives back.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path
from statistics import fmean, median

from bench_extra import import_extra, others_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CASES = {"alike": (1.0, 4), "third": (1.0 / 3.0, 12)}
"""Data work as a share of the training work, and layers of the GPT."""
CALIBRATION_STEPS = 8
MOST_WIDTH_STEPS = 64
ROUNDS = 4
WIDTH_STEP = 8
THREADS = 8
"""For functions and the bodies of their conditions and loops. The single-threaded executor hands a body to another
thread and waits; with one thread per core, a body now and then queues behind the other device's whole function."""
NEIGHBOR_TRAINS = "neighbor trains\n"
GOALS = "speed-up >= 1.6, efficiency >= 0.90, variation < 20% (alike); step within 1.05 x training alone (third)"


def parse(argv):
    from myxtts.cli.train import build_parser

    parser = build_parser()
    parser.prog, parser.description = "overlap.py", __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=40, help="steps of each measurement (default: 40)")
    parser.add_argument("--case", choices=CASES, action="append", help="measure this case alone")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.add_argument("--neighbor", choices=CASES, help=argparse.SUPPRESS)
    parser.set_defaults(virtual_devices=2, batch_size=32, model_size="nano")
    return parser.parse_args(argv)


class OnOneCore:
    """A call whose operations run one after the other in the thread that makes it, in whatever thread that is."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *arguments):
        import tensorflow as tf

        with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            return self.call(*arguments)


def one_core_trainer(config, plan, folder):
    """A GPT trainer whose devices compute on one core each, with an untrained DVAE; and its data set."""
    from myxtts.training.watching.measurement import open_trainer

    trainer, dataset = open_trainer(config, plan, folder)
    trainer.preparation = OnOneCore(trainer.preparation)
    trainer.train_step = OnOneCore(trainer.train_step)
    return trainer, dataset


def of_case(config, case):
    """The configuration with the GPT of a case."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, layers=CASES[case][1]))


def with_dvae(config, width):
    """The configuration with a DVAE of this width."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dvae_hidden=width))


def fitting_width(config, plan, folder, share):
    """The DVAE width, in steps of `WIDTH_STEP`, whose data work is nearest to `share` of the training work."""
    import tensorflow as tf

    from myxtts.models.xtts import XTTS
    from myxtts.training.stages.gpt import GPTPreparation
    from myxtts.training.watching.measurement import measure_phases

    trainer, dataset = one_core_trainer(config, plan, folder)
    phases = measure_phases(trainer, dataset, CALIBRATION_STEPS)
    waves = list(trainer.stream(dataset, 0, CALIBRATION_STEPS))

    def too_long(step):
        with tf.device(plan.data_device):
            model = XTTS(with_dvae(trainer.config, step * WIDTH_STEP).model, parts=("dvae",))
        prepare = OnOneCore(GPTPreparation(model, plan.data_device, config.data.augment, config.training.seed))
        prepare(waves[0], 0)  # traces
        times = []
        for position, wave in enumerate(waves):
            began = time.perf_counter()
            prepare(wave, position)
            times.append(time.perf_counter() - began)
        return phases.load + median(times) + phases.transfer > share * phases.train

    steps = range(1, MOST_WIDTH_STEPS)
    return steps[min(bisect_left(steps, True, key=too_long), len(steps) - 1)] * WIDTH_STEP


class Neighbor:
    """A process that trains as long as this one lives, in a `with` block; they share nothing but the machine."""

    def __init__(self, case):
        self._process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--neighbor", case], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        for line in self._process.stdout:
            if line == NEIGHBOR_TRAINS:
                return self
        raise RuntimeError("The process that was to train at the same time ended; see its message above.")

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def train_beside_parent(config, plan, folder):
    """What a `Neighbor` does."""
    from myxtts.training.watching.measurement import take_step

    parent, step = os.getppid(), 0
    trainer, dataset = one_core_trainer(config, plan, folder)
    wave = next(iter(trainer.stream(dataset, 0, 1)))
    batch = trainer.replicas.transfer(trainer.preparation(wave, 0))
    while os.getppid() == parent:
        take_step(trainer, batch, step)
        step += 1
        if step == 2:
            print(NEIGHBOR_TRAINS, end="", flush=True)


def measure(case, config, plan, folder, num_steps):
    """Figures of one case as a dictionary; times in milliseconds. The measurements take turns, so that a machine that
    slows down slows all of them down."""
    from myxtts.training.watching.measurement import PipelineTimes, measure_phases, measure_pipeline

    share, config = CASES[case][0], of_case(config, case)
    width = fitting_width(config, plan, folder, share)
    trainer, dataset = one_core_trainer(with_dvae(config, width), plan, folder)
    busy_before, began = others_seconds(), time.perf_counter()
    alone, whole = [], {True: PipelineTimes(), False: PipelineTimes()}
    for _ in range(ROUNDS):
        alone.append(measure_phases(trainer, dataset, num_steps // ROUNDS))
        for trainer.enable_async_pipeline, times in whole.items():
            found = measure_pipeline(trainer, dataset, num_steps // ROUNDS)
            times.step_times += found.step_times
            times.wait_seconds += found.wait_seconds
    others = (others_seconds() - busy_before) / (time.perf_counter() - began)
    with Neighbor(case):
        beside = measure_phases(trainer, dataset, num_steps // ROUNDS).train
    data, train = fmean(found.data for found in alone), fmean(found.train for found in alone)
    overlapped, synchronous = whole[True], whole[False]
    return {
        "case": case,
        "layers": CASES[case][1],
        "dvae_hidden": width,
        "steps": len(overlapped.step_times),
        "data_ms": 1e3 * data,
        "load_ms": 1e3 * fmean(found.load for found in alone),
        "train_ms": 1e3 * train,
        "synchronous_ms": 1e3 * synchronous.mean,
        "asynchronous_ms": 1e3 * overlapped.mean,
        "speedup": synchronous.mean / overlapped.mean,
        "ceiling": (data + train) / max(data, train),
        "efficiency": max(data, train) / overlapped.mean,
        "efficiency_of_two_processes": train / beside,
        "over_training_alone": overlapped.mean / train,
        "variation": overlapped.variation,
        "stall": overlapped.stall,
        "cores_used_by_others": others,
        "step_times_ms": [1e3 * seconds for seconds in overlapped.step_times],
    }


def main(argv=None):
    arguments = parse(argv)
    import_extra("psutil")
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS=str(THREADS), TF_CPP_MIN_LOG_LEVEL="3")
    from myxtts.cli.train import config_from_arguments, set_up_options
    from myxtts.runs.setup import set_up

    config, plan = set_up(config_from_arguments(arguments), **set_up_options(arguments))
    # One bucket: every batch has one shape, that of the longest clip, so steps differ by chance alone.
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, num_buckets=1))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.neighbor:
            train_beside_parent(of_case(config, arguments.neighbor), plan, folder)
            return 0
        for case in arguments.case or CASES:
            figures = measure(case, config, plan, folder, arguments.steps)
            found.append(figures)
            print(
                f"{case} ({figures['layers']} layers, DVAE {figures['dvae_hidden']} wide): "
                f"D {figures['data_ms']:.0f} ms, T {figures['train_ms']:.0f} ms, "
                f"synchronous {figures['synchronous_ms']:.0f} ms, asynchronous {figures['asynchronous_ms']:.0f} ms"
            )
            print(
                f"  speed-up {figures['speedup']:.2f} (ceiling {figures['ceiling']:.2f}), overlap efficiency "
                f"{figures['efficiency']:.2f}, step {figures['over_training_alone']:.2f} x training alone, variation "
                f"{100 * figures['variation']:.1f}%, stall {100 * figures['stall']:.1f}%, other processes used "
                f"{figures['cores_used_by_others']:.2f} cores"
            )
            print(f"  two trainings in two processes: efficiency {figures['efficiency_of_two_processes']:.2f}")
    print(f"Goals on an idle machine: {GOALS}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Long runs: does memory stay flat, do threads go away?

    python utilities/benchmarks/soak.py --steps 20000 [training flags of train_main.py]
    python utilities/benchmarks/soak.py --minutes 60

Trains the GPT stage at size nano on two logical CPU devices (or on the GPUs that the flags name) and watches the
process. Ends with exit code 1 when a goal is missed: memory within 2 % after warm-up, no more threads at the end than
before. Sudden ends are in stops.py.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from bench_extra import import_extra, process_state

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WARMUP_SHARE = 0.1
"""Share of a soak that is left out of the comparison: caches fill and allocators grow."""
WINDOW_SHARE = 0.1
"""Share of the rest whose median is compared, at its start and at its end."""
LARGEST_GROWTH = 0.02


def training_parser(prog, description):
    """The flags of train_main.py with the defaults of these benchmarks, for flags of their own to be added."""
    from myxtts.cli.train import build_parser

    parser = build_parser()
    parser.prog, parser.description = prog, description
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(model_size="nano", batch_size=4, model_start_delay=0.0)
    return parser


def parse_training(parser, argv):
    """Parses; two virtual devices where none are named."""
    arguments = parser.parse_args(argv)
    if arguments.data_gpu is None and arguments.virtual_devices is None:
        arguments.virtual_devices = 2
    return arguments


def parse(argv):
    """The flags of train_main.py and those of this command."""
    parser = training_parser("soak.py", __doc__)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="train for so many steps")
    length.add_argument("--minutes", type=float, help="train for so long")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    return parse_training(parser, argv)


class Watcher:
    """Callback that notes the state of the process after each step, and ends the run when its time is over."""

    def __init__(self, minutes, stop):
        self.seconds = minutes and 60.0 * minutes
        self.stop = stop
        self.states = []

    def on_start(self, start):
        self.began = time.monotonic()

    def on_step(self, step):
        self.states.append(process_state())
        if self.seconds and time.monotonic() - self.began > self.seconds:
            self.stop()

    def on_log(self, step, losses, timing):
        rss, threads, _ = self.states[-1]
        print(f"step {step}: {rss / 2**20:.0f} MB, {threads} threads, loss {losses['loss']:.3f}", flush=True)


def soak(trainer, dataset, minutes):
    """Trains and compares memory and threads after warm-up with those at the end."""
    threads_before, watcher = threading.active_count(), Watcher(minutes, trainer.stop_requested.set)
    began = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train(dataset, [watcher])
    states = watcher.states[int(WARMUP_SHARE * len(watcher.states)) :]
    window = max(1, int(WINDOW_SHARE * len(states)))
    memory = [median(rss for rss, _, _ in part) / 2**20 for part in (states[:window], states[-window:])]
    threads = [max(number for _, number, _ in part) for part in (states[:window], states[-window:])]
    found = {
        "steps": len(watcher.states),
        "minutes": (time.monotonic() - began) / 60,
        "memory_mb": memory,
        "growth": memory[1] / memory[0] - 1.0,
        "threads": threads,
        "python_threads": [threads_before, threading.active_count()],
    }
    found["ok"] = (
        found["growth"] <= LARGEST_GROWTH and threads[1] <= threads[0] and found["python_threads"][1] <= threads_before
    )
    print(
        f"{found['steps']} steps in {found['minutes']:.1f} minutes: memory {memory[0]:.0f} MB after warm-up, "
        f"{memory[1]:.0f} MB at the end ({found['growth']:+.2%}); threads {threads[0]} and {threads[1]}; Python "
        f"threads {threads_before} before and {found['python_threads'][1]} after"
    )
    return found


def main(argv=None):
    """Runs what was asked for; returns the exit code."""
    arguments = parse(argv)
    import_extra("psutil")
    from myxtts.cli.train import config_from_arguments, set_up_options
    from myxtts.runs.setup import set_up

    config, plan = set_up(config_from_arguments(arguments), **set_up_options(arguments))
    from myxtts.training.watching.measurement import open_trainer

    gpt = dataclasses.replace(config.training.gpt, max_steps=arguments.steps or 10**9)
    training = dataclasses.replace(config.training, gpt=gpt, log_every_steps=200)
    with tempfile.TemporaryDirectory() as folder:
        trainer, dataset = open_trainer(dataclasses.replace(config, training=training), plan, folder)
        found = soak(trainer, dataset, arguments.minutes)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

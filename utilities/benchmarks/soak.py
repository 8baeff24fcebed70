"""Long runs and sudden ends: does memory stay flat, do threads go away, does every stop end in time?

    python utilities/benchmarks/soak.py --steps 20000 [training flags of train_main.py]
    python utilities/benchmarks/soak.py --minutes 60
    python utilities/benchmarks/soak.py --stops 200

The first two train the GPT stage at size nano on two logical CPU devices (or on the GPUs that the flags name) and watch
the process. The third stops training at random moments in every way there is: an exception in the reader, in the
features, in the step; Ctrl-C, as the command takes it and as a bare exception; the end of the data. Ends with exit code 1
when a goal is missed: memory within 2 % after warm-up, no thread more at the end, every stop within 5 s.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WARMUP_SHARE = 0.1
"""Share of a soak that is left out of the comparison: caches fill and allocators grow."""
WINDOW_SHARE = 0.1
"""Share of the rest whose median is compared, at its start and at its end."""
LARGEST_GROWTH = 0.02
LONGEST_STOP_SECONDS = 5.0
LONGEST_RUN_STEPS = 12
KINDS = ("reader", "features", "step", "interrupt", "signal", "end of data")


class Broken(Exception):
    """What is thrown into a run."""


def parse(argv):
    from myxtts.cli.train import build_parser

    parser = build_parser()
    parser.prog, parser.description = "soak.py", __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="train for so many steps")
    length.add_argument("--minutes", type=float, help="train for so long")
    length.add_argument("--stops", type=int, help="stop so many runs at random")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.set_defaults(model_size="nano", batch_size=4, model_start_delay=0.0)
    arguments = parser.parse_args(argv)
    if arguments.data_gpu is None and arguments.virtual_devices is None:
        arguments.virtual_devices = 2
    return arguments


def process_state():
    """Resident memory in bytes, threads of the process, threads of Python."""
    import psutil

    process = psutil.Process()
    return process.memory_info().rss, process.num_threads(), threading.active_count()


class Watcher:
    """Callback that notes the state of the process after each step, and ends the run when its time is over."""

    def __init__(self, minutes):
        self.seconds = minutes and 60.0 * minutes
        self.states = []

    def on_start(self, trainer, total_steps, placement):
        self.trainer, self.began = trainer, time.monotonic()

    def on_step(self, step):
        self.states.append(process_state())
        if self.seconds and time.monotonic() - self.began > self.seconds:
            self.trainer.stop_requested.set()

    def on_log(self, step, losses, timing):
        rss, threads, _ = self.states[-1]
        print(f"step {step}: {rss / 2**20:.0f} MB, {threads} threads, loss {losses['loss']:.3f}", flush=True)


def soak(trainer, dataset, minutes):
    """Trains and compares memory and threads after warm-up with those at the end."""
    threads_before, watcher = threading.active_count(), Watcher(minutes)
    began = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train(dataset, [watcher])
    states = watcher.states[int(WARMUP_SHARE * len(watcher.states)):]
    window = max(1, int(WINDOW_SHARE * len(states)))
    memory = [median(rss for rss, _, _ in part) / 2**20 for part in (states[:window], states[-window:])]
    threads = [max(number for _, number, _ in part) for part in (states[:window], states[-window:])]
    found = {"steps": len(watcher.states), "minutes": (time.monotonic() - began) / 60, "memory_mb": memory,
             "growth": memory[1] / memory[0] - 1.0, "threads": threads,
             "python_threads": [threads_before, threading.active_count()]}
    found["ok"] = (found["growth"] <= LARGEST_GROWTH and threads[1] <= threads[0]
                   and found["python_threads"][1] <= threads_before)
    print(f"{found['steps']} steps in {found['minutes']:.1f} minutes: memory {memory[0]:.0f} MB after warm-up, "
          f"{memory[1]:.0f} MB at the end ({found['growth']:+.2%}); threads {threads[0]} and {threads[1]}; Python threads "
          f"{threads_before} before and {found['python_threads'][1]} after")
    return found


class Saboteur:
    """Makes one run of a trainer end in a given way."""

    def __init__(self, trainer, dataset):
        self.trainer, self.dataset = trainer, dataset
        self.train_loader, self.preparation, self.step = dataset.train_loader, trainer.preparation, trainer.train_step
        self.struck = None

    def run(self, kind, at, seconds):
        """Trains until the stop at step `at`, or after `seconds`. Returns the time from the stop to the end of `train`
        and what came out."""
        from myxtts.cli.run import stops_on_signals

        trainer, self.struck = self.trainer, None
        trainer.step = trainer.position = 0
        trainer.stop_requested.clear()
        trainer.stage_config.max_steps = at + 1 if kind == "end of data" else LONGEST_RUN_STEPS * 1000
        self.dataset.train_loader = lambda stage: self.breaking_loader(self.train_loader(stage), kind, at)
        trainer.preparation = self.breaking(self.preparation, kind == "features", at)
        trainer.train_step = self.breaking(self.step, kind == "step", at)
        timer = threading.Timer(seconds, self.interrupt)
        came_out = None
        try:
            with stops_on_signals(trainer) if kind == "signal" else contextlib.nullcontext():
                if kind in ("interrupt", "signal"):
                    timer.start()
                trainer.train(self.dataset, [self] if kind == "end of data" else [])
        except KeyboardInterrupt:
            came_out = "KeyboardInterrupt"
        except Exception as error:  # whatever it is, it is judged below
            came_out = "Broken" if Broken.__name__ in f"{type(error).__name__} {error}" else repr(error)
        return time.monotonic() - self.struck, came_out

    def on_step(self, step):
        self.struck = time.monotonic()

    def interrupt(self):
        self.struck = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def strike(self):
        self.struck = time.monotonic()
        raise Broken

    def breaking(self, call, active, at):
        calls = iter(range(10**9))

        def broken(*arguments):
            if next(calls) == at and active:
                self.strike()
            return call(*arguments)

        broken.__dict__.update(getattr(call, "__dict__", {}))
        for name in ("state_variables", "accumulators"):
            if hasattr(call, name):
                setattr(broken, name, getattr(call, name))
        return broken

    def breaking_loader(self, loader, kind, at):
        def load(position):
            if kind == "reader" and position >= at:
                self.strike()
            return loader(position)

        return load


def stop_at_random(trainer, dataset, num_stops):
    """Runs and stops `num_stops` times; the figures of the stops."""
    draw, stops, saboteur = random.Random(0), [], Saboteur(trainer, dataset)
    expected = {"interrupt": "KeyboardInterrupt", "signal": None, "end of data": None}
    with contextlib.redirect_stdout(None):
        saboteur.run("end of data", 4, 0.0)  # traces
    threads_before = process_state()[1:]
    for number in range(num_stops):
        kind = KINDS[number % len(KINDS)]
        with contextlib.redirect_stdout(None):
            seconds, came_out = saboteur.run(kind, draw.randrange(LONGEST_RUN_STEPS), draw.uniform(0.0, 0.5))
        alive = [thread.name for thread in threading.enumerate() if thread.name == "myxtts-data-device"]
        ok = seconds <= LONGEST_STOP_SECONDS and not alive and came_out == expected.get(kind, "Broken")
        stops.append({"kind": kind, "seconds": seconds, "came_out": came_out, "left": alive, "ok": ok})
        if not ok:
            print(f"stop {number}: {stops[-1]}", flush=True)
    gc.collect()
    threads_after = process_state()[1:]
    for kind in KINDS:
        took = [stop["seconds"] for stop in stops if stop["kind"] == kind]
        if took:
            print(f"{kind:<12} {len(took):4} stops, ended after {median(took):.2f} s (median), {max(took):.2f} s (longest)")
    bad = [stop for stop in stops if not stop["ok"]]
    print(f"{num_stops} stops, {len(bad)} not as they should be; threads before and after: process {threads_before[0]} and "
          f"{threads_after[0]}, Python {threads_before[1]} and {threads_after[1]}")
    return {"stops": stops, "threads_before": threads_before, "threads_after": threads_after,
            "ok": not bad and threads_after[1] <= threads_before[1] and threads_after[0] <= threads_before[0]}


def main(argv=None):
    """Runs what was asked for; returns the exit code."""
    arguments = parse(argv)
    from myxtts.cli.train import config_from_arguments, configure_devices, with_data

    config = config_from_arguments(arguments)
    plan = configure_devices(config, arguments)
    config = with_data(config, arguments.download_ljspeech)
    from myxtts.training.measurement import open_trainer

    steps = arguments.steps or (10**9 if arguments.minutes else LONGEST_RUN_STEPS)
    gpt = dataclasses.replace(config.training.gpt, max_steps=steps)
    training = dataclasses.replace(config.training, gpt=gpt, log_every_steps=200)
    with tempfile.TemporaryDirectory() as folder:
        trainer, dataset = open_trainer(dataclasses.replace(config, training=training), plan, folder)
        found = stop_at_random(trainer, dataset, arguments.stops) if arguments.stops else \
            soak(trainer, dataset, arguments.minutes)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

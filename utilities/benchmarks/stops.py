"""Sudden ends of training: does every stop end in time, leave no thread behind, and say where an error came from?

    python utilities/benchmarks/stops.py [--stops 200] [--processes 10] [training flags of train_main.py]

Trains the GPT stage at size nano on two logical CPU devices (or on the GPUs that the flags name) and ends it at random
moments in every way there is: an exception in the reader, in the features, in the step; Ctrl-C as the command takes it
and as a bare KeyboardInterrupt; the end of the data. These share one process and one warmed-up trainer, so that threads
which are left behind add up and show. Then `train_main.py` itself is started, and gets a Ctrl-C at a random moment.

Exit code 1 when a goal is missed: every stop within 5 s, each error with the traceback of the line that raised it, and
no thread left. --append adds the table to docs/benchmarks.md.
"""

import contextlib
import dataclasses
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench_extra import cpu_seconds, import_extra, process_state  # noqa: E402  neighbors of this file
from soak import parse_training, training_parser  # noqa: E402

LONGEST_STOP_SECONDS = 5.0
LONGEST_RUN_STEPS = 12
"""Errors strike in one of this many first steps."""
KINDS = {
    "reader": "Broken",
    "features": "Broken",
    "step": "Broken",
    "interrupt": "KeyboardInterrupt",
    "signal": None,
    "end of data": None,
}
"""Ways to end a run, and what has to come out of it: `interrupt` is a bare KeyboardInterrupt in the training loop,
`signal` the Ctrl-C that the command turns into a last checkpoint."""
LATEST_INTERRUPT_SECONDS = 0.5
LONGEST_START_SECONDS = 120.0
TRAINING_BEGINS = "Placement audit"
"""What `train_main.py` prints before its first step."""
LATEST_SIGNAL_SECONDS = 4.0
"""A Ctrl-C comes this long after that line, at most."""
TRAIN_MAIN = Path(__file__).resolve().parents[2] / "train_main.py"


class Broken(Exception):
    """What is thrown into a run."""


def parse(argv):
    """The flags of train_main.py and those of this command."""
    parser = training_parser("stops.py", __doc__)
    parser.add_argument("--stops", type=int, default=200, help="stops in one process (default: 200)")
    parser.add_argument(
        "--processes", type=int, default=10, help="runs of train_main.py that get a Ctrl-C (default: 10)"
    )
    parser.add_argument("--json", metavar="FILE", help="write every stop there as well")
    parser.add_argument("--append", action="store_true", help="append the table to docs/benchmarks.md")
    arguments = parse_training(parser, argv)
    if arguments.stops < len(KINDS):
        parser.error(f"--stops must be at least {len(KINDS)}, one of each kind. Received: {arguments.stops}.")
    return arguments


@dataclasses.dataclass(frozen=True)
class Stop:
    """One end of one run."""

    kind: str
    seconds: float
    """From the cause (for a batch that fails: from its turn) until `train` has returned and the data thread is gone, or
    to the end of the process."""
    fault: str
    """What was not as it should be; empty when all was."""

    @property
    def faults(self):
        """The faults with that of a stop that took too long."""
        late = f"took {self.seconds:.1f} s" if self.seconds > LONGEST_STOP_SECONDS else ""
        return "; ".join(filter(None, (self.fault, late)))


def data_threads():
    """Producers of the pipeline that are running."""
    return [thread for thread in threading.enumerate() if thread.name == "myxtts-data-device"]


class Saboteur:
    """Makes runs of one trainer end in given ways."""

    def __init__(self, trainer, dataset):
        self.trainer, self.dataset = trainer, dataset
        self.train_loader, self.preparation = dataset.train_loader, trainer.preparation
        self.take_step = trainer.batching.take_step
        self.struck = None

    def run(self, kind, at, seconds):
        """Trains until the stop at step `at`, or after `seconds` where it comes from outside; returns the `Stop`."""
        from myxtts.runs.signals import stops_on_signals

        trainer, self.struck = self.trainer, time.monotonic()
        trainer.state.step = trainer.state.position = 0
        trainer.stop_requested.clear()
        trainer.config.training.gpt.max_steps = at + 1 if kind == "end of data" else LONGEST_RUN_STEPS * 1000
        self.dataset.train_loader = lambda stage: self._breaking_loader(self.train_loader(stage), kind, at)
        trainer.preparation = self._breaking(self.preparation, kind == "features", at)
        trainer.batching.take_step = self._breaking(self.take_step, kind == "step", at, kind in ("reader", "features"))
        timer, error = threading.Timer(seconds, self._interrupt), None
        sys.unraisablehook = self._interrupt_again
        try:
            with stops_on_signals(trainer) if kind == "signal" else contextlib.nullcontext():
                if kind in ("interrupt", "signal"):
                    timer.start()
                trainer.train(self.dataset, [self] if kind == "end of data" else [])
        except (KeyboardInterrupt, Exception) as raised:  # whatever comes out is judged
            error = raised
        sys.unraisablehook = sys.__unraisablehook__
        for thread in data_threads():
            thread.join(LONGEST_STOP_SECONDS)
        return Stop(kind, time.monotonic() - self.struck, self._fault(kind, error))

    def _fault(self, kind, error):
        """What is wrong with the error that came out and with the threads that are left; empty for nothing."""
        text = "".join(traceback.format_exception(error)) if error else ""
        expected = KINDS[kind]
        if expected is None:
            fault = f"{error!r} came out" if error else ""
        elif error is None:
            fault = "no error came out"
        elif expected not in text or (expected == "Broken" and f"{self._strike.__name__}\n" not in text):
            fault = f"{error!r} came out, without the traceback of its cause"
        else:
            fault = ""
        return "; ".join(filter(None, (fault, "the data thread is left" if data_threads() else "")))

    def on_step(self, step):
        """Callback of the runs that end by themselves: their last step is the cause."""
        self.struck = time.monotonic()

    def _interrupt(self):
        self.struck = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def _interrupt_again(self, unraisable):
        """`sys.unraisablehook`: Python drops a KeyboardInterrupt that falls into a weak reference's callback or
        `__del__`, and a user would press the keys once more."""
        if unraisable.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, self._interrupt).start()
        else:
            sys.__unraisablehook__(unraisable)

    def _strike(self):
        self.struck = time.monotonic()
        raise Broken

    def _breaking(self, call, active, at, postpones=False):
        """`call` that fails the time `at` when it is `active`. Batches made before a failing one are trained on first;
        the stop is timed from the end of their steps, whose calls `postpones` says these are."""
        calls = iter(range(10**9))

        def broken(*arguments):
            if next(calls) == at and active:
                self._strike()
            result = call(*arguments)
            if postpones:
                self.struck = time.monotonic()
            return result

        # The trainer reads attributes of these two, and calls other methods of the step.
        return _Wrapped(call, broken)

    def _breaking_loader(self, loader, kind, at):
        def load(position):
            if kind == "reader" and position >= at:
                self._strike()
            return loader(position)

        return load


class _Wrapped:
    """An object whose call is another one."""

    def __init__(self, wrapped, call):
        self._wrapped, self._call = wrapped, call

    def __call__(self, *arguments):
        return self._call(*arguments)

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


def stop_at_random(trainer, dataset, num_stops):
    """Runs and stops `num_stops` times; returns the stops, and `(threads, Python's threads)` before and after."""
    draw, stops, saboteur = random.Random(0), [], Saboteur(trainer, dataset)
    with contextlib.redirect_stdout(None):
        for kind in KINDS:  # traces, and starts every thread pool
            saboteur.run(kind, 4, 0.1)
    before = process_state()[1:]
    for number in range(num_stops):
        kind = list(KINDS)[number % len(KINDS)]
        with contextlib.redirect_stdout(None):
            stop = saboteur.run(kind, draw.randrange(LONGEST_RUN_STEPS), draw.uniform(0.0, LATEST_INTERRUPT_SECONDS))
        stops.append(stop)
        if stop.faults:
            print(f"stop {number}: {kind}: {stop.faults}", flush=True)
    gc.collect()
    return stops, before, process_state()[1:]


def interrupt_process(arguments, corpus, folder, seconds):
    """Starts `train_main.py`, sends Ctrl-C `seconds` after training began, and waits; returns the `Stop`."""
    virtual = ("--virtual-devices", str(arguments.virtual_devices)) if arguments.virtual_devices else ()
    pair = ("--data-gpu", str(arguments.data_gpu), "--model-gpu", str(arguments.model_gpu)) if not virtual else ()
    command = [
        sys.executable,
        str(TRAIN_MAIN),
        "--train-data",
        str(corpus),
        "--checkpoint-dir",
        str(folder),
        "--stage",
        "dvae",
        "--model-size",
        "nano",
        "--batch-size",
        "4",
        "--model-start-delay",
        "0",
        *virtual,
        *pair,
    ]
    output = Path(folder, "output.txt")
    with open(output, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        deadline = time.monotonic() + LONGEST_START_SECONDS
        while TRAINING_BEGINS not in output.read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(seconds)
        struck, used = time.monotonic(), cpu_seconds(process)
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(4 * LONGEST_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # A process that still computes was starved by others, or has work that cannot be broken off; one that
            # does not waits for something that never comes.
            code = f"none, {cpu_seconds(process) - used:.1f} s of CPU since Ctrl-C"
            process.kill()
        took = time.monotonic() - struck
    said = output.read_text()
    good = code == 0 and re.search(r"Stopped\. Run the same command again to resume from .*dvae", said)
    last = said.strip().rpartition("\n")[2]
    return Stop("Ctrl-C, process", took, "" if good else f"exit code {code}, last line: {last}")


def table(stops):
    """Rows of the table: one per kind of stop."""
    rows = []
    for kind in dict.fromkeys(stop.kind for stop in stops):
        took = [stop.seconds for stop in stops if stop.kind == kind]
        bad = sum(bool(stop.faults) for stop in stops if stop.kind == kind)
        rows.append([kind, len(took), f"{median(took):.2f} s", f"{max(took):.2f} s", bad])
    return rows


def main(argv=None):
    """Stops what was asked for; returns the exit code."""
    # A shell starts what it puts into the background with SIGINT ignored, and then an interrupt would never come.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = parse(argv)
    import_extra("psutil")
    from myxtts.cli.train import config_from_arguments, set_up_options
    from myxtts.runs.setup import set_up

    config, plan = set_up(config_from_arguments(arguments), **set_up_options(arguments))
    from hardware import append_table

    from myxtts.training.watching.measurement import open_trainer

    training = dataclasses.replace(config.training, log_every_steps=200)
    with tempfile.TemporaryDirectory() as folder:
        trainer, dataset = open_trainer(dataclasses.replace(config, training=training), plan, folder)
        stops, before, after = stop_at_random(trainer, dataset, arguments.stops)
    draw = random.Random(1)
    for _ in range(arguments.processes):
        with tempfile.TemporaryDirectory() as folder:
            stop = interrupt_process(
                arguments, config.data.train_data, folder, draw.uniform(0.0, LATEST_SIGNAL_SECONDS)
            )
            stops.append(stop)
        if stop.faults:
            print(f"{stop.kind}: {stop.faults}", flush=True)
    leaked = after[1] > before[1] or after[0] > before[0]
    command = " ".join(["python utilities/benchmarks/stops.py", *(sys.argv[1:] if argv is None else argv)])
    append_table(
        f"Stops of a dual run ({plan.describe()}); threads of the process before and after: {before[0]} and "
        f"{after[0]}, of Python {before[1]} and {after[1]}",
        command,
        ["stop", "times", "ended after (median)", "longest (goal: 5 s)", "not as they should be"],
        table(stops),
        append=arguments.append,
    )
    if arguments.json:
        found = {
            "stops": [{**dataclasses.asdict(stop), "faults": stop.faults} for stop in stops],
            "threads_before": before,
            "threads_after": after,
        }
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if leaked or any(stop.faults for stop in stops) else 0


if __name__ == "__main__":
    sys.exit(main())

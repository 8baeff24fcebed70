"""Generated inputs for every parser of files from elsewhere, and what each may do with one: read it or refuse it.

    python utilities/benchmarks/hostile_inputs.py --examples 20000

Hypothesis draws the inputs; a share of the number goes to each parser. Each must end within 2 s of processor time and
1 GB more memory, with a result or with one of the errors that commands turn into a sentence. The worst case of each is
printed. Ends with exit code 1 when one did not. The suite runs a small share (tests/test_hostile_inputs.py).
"""

import argparse
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from hostile_strategies import PARSERS  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from myxtts.config.checks import UserError  # noqa: E402

MAX_SECONDS, MAX_MEGABYTES = 2.0, 1024
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
REFUSALS = (UserError, OSError)
"""What `cli.errors.exits_with_sentence` turns into a sentence."""


class Hang(BaseException):
    """The processor time of one input is used up."""


class Judge:
    """Lets one parser read inputs; keeps the worst time, the memory that came with it, and what should not be."""

    def __init__(self, reads):
        self.reads, self.count, self.refused = reads, 0, Counter()
        self.seconds, self.worst, self.faults = 0.0, b"", {}

    def __call__(self, files):
        with tempfile.TemporaryDirectory(dir=FAST) as home:
            folder = Path(home, "in")
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            size = sum(map(len, files.values()))
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, 10 * MAX_SECONDS)
            try:
                self.reads(folder)
            except REFUSALS as error:
                self.refused[type(error).__name__] += 1
                if len(str(error)) > 2000:
                    self._note("a sentence of more than 2000 characters", files)
            except Hang:
                self._note(f"more than {10 * MAX_SECONDS} s", files)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                self._note(
                    f"{type(error).__name__} at {place.filename.split('/')[-1]}:{place.lineno}: {error!s:.80}", files
                )
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            took = time.process_time() - began
        self.count += 1
        if took > self.seconds:
            self.seconds, self.worst = took, f"{size} bytes in {', '.join(files)}"
        if took > MAX_SECONDS:
            self._note(f"{took:.1f} s", files)

    def _note(self, fault, files):
        self.faults.setdefault(fault.partition(": ")[0], (fault, files))


def judge(name, num_examples, number=0):
    """Gives a parser so many inputs; returns its `Judge`."""
    strategy, reads = PARSERS[name]
    judged = Judge(reads)
    signal.signal(signal.SIGPROF, _end)
    quiet = dict(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    seed(number)(settings(max_examples=num_examples, **quiet)(given(strategy)(judged_once(judged))))()
    return judged


def judged_once(judged):
    def read(files):
        judged(files)

    return read


def _end(number, frame):
    raise Hang


def main(argv=None):
    """Judges every parser; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000, help="inputs in all (default: 20000)")
    parser.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS), metavar="PARSER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="write the inputs that show a fault there")
    arguments = parser.parse_args(argv)
    logging.disable()
    faults = 0
    for name in arguments.only:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = judge(name, -(-arguments.examples // len(arguments.only)), arguments.seed)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if grown > MAX_MEGABYTES:
            found.faults["memory"] = (f"{grown:.0f} MB more", {})
        refused = ", ".join(f"{count} {kind}" for kind, count in found.refused.most_common(4))
        worst = f"worst {found.seconds:.3f} s ({found.worst}), {grown:.0f} MB more"
        print(f"{name}: {found.count} inputs, {worst}; refused: {refused or 'none'}", flush=True)
        for number, (fault, files) in enumerate(found.faults.values()):
            print(f"  FAULT {fault}", flush=True)
            for path, content in files.items() if arguments.keep else ():
                target = arguments.keep / name.replace("/", "_") / str(number) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        faults += len(found.faults)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Times us against the reference, side by side: same machine, same cores, same threads, same weights.

    python utilities/benchmarks/against_reference.py --reference-python ../reference-venv/bin/python

The reference is `coqui-tts` 0.28.0 with PyTorch for CPU, in an environment of its own:

    pip install torch==2.13.0
    pip install coqui-tts==0.28.0 six soundfile
    pip install --no-deps torchaudio==2.11.0 torchcodec==0.17.0

If `torchaudio` was built for CUDA, remove its `.so` files. Each side is one process pinned to the same cores. The two
take turns, one measuring while the other waits, and the ratio is the median of the ratios of neighboring turns. Both
sides' outputs are compared first. `--list` names the cases; `--append` adds the tables to docs/benchmarks.md.

    python utilities/benchmarks/against_reference.py --reference-python … --cases 'gpt-small*' 'codes-nano*' --repeats 1
"""

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from hardware import append_table
from reference_cases import CASES

FOLDER = Path(__file__).resolve().parent
TRAINING = ("gpt-*", "features", "latents", "vocoder")
LARGEST_SHARE_APART = 0.01
"""Most values of an output that may differ: codes whose two nearest vectors are as good as equally far."""


class Side:
    """A worker process, pinned and limited to a number of threads.

    Args:
        python: Its interpreter.
        script: Its file.
        cores: Cores it may run on.
    """

    def __init__(self, python, script, cores):
        threads = str(len(cores))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self._process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, cores)), python, FOLDER / script, threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, **request):
        """The worker's answer to one request, see `reference_cases.serve`."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[3]} ended; see its message above.")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def check_same_work(case, ours, theirs):
    """Exits unless both sides computed the same from the same weights."""
    if ours["size"] != theirs["size"]:
        raise SystemExit(f"{case.what}: the outputs have {ours['size']} and {theirs['size']} values.")
    ours, theirs = np.array(ours["values"]), np.array(theirs["values"])
    apart = np.mean(np.abs(ours - theirs) > case.tolerance * np.abs(theirs).max())
    if apart > LARGEST_SHARE_APART:
        raise SystemExit(f"{case.what}: {100 * apart:.1f} % of the values differ.")


def measure(case_name, ours, theirs, repeats, clock):
    """One row of the table: what, our time, the reference's time, ratio, its spread, goal."""
    for side in (ours, theirs):
        side.ask(forget=True)
    check_same_work(CASES[case_name], ours.ask(prepare=case_name), theirs.ask(prepare=case_name))
    pairs = []
    for turn in range(repeats):
        order = (ours, theirs) if turn % 2 else (theirs, ours)
        seconds = {side: side.ask(run=case_name)[clock] for side in order}
        pairs.append((seconds[ours], seconds[theirs]))
    return table_row(CASES[case_name], pairs)


def table_row(case, pairs):
    """A row of the table of pairs of our seconds and the reference's."""
    ratios = [slow / quick for quick, slow in pairs]
    return [
        case.what,
        *(f"{1e3 * statistics.median(column):.0f} ms" for column in zip(*pairs)),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        case.goal,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", type=Path, help="interpreter that has coqui-tts")
    parser.add_argument("--cases", nargs="+", default=TRAINING, metavar="PATTERN", help="such as 'codes-small-*'")
    parser.add_argument("--list", action="store_true", help="print the names of the cases that match, and stop")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="cores and threads, one table each")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of turns")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine with other work")
    parser.add_argument("--append", action="store_true", help="add the tables to docs/benchmarks.md")
    arguments = parser.parse_args()
    names = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.cases)]
    if not names:
        parser.error(f"--cases must match a case. Received: {' '.join(arguments.cases)}. --list names them all.")
    if arguments.list:
        print("\n".join(names))
        return
    available = sorted(os.sched_getaffinity(0))
    if max(arguments.threads) > len(available):
        parser.error(
            f"--threads must not exceed the cores of this process, {len(available)}. Received: {arguments.threads}."
        )
    command = "python " + " ".join(["utilities/benchmarks/against_reference.py", *sys.argv[1:]])
    for threads in arguments.threads:
        ours = Side(sys.executable, "our_worker.py", available[:threads])
        theirs = Side(arguments.reference_python, "reference_worker.py", available[:threads])
        rows = []
        for name in names:
            rows.append(measure(name, ours, theirs, arguments.repeats, arguments.clock))
            print(" | ".join(map(str, rows[-1])), flush=True)
        ours.close()
        theirs.close()
        title = f"Against the reference, {threads} core{'s' * (threads > 1)}"
        append_table(title, command, ["what", "ours", "reference", "ratio", "range", "goal"], rows, arguments.append)


if __name__ == "__main__":
    main()

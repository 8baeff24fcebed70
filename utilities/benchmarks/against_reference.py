"""Times us against the reference, side by side: same machine, same cores, same threads, same weights.

    python utilities/benchmarks/against_reference.py --reference-python ../reference-venv/bin/python

The reference is `coqui-tts` 0.28.0 with PyTorch for CPU, in an environment of its own:

    pip install torch==2.13.0
    pip install coqui-tts==0.28.0 six soundfile
    pip install --no-deps torchaudio==2.11.0 torchcodec==0.17.0

If `torchaudio` was built for CUDA, remove its `.so` files. Each side is one process pinned to the same cores. The two
take turns, one measuring while the other waits, and the ratio is the median of the ratios of neighboring turns. Both
sides' outputs are compared first. Takes about ten minutes on two idle cores; appends the tables to docs/benchmarks.md.

With `--rounds` all cases are prepared first, and each round runs each of ours once and each work of the reference once:
it draws the codes of one sentence in the same way beside all of our engines.
"""

import argparse
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


def measure_rounds(case_names, ours, theirs, repeats, clock):
    """Rows of the table, see `measure`; of cases that share the reference's work it is done once a round."""
    works = list(dict.fromkeys(CASES[name].reference or name for name in case_names))
    answers = {work: theirs.ask(prepare=work) for work in works}
    for name in case_names:
        check_same_work(CASES[name], ours.ask(prepare=name), answers[CASES[name].reference or name])
    rounds = []
    for turn in range(repeats):
        runs = [(theirs, work) for work in works] + [(ours, name) for name in case_names]
        seconds = {run: run[0].ask(run=run[1])[clock] for run in (runs if turn % 2 else runs[::-1])}
        rounds.append(seconds)
    for name in case_names:
        case = CASES[name]
        reference = theirs, case.reference or name
        yield table_row(case, [(seconds[ours, name], case.times * seconds[reference]) for seconds in rounds])


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
    parser.add_argument("--reference-python", type=Path, required=True, help="interpreter that has coqui-tts")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="cores and threads, one table each")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of turns")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a machine with other work on it",
    )
    parser.add_argument("--rounds", action="store_true", help="prepare all cases first; see above")
    parser.add_argument("--no-append", action="store_true", help="print only")
    arguments = parser.parse_args()
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
        how = arguments.repeats, arguments.clock
        if arguments.rounds:
            found = measure_rounds(arguments.cases, ours, theirs, *how)
        else:
            found = (measure(name, ours, theirs, *how) for name in arguments.cases)
        for row in found:
            rows.append(row)
            print(" | ".join(map(str, rows[-1])), flush=True)
        ours.close()
        theirs.close()
        if not arguments.no_append:
            append_table(
                f"Against the reference, {threads} core{'s' * (threads > 1)}",
                command,
                ["what", "ours", "reference", "ratio", "range", "goal"],
                rows,
            )


if __name__ == "__main__":
    main()

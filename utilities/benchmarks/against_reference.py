"""Compares the speed of MyXTTS with the reference on the same machine, cores, threads and weights.

    python utilities/benchmarks/against_reference.py --reference-python ../reference-venv/bin/python

The reference is `coqui-tts` 0.28.0 with PyTorch for CPU, in an environment of its own:

    pip install torch==2.13.0
    pip install coqui-tts==0.28.0 six soundfile
    pip install --no-deps torchaudio==2.11.0 torchcodec==0.17.0

If `torchaudio` was built for CUDA, remove its `.so` files. Each implementation runs in its own process; both processes
are pinned to the same cores. For each case, the outputs are compared first. Then the implementations run alternately,
and the ratio is the median over pairs of runs. `--list` prints the names of cases, `--cases 'gpt-small*' --repeats 1`
quickly runs some cases, and `--append` adds the tables to docs/benchmarks.md.
"""

import argparse
import fnmatch
import os
import statistics
import sys
from pathlib import Path

import numpy as np
from bench_extra import Worker, append_table
from reference_cases import CASES

FOLDER = Path(__file__).resolve().parent
TRAINING = ("gpt-*", "features", "latents", "vocoder")
HEADER = ["what", "ours", "reference", "ratio", "range", "goal"]
LARGEST_SHARE_APART = 0.01
"""Maximum fraction of output values that may differ; not 0, since rounding can select another, nearly as good code."""


def check_same_work(case, ours, theirs):
    """Checks that the outputs of both implementations agree; raises SystemExit if they do not."""
    if ours["size"] != theirs["size"]:
        raise SystemExit(f"{case.what}: the outputs have {ours['size']} and {theirs['size']} values.")
    ours, theirs = np.array(ours["values"]), np.array(theirs["values"])
    apart = np.mean(~(np.abs(ours - theirs) <= case.tolerance * np.abs(theirs).max()))  # NaN differs
    if apart > LARGEST_SHARE_APART:
        raise SystemExit(f"{case.what}: {100 * apart:.1f} % of the values differ.")


def measure(case_name, ours, theirs, repeats, clock):
    """Returns a table row: title, median time of MyXTTS, that of the reference, median ratio, range of ratios, goal."""
    for side in (ours, theirs):
        side.ask({"forget": True})
    check_same_work(CASES[case_name], *(side.ask({"prepare": case_name}) for side in (ours, theirs)))
    pairs = []
    for turn in range(repeats):
        order = (ours, theirs) if turn % 2 else (theirs, ours)
        seconds = {side: side.ask({"run": case_name})[clock] for side in order}
        pairs.append((seconds[ours], seconds[theirs]))
    case, ratios = CASES[case_name], [slow / quick for quick, slow in pairs]
    return [
        case.what,
        *(f"{1e3 * statistics.median(column):.0f} ms" for column in zip(*pairs)),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        case.goal,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", type=Path, help="Python with coqui-tts")
    parser.add_argument("--cases", nargs="+", default=TRAINING, metavar="PATTERN", help="such as 'codes-small-*'")
    parser.add_argument("--list", action="store_true", help="print the names of the matching cases and exit")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="cores and threads, one table each")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: CPU time, for a busy machine")
    parser.add_argument("--append", action="store_true", help="add the tables to docs/benchmarks.md")
    arguments = parser.parse_args()
    names = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.cases)]
    if not names:
        parser.error(f"--cases must match a case. Received: {' '.join(arguments.cases)}. --list names them all.")
    if arguments.list:
        print("\n".join(names))
        return
    if arguments.reference_python is None:
        parser.error("--reference-python is required, except with --list.")
    available = sorted(os.sched_getaffinity(0))
    if max(arguments.threads) > len(available):
        parser.error(f"--threads must be at most {len(available)}, the available cores. Received: {arguments.threads}.")
    for threads in arguments.threads:
        pinned = ["taskset", "--cpu-list", ",".join(map(str, available[:threads]))]
        limits, rows = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}, []
        with (
            Worker(*pinned, sys.executable, FOLDER / "our_worker.py", threads, **limits) as ours,
            Worker(*pinned, arguments.reference_python, FOLDER / "reference_worker.py", threads, **limits) as theirs,
        ):
            for name in names:
                rows.append(measure(name, ours, theirs, arguments.repeats, arguments.clock))
                print(" | ".join(map(str, rows[-1])), flush=True)
        title = f"Against the reference, {threads} core{'s' * (threads > 1)}"
        append_table(title, "against_reference.py", HEADER, rows, arguments.append)


if __name__ == "__main__":
    main()

"""Tabulates training logs at several batch sizes and recommends a size.

    python utilities/analyze_batch_scaling.py test_batch_*.log [--stage NAME] [--json]

Logs are read as in `compare_logs.py`, for one stage that all logs contain. Runs that ran out of memory are also listed.
The exit code is 2 for the errors of `compare_logs.py`, and if neither a log nor its file name states a batch size.
"""

import argparse
import sys

from compare_logs import LogError, json_ready, print_result, read_logs, shown, table

ENOUGH = 0.95
"""Fraction of the best throughput that a smaller batch must reach to be recommended, since it needs less memory."""

COLUMNS = (  # figure of `compare_logs.FIGURES`, title, format
    ("batch", "batch", "{}"),
    ("accumulation", "accumulated", "{:.0f}"),
    ("batch_size", "clips a step", "{:.0f}"),
    ("mean_step_ms", "step ms", "{:.1f}"),
    ("std_step_ms", "std ms", "{:.1f}"),
    ("variation_percent", "variation %", "{:.1f}"),
    ("steps_per_second", "steps/s", "{:.2f}"),
    ("samples_per_second", "samples/s", "{:.1f}"),
    ("efficiency_percent", "efficiency %", "{:.0f}"),
    ("stall_percent", "stall %", "{:.1f}"),
    ("data_utilization_percent", "data GPU %", "{:.0f}"),
    ("model_utilization_percent", "model GPU %", "{:.0f}"),
    ("model_memory_mb", "model MB", "{:.0f}"),
)


def read_runs(paths, stage=None):
    """Returns the dictionaries that `read_logs` returns for the logs `paths`, sorted by the number of clips per step.

    Two entries are added: `batch` is the number of clips per micro-batch. `efficiency_percent` is the throughput,
    relative to linear scaling from the measured run with the fewest clips per step.

    Raises:
        LogError: `read_logs` failed, or neither a log nor its file name states a batch size.
    """
    runs = read_logs(paths, stage, allow_out_of_memory=True)
    for run in runs:
        if run["batch_size"] is None:
            rule = "expected a line 'Batch size: 16' or a name such as test_batch_16.log"
            raise LogError(f"{run['path']} does not state a batch size: {rule}.")
        run["batch"] = run["batch_size"] // run["accumulation"]
    runs.sort(key=lambda run: (run["batch_size"], run["batch"]))
    base = next((run for run in runs if run["samples_per_second"]), None)
    for run in runs:
        linear = base and base["samples_per_second"] * run["batch_size"] / base["batch_size"]
        run["efficiency_percent"] = 100 * run["samples_per_second"] / linear if run["samples_per_second"] else None
    return runs


def recommended(runs):
    """Returns the run of the smallest batch that reaches `ENOUGH`, and the fastest run; both are None if all failed."""
    measured = [run for run in runs if run["samples_per_second"] and not run["out_of_memory"]]
    if not measured:
        return None, None
    best = max(measured, key=lambda run: run["samples_per_second"])
    good = [run for run in measured if run["samples_per_second"] >= ENOUGH * best["samples_per_second"]]
    return min(good, key=lambda run: run["batch"]), best


def report(runs):
    """Formats the table and the recommendation."""
    logs = [f"{run['path']}{': out of memory' * run['out_of_memory']}" for run in runs]
    rows = [[*(shown(run[name], form) for name, _, form in COLUMNS), log] for run, log in zip(runs, logs)]
    lines = [*table([title for _, title, _ in COLUMNS] + ["log"], rows), ""]
    chosen, best = recommended(runs)
    if chosen is None:
        smaller = max(1, min(run["batch"] for run in runs) // 2)
        return "\n".join([*lines, f"Every run ran out of memory. Try --batch-size {smaller}."])
    less = "" if chosen is best else f", within {100 * (1 - ENOUGH):.0f} % of the best at less memory"
    lines.append(f"Best throughput: {best['path']}, {best['samples_per_second']:.1f} samples/s.")
    parts = f" --grad-accum {chosen['accumulation']}" if chosen["accumulation"] > 1 else ""
    lines.append(f"Recommended: --batch-size {chosen['batch']}{parts} ({chosen['path']}){less}.")
    if failed := sorted({run["batch"] for run in runs if run["out_of_memory"]}):
        lines.append(f"Out of memory at batch size {', '.join(map(str, failed))}: reach it with --grad-accum.")
    return "\n".join(lines)


def analyzed(options):
    """Reads the files `options.logs`; returns the result as JSON types and as text."""
    runs = read_runs(options.logs, options.stage)
    chosen, best = recommended(runs)
    found = {"runs": list(map(json_ready, runs)), "recommended_batch_size": chosen and chosen["batch"]}
    found |= {"recommended_accumulation": chosen and chosen["accumulation"]}
    return found | {"best_batch_size": best and best["batch"]}, report(runs)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Tabulate training logs at several batch sizes.")
    parser.add_argument("logs", nargs="+", help="one log per batch size")
    return print_result(parser, arguments, analyzed)


if __name__ == "__main__":
    sys.exit(main())

"""Compares two training logs: step time, spread, throughput, utilization, memory.

    python utilities/compare_logs.py baseline.log optimized.log [--stage NAME] [--json]

A log is the output of `train_main.py`. Values come from its final report, or from its step lines if the run ended
before the report. --stage selects the stage (default: the last one in both logs); its last run with values counts.
The exit code is 2 if a log cannot be read or has no values, or if the logs have no stage in common.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|-?inf)"
FIGURES = (  # name, title, format, whether more is better (None: neither), pattern in a log ("": computed)
    ("batch_size", "Batch size", "{:.0f}", None, ""),
    ("steps", "Steps", "{:.0f}", None, ""),
    ("mean_step_ms", "Mean step time, ms", "{:.1f}", False, rf"Avg: *{NUMBER} *ms"),
    ("std_step_ms", "Standard deviation, ms", "{:.1f}", False, rf"Std: *{NUMBER} *ms"),
    ("variation_percent", "Variation, %", "{:.1f}", False, rf"Variation: *{NUMBER} *%"),
    ("steps_per_second", "Throughput, steps/s", "{:.2f}", True, rf"Throughput: *{NUMBER} *steps/sec"),
    ("samples_per_second", "Throughput, samples/s", "{:.1f}", True, ""),
    ("stall_percent", "Stall, %", "{:.1f}", False, rf"\bStall:? *{NUMBER} *%"),
    ("data_utilization_percent", "Data GPU utilization, %", "{:.0f}", True, rf"GPU util:[^|\n]*\bdata *{NUMBER} *%"),
    ("model_utilization_percent", "Model GPU utilization, %", "{:.0f}", True, rf"GPU util:[^|\n]*\bmodel *{NUMBER} *%"),
    ("data_memory_mb", "Data GPU memory, MB", "{:.0f}", False, rf"GPU memory:[^|\n]*\bdata *{NUMBER} *MB"),
    ("host_memory_mb", "Host memory, MB", "{:.0f}", False, rf"Host memory: *{NUMBER} *MB"),
    ("model_memory_mb", "Model GPU memory, MB", "{:.0f}", False, rf"GPU memory:[^|\n]*\bmodel *{NUMBER} *MB"),
    ("loss", "Last loss", "{:.4f}", None, rf"(?:^|\||\bINFO) *loss:? +{NUMBER}"),  # not "validation loss"
)
PATTERNS = {name: re.compile(pattern, re.IGNORECASE | re.MULTILINE) for name, *_, pattern in FIGURES if pattern}
STEP = re.compile(r"\bstep +(\d+)(?:/\d+)? *\|", re.IGNORECASE)
STAGE = re.compile(r"\bStage (\w+): \d+ steps?, \d+ done\b")
BATCH_SIZE = re.compile(r"\bBatch size: *(\d+)(?: x (\d+) accumulated)?")  # the capital excludes "Effective batch size"
NAMED_SIZE = re.compile(r"batch[_-]?(?:size[_-]?)?(\d+)()", re.IGNORECASE)
FINAL_REPORT = re.compile(r"\bFINAL REPORT\b")
OUT_OF_MEMORY = re.compile(r"ResourceExhaustedError|RESOURCE_EXHAUSTED|OOM when|CUDA_ERROR_OUT_OF_MEMORY|Error: Memory")
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LogError(ValueError):
    """Error for a log that cannot be read, or that has no values to compare."""


def read_logs(paths, stage=None, allow_out_of_memory=False):
    """Reads training logs. If a log states no batch size, takes it from the file name, such as `test_batch_16.log`.

    Args:
        paths: The files.
        stage: Name of the stage; None for the last one in all logs. A log without stage names matches every stage.
        allow_out_of_memory: Whether to accept runs that ran out of memory before their first measurement.

    Returns:
        One dictionary per log, of the last run of the stage. It has `path`, `stage`, `source` (final report or step
        lines), `out_of_memory`, `accumulation` (batches per step), and the values in `FIGURES`. A value that the log
        lacks is None. Percentages are 0 to 100, memory is in MB.

    Raises:
        LogError: A file cannot be read, is empty, or has no values; or the logs have no stage in common.
    """
    logs = [_read_runs(path, allow_out_of_memory) for path in paths]
    named = [runs for runs in logs if any(run["stage"] for run in runs)]
    found = [[run["stage"] for run in runs] for runs in named]
    shared = [one for one in ([stage] if stage else found[0] if found else []) if all(one in each for each in found)]
    if named and not shared:
        each = "; ".join(f"{runs[0]['path']} has {', '.join(filter(None, s))}" for runs, s in zip(named, found))
        raise LogError(f"The logs must all have {f'the stage {stage}' if stage else 'a common stage'}: {each}.")
    return [next((run for run in reversed(runs) if run["stage"] in shared[-1:]), runs[-1]) for runs in logs]


def _read_runs(path, allow_out_of_memory):
    """Returns the runs in a log that have values, in the form of `read_logs`. Raises `LogError` if there are none."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}.") from error
    is_utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # as PowerShell writes with `>`
    text = data.decode("utf-16" if is_utf_16 else "utf-8", errors="replace")
    # A progress bar separates its states by carriage returns.
    lines = _unfolded(line for line in TERMINAL_CODES.sub("", text).replace("\r", "\n").split("\n") if line.strip())
    if not lines:
        raise LogError(f"{path} is empty.")
    runs = [_read_run(path, *part) for part in _split_runs(lines)]
    is_timed = lambda run: run["mean_step_ms"] is not None or run["steps_per_second"] is not None
    if found := [run for run in runs if is_timed(run) or (run["out_of_memory"] and allow_out_of_memory)]:
        return found
    if any(run["out_of_memory"] for run in runs):
        raise LogError(f"{path} holds no training step: the run was out of memory.")
    rule = "expected lines with 'Avg: …ms, Std: …ms' and 'Throughput: … steps/sec'"
    raise LogError(f"{path} holds no training step: {rule}.")


def _unfolded(lines):
    """Joins step lines that were wrapped for a terminal; continuation lines are indented."""
    whole = []
    for line in lines:
        if whole and line.startswith("  ") and STEP.search(whole[-1]):
            whole[-1] += f" | {line.strip()}"
        else:
            whole.append(line)
    return whole


def _split_runs(lines):
    """Yields `(stage, lines)` of each run. A run starts at a batch size, and has a step or a memory error."""
    starts = [i for i, line in enumerate(lines) if BATCH_SIZE.search(line)]
    bounds = [0]
    for start, end in zip(starts, [*starts[1:], None]):
        if start > 0 and any(STEP.search(line) or OUT_OF_MEMORY.search(line) for line in lines[start:end]):
            bounds.append(start)
    for start, end in zip(bounds, [*bounds[1:], None]):
        named = STAGE.findall("\n".join(lines[:start]))
        yield named[-1] if named else None, lines[start:end]


def _read_run(path, stage, lines):
    """Reads the lines of one run; returns a dictionary as `read_logs` does."""
    final = next((i for i, line in enumerate(lines) if FINAL_REPORT.search(line)), len(lines))
    step_lines, text = [line for line in lines[:final] if STEP.search(line)], "\n".join(lines)
    steps, report = [_figures(line) for line in step_lines], _figures("\n".join(lines[final:]))
    run = dict.fromkeys(name for name, *_ in FIGURES) | _summarize(steps) | report
    run |= {"path": str(path), "stage": stage, "accumulation": 1, "out_of_memory": bool(OUT_OF_MEMORY.search(text))}
    if batch := BATCH_SIZE.search(text) or NAMED_SIZE.search(Path(path).name):
        run["accumulation"] = int(batch[2] or 1)
        run["batch_size"] = int(batch[1]) * run["accumulation"]  # clips per step
    if step_lines:
        run["steps"] = int(STEP.findall(step_lines[-1])[-1])
    mean = run["mean_step_ms"]
    if mean and (run["steps_per_second"] is None or mean > 100):  # two decimals are less exact than the mean then
        run["steps_per_second"] = 1000 / mean
    if mean and run["std_step_ms"] is not None and run["variation_percent"] is None:
        run["variation_percent"] = 100 * run["std_step_ms"] / mean
    if run["batch_size"] is not None and run["steps_per_second"] is not None:
        run["samples_per_second"] = run["batch_size"] * run["steps_per_second"]
    has_report = "mean_step_ms" in report or "steps_per_second" in report
    run["source"] = "final report" if has_report else f"{len(steps)} step line{'s' * (len(steps) != 1)}"
    return run


def _figures(text):
    """Returns `{name: last value}` of those `FIGURES` that a text contains."""
    found = {name: pattern.findall(text) for name, pattern in PATTERNS.items()}
    return {name: float(values[-1]) for name, values in found.items() if values}


def _summarize(steps):
    """Combines the values of a run's step lines with equal weights, as each line covers the same number of steps."""
    columns = {name: [step[name] for step in steps if name in step] for name in PATTERNS}
    summary = {name: sum(values) / len(values) for name, values in columns.items() if values}
    means, stds = columns["mean_step_ms"], columns["std_step_ms"]
    # What can be computed from the mean is left out: a mean of rates, for example, would weight fast lines more.
    if means and len(means) == len(stds):
        # Law of total variance: the variance within lines plus the variance between them.
        squares = (s**2 + (m - summary["mean_step_ms"]) ** 2 for m, s in zip(means, stds))
        summary["std_step_ms"] = math.sqrt(sum(squares) / len(means))
        summary.pop("variation_percent", None)
    if means and len(means) == len(columns["steps_per_second"]):
        del summary["steps_per_second"]
    for name in ("data_memory_mb", "host_memory_mb", "model_memory_mb"):
        if columns[name]:
            summary[name] = max(columns[name])
    if columns["loss"]:
        summary["loss"] = columns["loss"][-1]
    return summary


def speed_up(baseline, optimized):
    """Returns `(throughput ratio or None, unit)`. The unit is samples/s if both logs have this value, else steps/s."""
    for field, unit in (("samples_per_second", "samples/s"), ("steps_per_second", "steps/s")):
        before, after = baseline[field], optimized[field]
        if before and after is not None:
            return after / before, unit
    return None, "steps/s"


def shown(value, form):
    """Formats a value as a table cell; None is `n/a`."""
    return "n/a" if value is None else form.format(value)


def json_ready(values):
    """Returns the dictionary with None instead of NaN and infinity, which JSON lacks."""
    is_finite = lambda value: not isinstance(value, float) or math.isfinite(value)
    return {name: value if is_finite(value) else None for name, value in values.items()}


def table(header, rows):
    """Returns the lines of a text table, with the first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = []
    for first, *others in [header, *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def comparison(baseline, optimized):
    """Returns the comparison of two results of `read_logs` as text."""
    rows = []
    for field, title, form, more_is_better, _ in FIGURES:
        before, after = baseline[field], optimized[field]
        change = ""
        if before and after is not None and more_is_better is not None:
            percent = 100 * (after - before) / abs(before)
            better = "" if abs(percent) < 0.05 else (" better" if (percent > 0) == more_is_better else " worse")
            change = f"{percent:+.1f}%{better}"
        rows.append([title, shown(before, form), shown(after, form), change])
    found = ("Baseline: ", baseline), ("Optimized:", optimized)
    lines = [f"{name} {run['path']} ({run['stage'] or 'any stage'}, {run['source']})" for name, run in found]
    lines += ["", *table(["", "baseline", "optimized", "change"], rows)]
    ratio, unit = speed_up(baseline, optimized)
    lines += ["", f"Speed-up: {shown(ratio, '{:.2f}x')} ({unit})"]
    if baseline["batch_size"] != optimized["batch_size"]:
        lines.append("The batch sizes differ or one is not stated: compare samples/s, not step times.")
    return "\n".join(lines)


def compared(options):
    """Compares the files `options.baseline` and `options.optimized`; returns the result as JSON types and as text."""
    baseline, optimized = read_logs([options.baseline, options.optimized], options.stage)
    found = {"baseline": json_ready(baseline), "optimized": json_ready(optimized)}
    return found | {"speed_up": speed_up(baseline, optimized)[0]}, comparison(baseline, optimized)


def print_result(parser, arguments, examine):
    """Parses `arguments`, prints the result of `examine(options)` as text or JSON, and returns the exit code."""
    parser.add_argument("--stage", help="stage to compare (default: the last one that all logs have)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    try:
        found, text = examine(options)
    except LogError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if options.json else text)
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Compare two training logs.")
    parser.add_argument("baseline", help="log of the run to compare with")
    parser.add_argument("optimized", help="log of the run that should be better")
    return print_result(parser, arguments, compared)


if __name__ == "__main__":
    sys.exit(main())

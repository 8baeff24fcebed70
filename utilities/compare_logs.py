"""Compares two training logs: step time, spread, throughput, utilization, memory.

    python utilities/compare_logs.py baseline.log optimized.log [--json]

A log is what `train_main.py` printed, from a file or through `tee`. The figures come from its final report, or, for a
run that ended before it, from its step lines. Of several runs in one file the last with figures counts. Ends with
exit code 2 when a log cannot be read or holds no figures.
"""

import argparse
import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|-?inf)"
PATTERNS = {
    "mean_step_ms": rf"Avg: *{NUMBER} *ms",
    "std_step_ms": rf"Std: *{NUMBER} *ms",
    "steps_per_second": rf"Throughput: *{NUMBER} *steps/sec",
    "variation_percent": rf"Variation: *{NUMBER} *%",
    "stall_percent": rf"\bStall:? *{NUMBER} *%",
    "data_utilization_percent": rf"GPU util:[^|\n]*\bdata *{NUMBER} *%",
    "model_utilization_percent": rf"GPU util:[^|\n]*\bmodel *{NUMBER} *%",
    "data_memory_mb": rf"GPU memory:[^|\n]*\bdata *{NUMBER} *MB",
    "model_memory_mb": rf"GPU memory:[^|\n]*\bmodel *{NUMBER} *MB",
    "loss": rf"(?:^|\||\bINFO) *loss:? +{NUMBER}",  # not "validation loss"
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE | re.MULTILINE) for name, pattern in PATTERNS.items()}
STEP = re.compile(r"\bstep +(\d+)(?:/\d+)? *\|", re.IGNORECASE)
BATCH_SIZE = re.compile(
    r"\bBatch size: *(\d+)(?: x (\d+) accumulated)?"
)  # its capital tells it from "Effective batch size"
FINAL_REPORT = re.compile(r"\bFINAL REPORT\b")
OUT_OF_MEMORY = re.compile(r"ResourceExhaustedError|\bRESOURCE_EXHAUSTED\b|\bOOM when\b|CUDA_ERROR_OUT_OF_MEMORY")
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

ROWS = (  # field, title, format, whether more is better (None: neither)
    ("batch_size", "Batch size", "{:.0f}", None),
    ("steps", "Steps", "{:.0f}", None),
    ("mean_step_ms", "Mean step time, ms", "{:.1f}", False),
    ("std_step_ms", "Standard deviation, ms", "{:.1f}", False),
    ("variation_percent", "Variation, %", "{:.1f}", False),
    ("steps_per_second", "Throughput, steps/s", "{:.2f}", True),
    ("samples_per_second", "Throughput, samples/s", "{:.1f}", True),
    ("stall_percent", "Stall, %", "{:.1f}", False),
    ("data_utilization_percent", "Data GPU utilization, %", "{:.0f}", True),
    ("model_utilization_percent", "Model GPU utilization, %", "{:.0f}", True),
    ("data_memory_mb", "Data GPU memory, MB", "{:.0f}", False),
    ("model_memory_mb", "Model GPU memory, MB", "{:.0f}", False),
    ("loss", "Last loss", "{:.4f}", None),
)


class LogError(ValueError):
    """A log cannot be used; the message is a sentence for the user."""


@dataclass(frozen=True)
class RunLog:
    """The figures of one run. `None` is "the log does not say". Percentages are 0 to 100, memory is in MB."""

    path: str
    source: str
    batch_size: int | None = None
    steps: int | None = None
    mean_step_ms: float | None = None
    std_step_ms: float | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    variation_percent: float | None = None
    stall_percent: float | None = None
    data_utilization_percent: float | None = None
    model_utilization_percent: float | None = None
    data_memory_mb: float | None = None
    model_memory_mb: float | None = None
    loss: float | None = None
    out_of_memory: bool = False

    @property
    def has_figures(self):
        return self.mean_step_ms is not None or self.steps_per_second is not None


def read_log(path, allow_out_of_memory=False):
    """Reads one training log.

    Args:
        path: The file.
        allow_out_of_memory: Whether a run that ended for lack of memory before its first figures is a result too
            (with `out_of_memory` set and no figures).

    Returns:
        A `RunLog`.

    Raises:
        LogError: The file cannot be read, is empty, or holds no figures.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}.") from error
    # A progress bar separates its states by carriage returns.
    lines = _unfolded(line for line in TERMINAL_CODES.sub("", text).replace("\r", "\n").split("\n") if line.strip())
    if not lines:
        raise LogError(f"{path} is empty.")
    runs = [_read_run(path, run_lines) for run_lines in _split_runs(lines)]
    for run in reversed(runs):
        if run.has_figures or (run.out_of_memory and allow_out_of_memory):
            return run
    if any(run.out_of_memory for run in runs):
        raise LogError(f"{path} holds no training step: the run was out of memory.")
    raise LogError(
        f"{path} holds no training step: expected lines with 'Avg: …ms, Std: …ms' and 'Throughput: … steps/sec'."
    )


def _unfolded(lines):
    """Lines of steps whole again, which the terminal gets as several, the later ones indented."""
    whole = []
    for line in lines:
        if whole and line.startswith("  ") and STEP.search(whole[-1]):
            whole[-1] += f" | {line.strip()}"
        else:
            whole.append(line)
    return whole


def _split_runs(lines):
    """The lines of each run. A run starts with its batch size; a final report may state it again."""
    starts = [i for i, line in enumerate(lines) if BATCH_SIZE.search(line)]
    bounds = [0]
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        if start > 0 and any(STEP.search(line) or OUT_OF_MEMORY.search(line) for line in lines[start:end]):
            bounds.append(start)
    return [lines[start:end] for start, end in zip(bounds, [*bounds[1:], len(lines)])]


def _read_run(path, lines):
    """The figures of the lines of one run."""
    final = next((i for i, line in enumerate(lines) if FINAL_REPORT.search(line)), len(lines))
    steps = [_figures(line) for line in lines[:final] if STEP.search(line)]
    report = _figures("\n".join(lines[final:]))
    values = {**_summarize(steps), **report}
    found_batch, found_steps = BATCH_SIZE.search("\n".join(lines)), STEP.findall("\n".join(lines[:final]))
    batch_size = int(found_batch[1]) * int(found_batch[2] or 1) if found_batch else None  # clips of a step

    mean, rate = values.get("mean_step_ms"), values.get("steps_per_second")
    if mean is not None and rate is None and mean > 0:
        rate = values["steps_per_second"] = 1000 / mean
    if mean and values.get("std_step_ms") is not None:
        values.setdefault("variation_percent", 100 * values["std_step_ms"] / mean)
    if batch_size is not None and rate is not None:
        values["samples_per_second"] = batch_size * rate
    source = (
        "final report"
        if "mean_step_ms" in report or "steps_per_second" in report
        else ("1 step line" if len(steps) == 1 else f"{len(steps)} step lines")
    )
    return RunLog(
        str(path),
        source,
        batch_size=batch_size,
        steps=int(found_steps[-1]) if found_steps else None,
        out_of_memory=any(OUT_OF_MEMORY.search(line) for line in lines),
        **values,
    )


def _figures(text):
    """The last value of each figure in the text."""
    found = {name: pattern.findall(text) for name, pattern in PATTERNS.items()}
    return {name: float(values[-1]) for name, values in found.items() if values}


def _summarize(steps):
    """One set of figures for a run, from those of its step lines, which stand for equally many steps each."""
    columns = {name: [step[name] for step in steps if name in step] for name in PATTERNS}
    summary = {name: sum(values) / len(values) for name, values in columns.items() if values}
    means, stds = columns["mean_step_ms"], columns["std_step_ms"]
    if means and len(means) == len(stds):
        # Law of total variance: the spread within the lines, and the spread between them.
        center = summary["mean_step_ms"]
        summary["std_step_ms"] = math.sqrt(
            sum(std**2 + (mean - center) ** 2 for mean, std in zip(means, stds)) / len(means)
        )
        if center:
            summary["variation_percent"] = 100 * summary["std_step_ms"] / center
    if means and summary["mean_step_ms"] > 0 and len(means) == len(columns["steps_per_second"]):
        summary["steps_per_second"] = 1000 / summary["mean_step_ms"]  # a mean of rates would count fast lines twice
    for name in ("data_memory_mb", "model_memory_mb"):
        if columns[name]:
            summary[name] = max(columns[name])
    if columns["loss"]:
        summary["loss"] = columns["loss"][-1]
    return summary


def speed_up(baseline, optimized):
    """How many times faster the second run is, and in what: `(ratio or None, unit)`. Samples/s where both batch sizes
    are known, because a step of a larger batch may rightly take longer; else steps/s."""
    for field, unit in (("samples_per_second", "samples/s"), ("steps_per_second", "steps/s")):
        before, after = getattr(baseline, field), getattr(optimized, field)
        if before and after is not None:
            return after / before, unit
    return None, "steps/s"


def shown(value, form):
    """A value as a table cell; what the log does not say is `n/a`."""
    return "n/a" if value is None else form.format(value)


def json_ready(values):
    """The same dictionary, with what JSON cannot say (NaN, infinity) as `None`."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def table(header, rows):
    """Lines of a table, the first column left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in [header, *rows]
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def comparison(baseline, optimized):
    """The comparison as text."""
    rows = []
    for field, title, form, more_is_better in ROWS:
        before, after = getattr(baseline, field), getattr(optimized, field)
        change = ""
        if before and after is not None and more_is_better is not None:
            percent = 100 * (after - before) / abs(before)
            better = "" if abs(percent) < 0.05 else (" better" if (percent > 0) == more_is_better else " worse")
            change = f"{percent:+.1f}%{better}"
        rows.append([title, shown(before, form), shown(after, form), change])
    lines = [f"Baseline:  {baseline.path} ({baseline.source})", f"Optimized: {optimized.path} ({optimized.source})", ""]
    lines += table(["", "baseline", "optimized", "change"], rows)
    ratio, unit = speed_up(baseline, optimized)
    lines += ["", f"Speed-up: {shown(ratio, '{:.2f}x')} ({unit})"]
    if baseline.batch_size != optimized.batch_size:
        lines.append("The batch sizes differ or one is not stated: compare samples/s, not step times.")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Compare two training logs.")
    parser.add_argument("baseline", help="log of the run to compare with")
    parser.add_argument("optimized", help="log of the run that should be better")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    try:
        baseline, optimized = read_log(options.baseline), read_log(options.optimized)
    except LogError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        found = {"baseline": json_ready(asdict(baseline)), "optimized": json_ready(asdict(optimized))}
        print(json.dumps(found | {"speed_up": speed_up(baseline, optimized)[0]}, indent=2))
    else:
        print(comparison(baseline, optimized))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Acceptance test of a machine's GPUs: measures training on them and compares the results with the project's targets.

    python utilities/gpu_acceptance.py --data-gpu 0 --model-gpu 1 --minutes 20
    python utilities/gpu_acceptance.py --virtual-devices 2 --model-size nano --minutes 5

Both GPU flags may name the same GPU; data work and training then have separate memory limits. Takes the flags of
train_main.py and trains on the sample corpus by default. Each case runs in its own process. Most cases run
dual_gpu_bottleneck_profiler.py with different flags. One case resumes a run, and another monitors memory and threads in
a long run. Writes hardware, versions and results, but no paths, to gpu_report.md and gpu_report.json in --report. The
exit code is 1 if a target is missed.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from myxtts.cli.errors import exits_with_sentence, require_output  # noqa: E402  the repository must be on the path first
from myxtts.config.checks import require  # noqa: E402
from myxtts.devices.configuration import device_request, visible_gpus  # noqa: E402
from myxtts.storage.run_folder import read_metrics  # noqa: E402

BATCHES = (8, 16, 24, 32, 48)
BEYOND = (64, 96, 128, 192, 256)
"""Batch sizes above those in `BATCHES`, without targets. They are tried in this order until one fails."""
SWITCHES = {
    "bfloat16": ("--precision", "mixed_bfloat16"),
    "float16": ("--precision", "mixed_float16"),
    "XLA": ("--xla", "--enable-static-shapes"),
    "memory-efficient attention": ("--attention", "memory-efficient"),
    "gradient checkpointing": ("--gradient-checkpointing",),
    "all": ("--optimizations", "aggressive", "--enable-static-shapes"),
}
SOAK_SHARE = 0.25
"""Fraction of `--minutes` that the long run takes."""
LARGEST_GROWTH = 0.02
"""Largest accepted relative growth of memory from the middle third to the last third of the long run."""
RESUME_STEPS = 8
PAIR = ("--data-gpu", "--model-gpu", "--virtual-devices", "--data-gpu-memory", "--model-gpu-memory")
MEANINGLESS = "virtual devices: their speed and memory say nothing about GPUs"


@dataclass(frozen=True)
class Case:
    """A measurement. Its `tool` is `profile` (the profiler), `resume` (resumes a run) or `soak` (a long run)."""

    group: str
    name: str
    flags: tuple[str, ...] = ()
    tool: str = "profile"
    single: bool = False
    """Whether to run on one device, without the flags that select two."""


@dataclass(frozen=True)
class Judgement:
    """A target and its verdict, `pass`, `fail` or `not evaluated`. `found` is the value, or why there is none."""

    target: str
    found: str
    verdict: str


def cases() -> list[Case]:
    """Returns all cases, the most important ones first, because the last ones are skipped when the time is up."""
    found = [Case("profile", "dual"), Case("profile", "single", single=True)]
    found.append(Case("resume", "bit for bit", tool="resume"))
    found += [Case("batch", str(size), ("--batch-size", str(size))) for size in BATCHES]
    found += [Case("switch", name, flags) for name, flags in SWITCHES.items()]
    found.append(Case("soak", "long run", tool="soak"))
    limits = {gb: ("--enable-memory-isolation", "--model-gpu-memory", str(1024 * gb)) for gb in (12, 16, 24)}
    found += [Case("memory", f"{gb} GB", flags) for gb, flags in limits.items()]
    found += [Case("workers", str(number), ("--num-workers", str(number))) for number in (1, 2, 4, 8, 16)]
    found += [Case("prefetch", str(depth), ("--buffer-size", str(depth))) for depth in (2, 4, 8, 16)]
    return found + [Case("beyond", str(size), ("--batch-size", str(size))) for size in BEYOND]


def run_case(case: Case, flags: Sequence[str], steps: int, seconds: float) -> dict:
    """Runs a case in a new process; returns its measurements by name, or `{"error": message}` if it failed.

    Args:
        flags: Flags of train_main.py given by the user.
        steps: Steps of each measurement of the profiler.
        seconds: Duration of the long run. The other cases get longer time limits, computed from it.
    """
    flags = [*(_without_pair(flags) if case.single else flags), *case.flags]
    try:
        with tempfile.TemporaryDirectory() as folder:
            if case.tool != "profile":
                return (_resumed if case.tool == "resume" else _soaked)(flags, Path(folder), seconds)
            result = Path(folder, "result.json")
            command = ["utilities/dual_gpu_bottleneck_profiler.py", *flags, "--num-steps", str(steps), "--json", result]
            error = _run(command, 2 * seconds + 600)
            return json.loads(result.read_text()) if result.is_file() else {"error": error or "it wrote no figures"}
    except Exception as error:  # the report keeps the figures of the other cases
        return {"error": f"{type(error).__name__}: {error}"}


def _resumed(flags, folder, seconds):
    """Trains a run, repeats its last steps from an earlier checkpoint, and compares the final weights of both."""
    from myxtts.storage.checkpoint import CheckpointStore

    half, whole, again = RESUME_STEPS // 2, folder / "whole", folder / "again"
    every = ["--max-steps", str(RESUME_STEPS), "--save-every", str(half), "--validate-every", str(half), "--keep", "9"]
    command = ["train_main.py", *flags, *every, "--sample-every", "0", "--deterministic", "--checkpoint-dir"]
    if error := _run([*command, str(whole)], seconds + 900):
        return {"error": error}
    shutil.copytree(whole, again)
    shutil.rmtree(again / f"gpt/step_{RESUME_STEPS:08d}")
    if error := _run([*command, str(again)], seconds + 900):
        return {"error": error}
    return {"equal": len({CheckpointStore(one / "gpt").digest(RESUME_STEPS) for one in (whole, again)}) == 1}


def _soaked(flags, folder, seconds):
    """Trains for `seconds`; compares memory and threads in the middle third and the last third of that time."""
    import psutil

    command = [sys.executable, str(ROOT / "train_main.py"), *flags, "--sample-every", "0", "--max-steps", "1000000"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([*command, "--checkpoint-dir", str(folder / "run")], stdout=log, stderr=log)
    began, states, metrics = time.monotonic(), [], folder / "run" / "metrics.jsonl"
    watched = psutil.Process(process.pid)
    while process.poll() is None and time.monotonic() - began < seconds:
        if metrics.exists():
            states.append((watched.memory_info().rss / 2**20, watched.num_threads()))
        time.sleep(min(1.0, seconds / 30))
    took = time.monotonic() - began
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(600)
    if process.returncode not in (0, 130):  # 130: stopped before the first step
        process.kill()
        process.wait()
        return {"error": (folder / "log").read_text()[-300:] or "no step was taken"}
    if len(states) < 9:
        return {"skipped": f"too short to compare: it trained in {len(states)} of 30 moments"}
    third = len(states) // 3
    middle, end = states[third : 2 * third], states[2 * third :]
    growth = median(rss for rss, _ in end) / median(rss for rss, _ in middle) - 1
    threads = [max(number for _, number in part) for part in (middle, end)]
    steps = sum({one["stage"]: one["step"] for one in read_metrics(metrics.parent)}.values())
    is_flat = growth <= LARGEST_GROWTH and threads[1] <= threads[0]
    return {"steps": steps, "minutes": took / 60, "growth": growth, "threads": threads, "ok": is_flat}


def _run(command, timeout):
    """Runs a script of the repository; returns the last line of its error output if it fails, else None."""
    command = [sys.executable, str(ROOT / command[0]), *command[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"not done after {timeout:.0f} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {done.returncode}"])[-1][:300] if done.returncode else None


def _without_pair(flags):
    """Returns the flags except those that select two devices and their memory limits."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--enable-memory-isolation", action="store_true")
    for name in PAIR:
        parser.add_argument(name)
    return parser.parse_known_args(flags)[1]


def measure_all(flags: Sequence[str], minutes: float, steps: int, groups: Sequence[str]) -> dict[str, dict[str, dict]]:
    """Runs cases of `groups` (all if empty); returns `{group: {case: result}}`. A result may be `{"skipped": why}`."""
    began, found = time.monotonic(), {}
    for case in cases():
        if groups and case.group not in groups:
            continue
        results = found.setdefault(case.group, {})
        left = 60 * minutes - (time.monotonic() - began)
        if left <= 0:
            results[case.name] = {"skipped": "the time was up"}
        elif case.group == "beyond" and any("error" in one for one in results.values()):
            results[case.name] = {"skipped": "a smaller batch failed"}
        else:
            print(f"{case.group}: {case.name} ...", flush=True)
            seconds = 60 * minutes * SOAK_SHARE if case.tool == "soak" else left
            results[case.name] = run_case(case, list(flags), steps, min(seconds, left))
            print(f"  {_short(results[case.name])}", flush=True)
    return found


def _short(figures):
    if "error" in figures or "skipped" in figures:
        return figures.get("error") or figures["skipped"]
    if "equal" in figures:
        return "the same weights" if figures["equal"] else "other weights"
    if "growth" in figures:
        return f"{figures['steps']} steps in {figures['minutes']:.1f} minutes, memory {figures['growth']:+.1%}"
    measured = f"{figures['step_ms']:.1f} ms a step, {_rate(figures):.2f} clips/s, variation {figures['variation']:.0%}"
    memory = figures.get("peak_memory_mb")
    return measured + (f", {memory:.0f} MB" if memory else "")


def _rate(figures):
    return figures["batch_size"] * figures["steps_per_second"]


def _gpu(figures, place):
    """Returns the fields of `GPUUsage` of the data GPU (`place` 0) or model GPU (-1); {} without monitored GPUs."""
    return ((figures.get("gpu") or {}).get("gpus") or [{}])[place]


def judge(found: dict[str, dict[str, dict]], is_virtual: bool) -> list[Judgement]:
    """Compares the result of `measure_all` with the targets; does not judge speed and memory of virtual devices."""
    of = lambda group, name: found.get(group, {}).get(name, {})
    dual, everything = of("profile", "dual"), of("switch", "all")
    variation = lambda f: (f"{f['variation']:.0%}", f["variation"] < 0.3)
    alone = lambda f: (f"{f['speedup']:.2f} x the phases one by one", "GPU" in f["devices"] and f["speedup"] >= 0.95)
    faster = lambda f: _ratio(_rate(f), "step_ms" in dual and _rate(dual), lambda ratio: ratio >= 2.0)
    smaller = lambda f: _ratio(f.get("peak_memory_mb"), dual.get("peak_memory_mb"), lambda ratio: ratio <= 0.5)
    fits = lambda f: (_short(f), (used := f.get("peak_memory_mb")) and used <= 24 * 1024)
    overlap = "dual device 1.5 to 2 x synchronous, where data work is comparable (ceiling 1.65)"
    rows = [
        _judged("model GPU utilisation at least 80 % (stretch 90 %)", dual, lambda f: _utilization(f, -1, 80)),
        _judged("data GPU utilisation at least 50 % (stretch 60 %)", dual, lambda f: _utilization(f, 0, 50)),
        _judged("step-time variation under 30 % (stretch 20 %)", dual, variation),
        _judged(overlap, dual, _overlap),
        _judged("single-GPU mode: the pipeline costs no time", of("profile", "single"), alone),
        _judged("all training optimisations, against none: 2 x speed", everything, faster),
        _judged("all training optimisations, against none: half the memory", everything, smaller),
        *(_judged(f"batch {n} runs in 24 GB", of("batch", str(n)), fits) for n in BATCHES),
    ]
    if is_virtual:
        rows = [Judgement(row.target, f"{row.found} ({MEANINGLESS})", "not evaluated") for row in rows]
    resume, soak = of("resume", "bit for bit"), of("soak", "long run")
    rows.append(_judged("a resumed run equals an uninterrupted one", resume, lambda f: (_short(f), f["equal"])))
    rows.append(_judged("a long run takes no more memory and threads at its end", soak, lambda f: (_short(f), f["ok"])))
    return rows


def _judged(target, figures, verdict):
    """Returns a `Judgement`. `verdict(figures)` returns the value as text, and whether it is good (None: unknown)."""
    lack = "not measured" if not figures else figures.get("error") or figures.get("skipped")
    if lack:
        return Judgement(target, lack, "fail" if "error" in figures else "not evaluated")
    measured, holds = verdict(figures)
    return Judgement(target, measured, "not evaluated" if holds is None else "pass" if holds else "fail")


def _utilization(figures, place, least):
    used = _gpu(figures, place).get("mean_utilization")
    return ("not known", None) if used is None else (f"{used:.0f} %", used >= least)


def _overlap(figures):
    measured = f"{figures['speedup']:.2f} x, ceiling {figures['ceiling']:.2f}"
    if not figures["is_possible"]:
        return f"{measured}: unreliable, as a phase alone takes longer than a step", None
    return measured, figures["speedup"] >= 1.5 if figures["ceiling"] >= 1.65 else None


def _ratio(own, other, holds):
    """Returns `own / other` as text, and `holds(own / other)`, which is None if `own` or `other` is not known."""
    return (f"{own / other:.2f} x", holds(own / other)) if own and other else ("not known", None)


def without_paths(text: str, given: Sequence[str]) -> str:
    """Replaces paths by `…`; paths with spaces only if they are in `given`. Joins lines and replaces `|` for tables."""
    for path in sorted(given, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(path)}(?!\w)", "…", text)
    text = re.sub(r"[^\s'\"(]*[/\\](?![CG]PU:)[^\s'\",;)]*", "…", text)
    return " ".join(text.split()).replace("|", "/")


def flags_to_use(found: dict[str, dict[str, dict]]) -> str:
    """Returns flags to recommend: in each group, those of the fastest case if over 3 % faster than the default."""
    quickest = {}
    for case in cases():
        figures = found.get(case.group, {}).get(case.name, {})
        if case.group in ("switch", "workers", "prefetch", "batch") and "step_ms" in figures:
            if case.group not in quickest or _rate(figures) > quickest[case.group][0]:
                quickest[case.group] = _rate(figures), case.flags
    plain = found.get("profile", {}).get("dual", {})
    least = _rate(plain) if "step_ms" in plain else 0.0
    return " ".join(flag for rate, flags in quickest.values() if rate > 1.03 * least for flag in flags)


def machine() -> dict[str, str]:
    """Returns GPUs, processor and package versions for the report, without names of users, folders or hosts."""
    from importlib import metadata

    from myxtts.devices.gpu_monitor import NVMLUnavailable, list_gpus
    from myxtts.devices.machine import read_processor

    try:
        gpus = "; ".join(f"{gpu.name}, {gpu.memory_mb} MB" for gpu in list_gpus()) or "none"
    except NVMLUnavailable as error:
        gpus = f"none ({error})"
    processor = read_processor()
    packages = metadata.packages_distributions()  # such as tensorflow-cpu for tensorflow
    versions = {name: metadata.version(packages[name][0]) for name in ("tensorflow", "keras")}
    return {"GPUs": gpus, "processor": f"{processor.name}, {processor.cores} cores", **versions}


def page(report: dict) -> str:
    """Formats the report as Markdown."""
    lines = ["# GPU acceptance", "", f"`{report['command']}`", ""]
    lines += [f"**{MEANINGLESS[0].upper()}{MEANINGLESS[1:]}.**", ""] if report["virtual"] else []
    lines += [f"- {name}: {value}" for name, value in report["machine"].items()]
    lines += ["", "| target | found | |", "|---|---|---|"]
    lines += [f"| {row['target']} | {row['found']} | {row['verdict']} |" for row in report["judgements"]]
    lines += ["", f"Flags to use on this machine: `{report['flags'] or 'none: the plain run is the quickest'}`", ""]
    lines += ["| case | | figures |", "|---|---|---|"]
    for group, results in report["measured"].items():
        lines += [f"| {group} | {name} | {_short(figures)} |" for name, figures in results.items()]
    return "\n".join(lines) + "\n"


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; returns the options of this command, and the flags to pass to train_main.py."""
    from myxtts.cli.arguments import PlainParser
    from myxtts.cli.train import build_parser

    parser = PlainParser(prog="gpu_acceptance.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="time after which no further case starts")
    parser.add_argument("--steps", type=int, default=30, help="steps of each measurement")
    groups = tuple(dict.fromkeys(case.group for case in cases()))
    parser.add_argument("--only", nargs="+", choices=groups, default=(), help="groups of cases (default: all)")
    parser.add_argument("--report", default=".", metavar="FOLDER", help="folder for the report")
    own, flags = parser.parse_known_args(argv)
    require(own.minutes > 0, "--minutes", "above 0", own.minutes)
    require(own.steps >= 2, "--steps", "2 or more", own.steps)
    asked = build_parser("train_main.py").parse_args(flags)
    own.virtual = device_request(None, None, asked.virtual_devices).virtual_devices > 0
    if not own.virtual:
        pair, hint = (asked.data_gpu, asked.model_gpu), "Without GPUs, try the command with --virtual-devices 2."
        require(None not in pair, "--data-gpu and --model-gpu", "the two GPUs to test", pair, hint)
        gpus = len(visible_gpus())
        require(max(pair) < gpus, "--data-gpu and --model-gpu", f"below {gpus}, the number of GPUs", pair, hint)
    if asked.data_gpu == asked.model_gpu is not None:
        flags.append("--enable-memory-isolation")
    return own, flags


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases and writes the report; returns the exit code."""
    from myxtts.storage.files import write_json, write_text

    own, flags = parse(argv)
    require_output("--report", own.report, makes_folders=True)
    folder, system = Path(own.report), machine()
    folder.mkdir(parents=True, exist_ok=True)
    found = measure_all(flags, own.minutes, own.steps, own.only)
    parts = [re.fullmatch(r"(--[\w-]+=)?(.*)", flag, re.DOTALL).groups("") for flag in flags]
    given = [value for _, value in parts if {*value} & {*"/\\~"} or Path(value).exists()]
    for figures in (one for results in found.values() for one in results.values() if "error" in one):
        figures["error"] = without_paths(figures["error"], [path for path in given if path.strip("./")])
    rows, shown = judge(found, own.virtual), (name + ("…" if value in given else value) for name, value in parts)
    options = ["--minutes", f"{own.minutes:g}", "--steps", str(own.steps), *(["--only", *own.only] if own.only else [])]
    report = {
        "command": " ".join(["python utilities/gpu_acceptance.py", *shown, *options]),
        "virtual": own.virtual,
        "machine": system,
        "judgements": [vars(row) for row in rows],
        "flags": flags_to_use(found),
        "measured": found,
    }
    write_json(folder / "gpu_report.json", report)
    write_text(folder / "gpu_report.md", page(report))
    failed, passed = (sum(row.verdict == one for row in rows) for one in ("fail", "pass"))
    print(f"{passed} targets met, {failed} missed, {len(rows) - passed - failed} not evaluated: {folder}/gpu_report.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

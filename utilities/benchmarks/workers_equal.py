"""Compares the losses of training by several workers with training in one process, for each stage and step.

    python utilities/benchmarks/workers_equal.py --output /tmp/equal
    python utilities/benchmarks/workers_equal.py --output /tmp/equal4 --workers 4 --stages dvae,gpt --cases plain

For each case and stage, prints the largest relative difference of losses and of gradient norms, in training and in
validation, and the step where it occurs. In each stage, the workers start with the earlier stages of the single
process, so that differences come from this stage only. Shapes are tiny, and learning rates are those of the size
normal. Augmentation is on; dropout is off, because replicas have different dropout masks.

Workers add numbers in another order, so their rounding errors differ. These grow with each step, and exponentially if a
large learning rate makes codes change: at 3e-3, ten times the rate used here, the DVAE's loss differed by 1e-5 after 80
steps. `--rate 0.01` divides the rates by 100; differences that remain are not rounding errors.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402  from the folder just named

from myxtts.config.stages import STAGES  # noqa: E402
from myxtts.storage.run_folder import read_metrics  # noqa: E402

LARGEST_DIFFERENCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings of the compared runs. The workers get `flags`. The single process gets `one`; if None, `flags`."""

    training: dict = dataclasses.field(default_factory=dict)
    stage: dict = dataclasses.field(default_factory=dict)
    flags: tuple[str, ...] = ()
    one: tuple[str, ...] | None = None


TWO_MODEL_DEVICES = ("--virtual-devices", "3")
CASES = {
    "plain": Case(),
    # The single process also sums two halves, so the first steps differ less.
    "two devices": Case(one=TWO_MODEL_DEVICES),
    "accumulated and clipped": Case({"gradient_accumulation": 2}, {"gradient_clip": 0.1}),
    "dual": Case(flags=("--virtual-devices", "2")),
    # Sums of halves depend on their rows, so the single process has two replicas too.
    "float16": Case({"precision": "mixed_float16"}, one=TWO_MODEL_DEVICES),
    "all together": Case(
        {"precision": "mixed_float16", "gradient_accumulation": 2},
        {"gradient_clip": 0.1},
        ("--virtual-devices", "2"),
        TWO_MODEL_DEVICES,
    ),
}


def main():
    """Prints a line per case and stage; exits with 1 if losses differ by more than `LARGEST_DIFFERENCE`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--steps", type=int, default=100, help="steps per stage")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--output", type=Path, required=True, help="new folder, or the folder of an interrupted call")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    corpus, stages, is_equal = arguments.output / "corpus", arguments.stages.split(","), True
    if not corpus.exists():
        make_tiny_corpus(corpus)
    for name in arguments.cases.split(","):
        home = arguments.output / name.replace(", ", "_").replace(" ", "_")
        home.mkdir(exist_ok=True)
        settings = write_settings(home, corpus, CASES[name], arguments.steps, stages, arguments.rate)
        is_equal &= compare(name, CASES[name], settings, home, stages, arguments.workers)
    sys.exit(not is_equal)


def write_settings(home, corpus, case, steps, stages, rate=1.0):
    """Writes the configuration file of a case, with learning rates multiplied by `rate`; returns its path."""
    every = dict(log_every_steps=1, validate_every_steps=max(1, steps // 2), checkpoint_every_steps=steps)
    every |= dict(leave_out=[name for name in STAGES if name not in stages])
    shape, data = dict(layers=1, num_latents=2, dropout=0.0), dict(augment=True, num_workers=1, num_buckets=1)
    made_of = dict(model=shape, data=data, training={**every, **case.training})
    common = {"max_steps": steps, **case.stage}
    stages_of = {name: {"learning_rate": rate * STAGES[name].learning_rates["normal"], **common} for name in stages}
    config = tiny_run_config(corpus, home, **made_of, **stages_of)
    config.training.decoder.spectral_share = 0.2
    path = home / "settings.json"
    path.write_text(json.dumps(config.to_dict()))
    return path


def compare(name, case, settings, home, stages, workers):
    """Trains a case in one process and by workers; prints the differences, and returns whether the losses agree."""
    one, is_equal = home / "one", True
    train(one, settings, case.flags if case.one is None else case.one)
    for place, stage in enumerate(stages):
        several = home / f"workers_{stage}"
        if not several.exists():
            later = shutil.ignore_patterns(*stages[place:], "metrics.jsonl", "tensorboard")
            shutil.copytree(one, several, ignore=later)
        train(several, settings, (*case.flags, "--stage", stage), workers)
        differences = largest_differences(*(figures(folder, stage) for folder in (one, several)))
        told = ", ".join(f"{what} {value:.1e} (step {step})" for what, (value, step) in differences.items())
        print(f"{name}: {stage}, {workers} workers: {told}", flush=True)
        is_equal &= all(value <= LARGEST_DIFFERENCE for what, (value, _) in differences.items() if "norm" not in what)
    return is_equal


def train(folder, settings, flags, workers=1):
    """Runs `myxtts train` with one or several workers; exits if it fails."""
    launch = ("launch", "--workers", str(workers), "--restarts", "3", "--") if workers > 1 else ()
    command = [sys.executable, "-m", "myxtts", *launch, "train", "--config", str(settings), *flags]
    with open(f"{folder}.log", "wb") as log:
        command += ["--checkpoint-dir", str(folder)]
        if code := subprocess.run(command, cwd=ROOT, stdout=log, stderr=log).returncode:
            sys.exit(f"{' '.join(command)} ended with {code}; see {folder}.log")


def figures(folder, stage):
    """Returns the losses and gradient norms of a stage, `{(kind, step): {name: value}}`."""
    found = {}
    for line in read_metrics(folder):
        if line["stage"] == stage and (after := AFTER_LOSSES.get(line["kind"])):
            names = list(line)
            losses = names[names.index("kind") + 1 : names.index(after)]
            found[line["kind"], line["step"]] = {name: line[name] for name in losses}
    return found


AFTER_LOSSES = {"training": "learning_rate", "validation": "is_best"}
"""Name of the value that follows the losses in a line of `metrics.jsonl`, by the line's kind."""


def largest_differences(ones, others):
    """Returns `(largest relative difference, its step)` for each kind of value, such as `validation loss`."""
    if ones.keys() != others.keys():
        sys.exit(f"Steps differ: {len(ones)} lines and {len(others)}.")
    found = {}
    for (kind, step), line in ones.items():
        losses = {name: value for name, value in line.items() if value is not None}
        norms = [name for name in losses if name.endswith("norm")]
        whole = max(abs(value) for name, value in losses.items() if name not in norms)
        for name, value in losses.items():
            what = f"{'validation ' * (kind == 'validation')}{'gradient norm' if name in norms else 'loss'}"
            theirs = others[kind, step][name]
            # A gradient norm is 0 for a loss of 0, and None for a step that float16 skipped.
            size = abs(value) or 1.0 if name in norms else whole
            difference = math.inf if theirs is None else abs(theirs - value) / size
            found[what] = max(found.get(what, (0.0, step)), (difference, step))
    return found


if __name__ == "__main__":
    main()

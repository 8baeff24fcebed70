"""LoRA against full fine-tuning on one voice: CPU seconds of a step, memory, validation loss by steps and by time.

    python utilities/benchmarks/adapters.py --init-from runs/sample --train-data ../shared/data/kerstin_de_mini \\
        --language de --folder /tmp/adapters

Each case is `myxtts train` in a process of its own, on the GPT alone, with the same draws; what a step takes is then
measured again in one process, in turn, so that whatever else the machine does strikes both. Seconds are CPU seconds of
all threads. Prints Markdown tables.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CASES = {"all weights": 0, "LoRA": 16}
"""Rank of the adapters, 0 for none."""
VALIDATION_SHARE = 0.1
SETTINGS = {"stage": "gpt", "sample_every_steps": 0, "log_every_steps": 10, "seed": 0}
TIMED_STEPS = 10


def train(asked: argparse.Namespace, case: str, rate: float) -> dict:
    """Trains a case; its validation losses by step and the peak memory of its process."""
    folder = asked.folder / f"{case.replace(' ', '_')}_{rate:g}"
    every = {"validate_every_steps": asked.every, "checkpoint_every_steps": asked.steps}
    recipe = {"data": {"augment": False, "validation_share": VALIDATION_SHARE}, "training": {**SETTINGS, **every}}
    (asked.folder / "recipe.yaml").write_text(json.dumps(recipe))
    flags = {
        "config": asked.folder / "recipe.yaml",
        "init-from": asked.init_from,
        "train-data": asked.train_data,
        "language": asked.language,
        "checkpoint-dir": folder,
        "batch-size": asked.batch_size,
        "max-steps": asked.steps,
        "lr": rate,
        "lora-rank": CASES[case],
    }
    command = [f"--{name}={value}" for name, value in flags.items()]
    with open(asked.folder / f"{folder.name}.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "myxtts", "train", *command, "--reset-training"],
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{log.name}: ended with {status}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["codes"] for line in lines if line["kind"] == "validation"}
    return {
        "rate": rate,
        "losses": losses,
        "peak_mb": usage.ru_maxrss / 1024,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def step_seconds(asked: argparse.Namespace) -> dict[str, float]:
    """Median CPU seconds of a step of each case on the same batches, one after the other in this process."""
    from myxtts.devices.configuration import plan_devices
    from myxtts.storage.provenance import read_config
    from myxtts.training.watching.measurement import open_trainer, sync, synthetic_waves, take_step

    steps = {}
    for case, rank in CASES.items():
        config = read_config(asked.init_from)
        config.data.train_data, config.data.batch_size = str(asked.train_data), asked.batch_size
        config.data.language, config.training.lora_rank = asked.language, rank
        trainer, _ = open_trainer(config, plan_devices(num_gpus=0), asked.folder / f"timed_{rank}")
        batch = trainer.replicas.transfer(trainer.preparation(synthetic_waves(config, 4.0, asked.batch_size), 0))
        steps[case] = (trainer, batch)
    times = {case: [] for case in CASES}
    for position in range(TIMED_STEPS + 2):
        for case, (trainer, batch) in steps.items():
            began = time.process_time()
            take_step(trainer, batch, position)
            sync()
            times[case].append(time.process_time() - began)
    return {case: median(times[case][2:]) for case in CASES}  # the first ones trace


def report(runs: dict[str, list[dict]], seconds: dict[str, float]) -> str:
    """The tables."""
    best = {case: min(tried, key=lambda run: min(run["losses"].values())) for case, tried in runs.items()}
    lines = [
        "| case | rate | CPU s a step | CPU s of the run | peak of the process | lowest validation loss | at step |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, tried in runs.items():
        for run in tried:
            step, loss = min(run["losses"].items(), key=lambda item: item[1])
            used = f"{seconds[case]:.3f}", f"{run['cpu_seconds']:.0f}", f"{run['peak_mb']:.0f} MB"
            lines.append("| " + " | ".join((case, f"{run['rate']:g}", *used, f"{loss:.3f}", str(step))) + " |")
    full, lora = best.values()
    lines += ["", "| after steps | all weights | LoRA | LoRA after the same time |", "|---|---|---|---|"]
    ratio = seconds["all weights"] / seconds["LoRA"]
    for step, loss in full["losses"].items():
        reached = max((at for at in lora["losses"] if at <= step * ratio), default=None)
        same_time = f"{lora['losses'][reached]:.3f} (step {reached})" if reached else ""
        lines.append(f"| {step} | {loss:.3f} | {lora['losses'][step]:.3f} | {same_time} |")
    return "\n".join(lines)


def main() -> None:
    """Trains every case and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init-from", type=Path, required=True, help="a trained run")
    parser.add_argument("--train-data", type=Path, required=True)
    parser.add_argument("--language", default="en")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=30, help="steps between validations")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4], help="peaks that are tried; the best counts")
    parser.add_argument("--lora-rates", type=float, nargs="+", default=[3e-3])
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rates = dict(zip(CASES, (asked.rates, asked.lora_rates)))
    runs = {case: [train(asked, case, rate) for rate in rates[case]] for case in CASES}
    seconds = step_seconds(asked)
    (asked.folder / "runs.json").write_text(json.dumps({"runs": runs, "seconds": seconds}, indent=1))
    print(report(runs, seconds))


if __name__ == "__main__":
    main()

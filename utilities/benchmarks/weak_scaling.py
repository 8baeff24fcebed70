"""Weak scaling: two workers on a core each against one process on one core, with the same number of clips per process.

    python utilities/benchmarks/weak_scaling.py --output /tmp/weak

To be run alone on a machine with two cores or more; under three minutes. In turn: one process, two that know nothing of
each other (what the machine itself loses when both cores work), two workers, one process again. Clips per second come
from the median step; CPU seconds of a clip, which other work on the machine disturbs less, from what the operating
system counts between two steps. The GPT of the size nano on made-up clips of 3 to 5 s, without augmentation.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import soundfile

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny import voiced  # noqa: E402  from the folder just named

from myxtts.distributed.launching import free_addresses  # noqa: E402

CLIPS, UNCOUNTED_STEPS = 40, 4
TICKS = os.sysconf("SC_CLK_TCK")


def main():
    """Prints a line per phase and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8, help="clips of each process and step")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cores", default="0,1", help="of the first and the second process")
    parser.add_argument("--output", type=Path, required=True, help="new folder")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    runs, cores = Runs(arguments), arguments.cores.split(",")
    runs.train("base", [(cores[0], ("--stage", "dvae", "--max-steps", "1"))], arguments.batch_size)
    alone, both = [(cores[0], ())], [(core, ()) for core in cores]
    addresses = free_addresses(2)
    flags = [("--workers", ",".join(addresses), "--worker-index", str(index)) for index in range(2)]
    phases = [("one process", alone), ("two apart", both), ("two workers", list(zip(cores, flags)))]
    found = {"one process": []}
    for name, processes in (*phases, phases[0]):
        together = 2 if name == "two workers" else 1
        rate, cpu_seconds = runs.train(name, processes, together * arguments.batch_size)
        found.setdefault(name, []).append((rate, cpu_seconds))
        print(f"{name}: {rate:.2f} clips/s, {cpu_seconds:.3f} CPU s a clip", flush=True)
    one = [statistics.mean(column) for column in zip(*found["one process"])]
    for name in ("two apart", "two workers"):
        rate, cpu_seconds = found[name][0]
        told = f"{rate / (2 * one[0]):.3f} of two times one process; in CPU time {one[1] / cpu_seconds:.3f}"
        print(f"{name}: {told}")


class Runs:
    """Trains on processes that are each bound to a core."""

    def __init__(self, arguments):
        self.home, self.steps = arguments.output, arguments.steps
        wavs = self.home / "corpus" / "wavs"
        wavs.mkdir(parents=True)
        lines = []
        for index in range(CLIPS):
            soundfile.write(wavs / f"{index}.wav", voiced(3.0 + index / 20, 100.0 + 3 * index, index % 6, index), 22050)
            lines.append(f"{index}|a clip of some words, number {index}|a clip of some words, number {index}\n")
        (self.home / "corpus" / "metadata.csv").write_text("".join(lines))
        never, stages = 10**6, ["speaker", "decoder"]
        every = dict(log_every_steps=1, validate_every_steps=never, checkpoint_every_steps=never, sample_every_steps=0)
        data = dict(train_data=str(self.home / "corpus"), augment=False, static_shapes=True, num_workers=1)
        every |= dict(max_validation_batches=1, leave_out=stages)
        settings = {"model": {"size": "nano"}, "data": data, "training": every}
        (self.home / "settings.json").write_text(json.dumps(settings))

    def train(self, name, processes, batch_size):
        """Clips per second and CPU seconds of a clip, of all processes together; of `(core, flags)` each."""
        started, workers = [], name == "two workers"
        for index, (core, flags) in enumerate(processes):
            place = index * (not workers)
            folder = self.home / f"{name.replace(' ', '_')}_{place}_{len(list(self.home.iterdir()))}"
            folder = started[0][0] if workers and started else folder
            if name != "base" and not folder.exists():
                shutil.copytree(next(self.home.glob("base_*")), folder, ignore=shutil.ignore_patterns("*.jsonl"))
            command = ["taskset", "-c", core, sys.executable, "-m", "myxtts", "train", "--batch-size", str(batch_size)]
            command += ["--config", str(self.home / "settings.json"), "--checkpoint-dir", str(folder)]
            command += flags if name == "base" else ["--max-steps", str(self.steps), "--stage", "gpt", *flags]
            with open(self.home / "log", "ab") as log:
                started.append((folder, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)))
        return self._figures(started, batch_size)

    def _figures(self, started, batch_size):
        marks = {}
        while any(process.poll() is None for _, process in started):
            steps = min(len(step_ms(folder)) for folder, _ in started)
            if steps in (UNCOUNTED_STEPS, self.steps - 1) and steps not in marks:
                marks[steps] = sum(cpu_seconds(process) for _, process in started)
            time.sleep(0.02)
        codes = [process.returncode for _, process in started]
        if any(codes):
            print(f"processes ended with {codes}; see {self.home / 'log'}", flush=True)
            if min(len(step_ms(folder)) for folder, _ in started) < self.steps:
                sys.exit(1)
        if len(marks) < 2:
            return 0.0, 0.0
        folders = {folder for folder, _ in started}
        rate = sum(1e3 * batch_size / statistics.median(step_ms(folder)[UNCOUNTED_STEPS:]) for folder in folders)
        clips = (self.steps - 1 - UNCOUNTED_STEPS) * batch_size * len(folders)
        return rate, (marks[self.steps - 1] - marks[UNCOUNTED_STEPS]) / clips


def step_ms(folder):
    """Milliseconds of each logged step."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    steps = [json.loads(line) for line in lines if '"training"' in line and line.endswith("}")]
    return [line.get("avg_ms", 0.0) for line in steps]


def cpu_seconds(process):
    """Of a running process, user and system."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()

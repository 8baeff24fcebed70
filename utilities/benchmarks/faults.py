"""Checks that killed runs resume exactly, and that damaged checkpoints are detected.

    python utilities/benchmarks/faults.py --kills 3                      smallest case, a minute
    python utilities/benchmarks/faults.py --kills 100                    the default
    python utilities/benchmarks/faults.py --only kills --workers 2 --hangs 5

- `kills`: a run is interrupted at random moments by SIGKILL, SIGTERM or Ctrl-C, and resumed by the same command until
  it is complete. With several workers, one of them gets the signal; `--hangs` also suspends one. All losses and the
  final weights and optimizers must equal those of an uninterrupted run bit for bit, without leftover files or
  processes. After a signal, a run must end within 5 s plus its starting time, or within 75 s if it has several workers.
- `folders`: the folder of a run is moved or copied while it trains; run and copy must end with the same weights.
- `damage`: the newest of two checkpoints is truncated, has a bit flipped or loses a file; the older one must be used.

The exit code is 1 if a goal is missed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402  of the tests

from myxtts.distributed.workers import LOST_EXIT_CODE  # noqa: E402
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore  # noqa: E402
from myxtts.storage.files import digest_file  # noqa: E402

STAGES = ("dvae", "gpt")
LONGEST_RUN_SECONDS = 900.0
LONGEST_STOP_SECONDS = 5.0
LONGEST_LOSS_SECONDS = 75.0
"""Time limit for the end of a run that lost a worker: 60 s to detect the loss, 15 s until `launch` kills the rest."""
STARTING_SHARE = 0.3
"""Probability that a signal is sent while the run starts, before its first step."""


class TrainingRun:
    """A run on a tiny corpus in the folder `work/NAME`, and the process that trains it."""

    def __init__(self, work: Path, name: str, workers: int = 1):
        self.work, self.home, self.workers = work, work / name, workers
        self.log, self.process = work / f"{name}.log", None

    def start(self) -> "TrainingRun":
        """Starts or resumes the run; returns itself."""
        launch = ["launch", "--workers", str(self.workers), "--"] if self.workers > 1 else []
        command = [sys.executable, "-m", "myxtts", *launch, "train", "--config", str(self.work / "settings.json")]
        with open(self.log, "ab") as log:
            command += ["--checkpoint-dir", str(self.home)]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        return self

    def finish(self) -> int:
        """Waits for the process to end; returns its exit code."""
        return self.process.wait(LONGEST_RUN_SECONDS)

    def wait_for_step(self, step: int) -> bool:
        """Waits until the run has logged `step` more steps; returns False if the process ends earlier."""
        metrics = self.home / "metrics.jsonl"
        logged = lambda: metrics.read_bytes().count(b'"training"') if metrics.exists() else 0
        before = logged()
        while self.process.poll() is None:
            if logged() >= before + step:
                return True
            time.sleep(0.005)
        return False

    def last_words(self) -> str:
        """Returns the last 2,000 characters of the log."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def prepare(work: Path, steps: int) -> None:
    """Writes a tiny corpus, and settings for runs of two small stages with a checkpoint at every step."""
    every = dict(log_every_steps=1, validate_every_steps=steps, checkpoint_every_steps=1, sample_every_steps=0)
    stages = {name: {"max_steps": steps} for name in STAGES}
    shape, data = dict(layers=1, num_latents=2), dict(augment=True, num_workers=1, num_buckets=1)
    corpus = make_tiny_corpus(work / "corpus")
    config = tiny_run_config(corpus, model=shape, data=data, training=every, **stages).to_dict()
    config["training"]["leave_out"] = ["speaker", "decoder"]
    (work / "settings.json").write_text(json.dumps(config))


def differences(whole: Path, other: Path) -> Iterator[str]:
    """Yields a message for each difference of losses, weights or optimizers, and for each temporary file in `other`."""
    yield from (f"{path} is left over" for path in other.rglob("*.tmp"))
    for stage in STAGES:
        stores = [CheckpointStore(home / stage) for home in (whole, other)]
        ends = [store.steps()[-1:] for store in stores]
        if ends[0] != ends[1]:
            yield f"{other.name}: {stage} ended at {ends[1]}, not at {ends[0]}"
            continue
        if len({json.dumps(store.read_state(ends[0][0])["history"]) for store in stores}) != 1:
            yield f"{other.name}: losses of the {stage} differ"
        for name in ("model.safetensors", "optimizer.safetensors"):
            found = [digest_file(path) for store in stores for path in store.path(ends[0][0]).glob(name)]
            if len(found) != 2 or found[0] != found[1]:
                yield f"{other.name}: {name} of the {stage} differs"


def kill_once(run: TrainingRun, kinds: list, draw: random.Random, start_seconds: float, steps: int) -> Iterator[str]:
    """Sends a signal, taken from `kinds`, to a run unless it is complete; yields a message for each failed check."""
    if draw.random() < STARTING_SHARE:
        time.sleep(draw.uniform(0, start_seconds))
    elif run.wait_for_step(draw.randint(1, 2 * steps)):
        time.sleep(draw.uniform(0, 0.3))
    several, victims = run.workers > 1, [] if run.workers > 1 else [run.process]
    while run.process.poll() is None and not victims:
        victims = psutil.Process(run.process.pid).children()
    if (code := run.process.poll()) == 0:
        return
    kind = kinds.pop()
    if code is not None:
        yield f"{run.home.name} ended by itself with {code}: {run.last_words()}"
        return
    began = time.monotonic()
    os.kill(draw.choice(victims).pid, kind)
    limit = LONGEST_LOSS_SECONDS if several else LONGEST_STOP_SECONDS + start_seconds
    try:
        code = run.process.wait(limit)
    except subprocess.TimeoutExpired:
        run.process.kill()
        yield f"{kind.name}: still running after {limit:.0f} s"
        return
    print(f"{run.home.name}: {kind.name}, ended after {time.monotonic() - began:.1f} s with {code}", flush=True)
    if code not in (0, 130, 128 + kind, -kind) and not (several and code == LOST_EXIT_CODE):
        yield f"{kind.name}: exit code {code}: {run.last_words()}"
    for process in psutil.process_iter(["pid", "cmdline"]):
        if str(run.home) in (process.info["cmdline"] or ()):
            yield f"process {process.pid} is left over"


def kill_runs(work: Path, whole: TrainingRun, options: argparse.Namespace, start_seconds: float) -> Iterator[str]:
    """Runs the part `kills` of this benchmark; yields a message for each failed check."""
    draw = random.Random(options.seed)
    kinds = draw.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), k=options.kills)
    kinds += [signal.SIGSTOP] * (options.hangs if options.workers > 1 else 0)
    draw.shuffle(kinds)
    number = 0
    while kinds:
        run = TrainingRun(work, f"killed_{number}", options.workers)
        number += 1
        for _ in range(draw.randint(1, 4)):
            if kinds:
                yield from kill_once(run.start(), kinds, draw, start_seconds, options.steps)
        if code := run.start().finish():
            yield f"{run.home.name} ended with {code}: {run.last_words()}"
        yield from differences(whole.home, run.home)
    print(f"{number} runs completed", flush=True)


def trouble_folders(work: Path, whole: TrainingRun) -> Iterator[str]:
    """Runs the part `folders` of this benchmark, in one process; yields a message for each failed check."""
    if whole.workers > 1:
        whole = TrainingRun(work, "alone").start()
        whole.finish()
    moved = TrainingRun(work, "moved").start()
    moved.wait_for_step(3)
    moved.home.rename(work / "elsewhere")
    if moved.finish() != 2 or moved.home.exists():
        yield f"moved: exit code {moved.process.returncode}, {moved.last_words()}"
    moved.home = work / "elsewhere"
    copied = TrainingRun(work, "copied").start()
    copied.wait_for_step(4)
    copy = TrainingRun(work, "copy")
    # `cp` ignores files that are deleted meanwhile.
    subprocess.run(["cp", "-a", copied.home, copy.home], stderr=subprocess.DEVNULL)
    for run in (moved.start(), copied, copy.start()):
        if code := run.finish():
            yield f"{run.home.name} ended with {code}: {run.last_words()}"
        yield from differences(whole.home, run.home)


def damage_checkpoints(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Runs the part `damage` of this benchmark; yields a message for each failed check."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    sound = CheckpointStore(folder / "sound")
    for step in (1, 2):
        arrays = {f"model/{i}": numbers.standard_normal(size).astype(np.float32) for i, size in enumerate((3, 700))}
        sound.write(step, {"model": arrays, "optimizer": arrays}, {"finished": False, "history": [{"step": step}]})
    for number in range(count):
        store = CheckpointStore(folder / "damaged")
        shutil.rmtree(store.folder, ignore_errors=True)
        shutil.copytree(sound.folder, store.folder)
        file = draw.choice(sorted(store.path(2).iterdir()))
        content = bytearray(file.read_bytes())
        place = draw.randrange(len(content))
        if number % 3 == 0:
            file.unlink()
        elif number % 3 == 1:
            file.write_bytes(content[:place])
        else:
            content[place] ^= 1 << draw.randrange(8)
            file.write_bytes(content)
        try:
            CheckpointStore(store.folder).read(2, ("model", "optimizer"))
            yield f"{file.name}, damage {number % 3} at {place}: loaded"
        except CheckpointError:
            pass
        if store.newest_sound(lambda _: None) != 1 or store.steps() != [1]:
            yield f"{file.name}, damage {number % 3} at {place}: the older checkpoint was not used"


def main() -> int:
    """Runs the parts and prints the failed checks; returns exit code 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kills", "folders", "damage")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--hangs", type=int, default=0, help="number of workers to stop by SIGSTOP")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="steps of each of the two stages")
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work, options.steps)
        whole, began = TrainingRun(work, "whole", options.workers).start(), time.monotonic()
        whole.wait_for_step(1)
        start_seconds = time.monotonic() - began
        if code := whole.finish():
            raise RuntimeError(f"The uninterrupted run ended with {code}:\n{whole.last_words()}")
        calls = {
            "kills": kill_runs(work, whole, options, start_seconds),
            "folders": trouble_folders(work, whole),
            "damage": damage_checkpoints(work / "damage", options.damages, options.seed),
        }
        for part in options.only:
            began, faults = time.monotonic(), list(calls[part])
            missed += len(faults)
            print(f"{part}, {time.monotonic() - began:.0f} s: {len(faults)} faults", *faults, sep="\n", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

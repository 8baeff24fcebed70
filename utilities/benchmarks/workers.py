"""Kills and stops workers at random moments, starts them again, and compares with a run that was left alone.

    python utilities/benchmarks/workers.py --kills 30 --hangs 5 --output /tmp/workers

Each round starts two workers (`myxtts launch`) and sends one of them SIGKILL or SIGTERM, or SIGSTOP for a hang: half
of the times while they start, else after a random number of steps, each of which is written as a checkpoint. Counted
are rounds that end otherwise than they should, processes left over, checkpoints left half written, and weights or
losses of the finished run that are not those of the run left alone, bit for bit. `--output` may be the folder of an
earlier call with the same steps: its run left alone is compared with again.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402  from the folder just named

from myxtts.distributed.launching import LOST_FAREWELL_SECONDS  # noqa: E402
from myxtts.distributed.workers import LOST_EXIT_CODE, LOST_SECONDS  # noqa: E402
from myxtts.storage.checkpoint import CheckpointStore  # noqa: E402
from myxtts.storage.files import digest_file  # noqa: E402

LATEST_END_SECONDS = LOST_SECONDS + LOST_FAREWELL_SECONDS + 15.0
"""For all to end after one was lost: silence, the launcher's patience, and a slow machine. A minute is promised."""
STOOD_STILL_SECONDS = 10.0
"""Between two looks of this program at the run: then something has stopped the whole machine, and workers with it."""
STARTING_SHARE = 1 / 2
STAGES = ("dvae", "gpt")


def main():
    """Prints a line a round and the counts; exit code 1 where something is other than it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--hangs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="of each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    settings, whole = arguments.output / "settings.json", arguments.output / "whole"
    if not settings.exists():
        write_settings(settings, arguments.steps)
        if code := start(settings, whole).wait():
            sys.exit(f"the run left alone ended with {code}; see {whole}.log")
    draw, faults, done = random.Random(arguments.seed), [], 0
    kinds = ["kill"] * arguments.kills + ["hang"] * arguments.hangs
    draw.shuffle(kinds)
    while kinds:
        run = Broken(settings, whole.with_name(f"broken_{arguments.seed}_{done}"), arguments.steps, draw)
        faults += run.to_its_end(kinds)
        faults += compare(whole, run.home)
        done += 1
    counts = f"{arguments.kills} kills and {arguments.hangs} hangs, {done} runs to their end"
    print("\n".join([*faults, f"{counts}: {len(faults)} faults"]), flush=True)
    sys.exit(bool(faults))


def write_settings(path, steps):
    """A configuration file of two small stages."""
    every = dict(log_every_steps=1, validate_every_steps=steps, checkpoint_every_steps=1, sample_every_steps=0)
    stages = {name: {"max_steps": steps} for name in STAGES}
    shape, data = dict(layers=1, num_latents=2), dict(augment=True, num_workers=1, num_buckets=1)
    corpus = make_tiny_corpus(path.with_name("corpus"))
    config = tiny_run_config(corpus, model=shape, data=data, training=every, **stages).to_dict()
    config["training"]["leave_out"] = ["speaker", "decoder"]
    path.write_text(json.dumps(config))


def start(settings, home):
    """Two workers, started by `myxtts launch`."""
    command = [sys.executable, "-m", "myxtts", "launch", "--workers", "2", "--", "train", "--config", str(settings)]
    with open(f"{home}.log", "ab") as log:
        return subprocess.Popen([*command, "--checkpoint-dir", str(home)], cwd=ROOT, stdout=log, stderr=log)


class Broken:
    """A run that is broken and started again until it comes to its end."""

    def __init__(self, settings, home, steps, draw):
        self.settings, self.home, self.steps, self.draw = settings, home, steps, draw
        self.start_seconds = 10.0
        """From the start to the first step, as the last start took that came so far."""

    def to_its_end(self, kinds):
        """Yields what is other than it should be; takes kinds of what is done to it off the list."""
        while True:
            is_nearly_done = len(STAGES) * self.steps - self._done() < 3
            lets_end = is_nearly_done and self.draw.random() < 0.5  # so that others are broken from their first step on
            kind = kinds[-1] if kinds and not lets_end else None
            launcher = start(self.settings, self.home)
            if self._wait(launcher, kind):
                kinds.pop()
                yield from self._break(launcher, kind)
                continue
            if launcher.returncode == 0:
                return
            if not self.stood_still:
                yield f"{self.home.name}: ended by itself with {launcher.returncode}"
                return
            print(f"{self.home.name}: the machine stood still: ended with {launcher.returncode}", flush=True)

    def _wait(self, launcher, kind):
        """Waits for the moment to break the run; returns False if it has ended before."""
        before, began = self._logged(), time.monotonic()
        left, last, first = len(STAGES) * self.steps - self._done(), began, None
        if kind and self.draw.random() < STARTING_SHARE:
            deadline, lines = began + self.draw.uniform(0.0, self.start_seconds), left + 1
        else:
            deadline, lines = float("inf"), self.draw.randint(1, max(1, left)) if kind else left + 1
        more, self.stood_still = self.draw.uniform(0.0, 0.3), False
        while launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
            now, logged = time.monotonic(), self._logged() - before
            self.stood_still |= now - last > STOOD_STILL_SECONDS
            last = now
            if logged and first is None:
                first = self.start_seconds = now - began
            if logged >= lines and deadline == float("inf"):
                deadline = now + more
        return launcher.poll() is None

    def _logged(self):
        """Steps that were logged so far, those taken twice counted twice."""
        path = self.home / "metrics.jsonl"
        return path.read_bytes().count(b'"training"') if path.exists() else 0

    def _done(self):
        """Steps of all stages up to their newest checkpoints."""
        return sum(max(CheckpointStore(self.home / stage).steps(), default=0) for stage in STAGES)

    def _break(self, launcher, kind):
        number = signal.SIGSTOP if kind == "hang" else self.draw.choice([signal.SIGKILL, signal.SIGTERM])
        while not (workers := children(launcher.pid)) and launcher.poll() is None:
            time.sleep(0.01)
        if not workers:
            yield f"{self.home.name}: ended by itself with {launcher.returncode}"
            return
        victim = self.draw.randrange(len(workers))
        what = f"{self.home.name}: {number.name} of worker {victim} at step {self._done()}"
        os.kill(workers[victim], number)
        began = time.monotonic()
        try:
            code = launcher.wait(LATEST_END_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            yield f"{what}: still there after {LATEST_END_SECONDS:.0f} s"
            return
        half = len(list(self.home.glob("*/.*.myxtts.tmp")))
        told = f"all ended after {time.monotonic() - began:.0f} s with {code}"
        print(f"{what}: {told}{', in a checkpoint' if half else ''}", flush=True)
        # SIGTERM is a stop: 0 in training, 128 + 15 before it; and before Python listens to it, a death.
        allowed = (0, LOST_EXIT_CODE, 128 + signal.SIGTERM) if number == signal.SIGTERM else (LOST_EXIT_CODE,)
        if code not in allowed:
            yield f"{what}: exit code {code}"
        yield from (f"{what}: process {pid} is left over" for pid in mentioning(self.home))


def children(pid):
    """Workers that a launcher has started, in their order; none until both are there."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [int(one) for one in found] if len(found) == 2 else []


def mentioning(home):
    """Processes with a run's folder in their command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(home).encode() in path.read_bytes().split(b"\0"):
                yield path.parent.name
        except OSError:
            continue


def compare(whole, broken):
    """Yields what differs between two finished runs."""
    yield from (f"{broken.name}: {path} is left over" for path in broken.rglob("*.myxtts.tmp"))
    for stage in STAGES:
        stores = [CheckpointStore(home / stage) for home in (whole, broken)]
        steps = [store.steps()[-1:] for store in stores]
        if steps[0] != steps[1]:
            yield f"{broken.name}: {stage} ended at {steps[1]} and not at {steps[0]}"
            continue
        histories = [store.read_state(steps[0][0])["history"] for store in stores]
        if histories[0] != histories[1]:
            yield f"{broken.name}: losses of the {stage} differ"
        for name in ("model.safetensors", "optimizer.safetensors"):
            digests = {digest_file(path) for store in stores for path in store.path(steps[0][0]).glob(name)}
            if len(digests) != 1:
                yield f"{broken.name}: {name} of the {stage} differs"


if __name__ == "__main__":
    main()

"""Kills and stops workers at random moments, starts them again, and compares with a run that was left alone.

    python utilities/benchmarks/workers.py --kills 30 --hangs 5 --output /tmp/workers

Each round starts two workers (`myxtts launch`) and, after a random time, sends one of them SIGKILL or SIGTERM, or
SIGSTOP for a hang. Counted are rounds that end otherwise than they should, processes left over, and weights or losses
of the finished run that are not those of the run left alone, bit for bit.
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

from myxtts.devices.workers import LOST_EXIT_CODE  # noqa: E402
from myxtts.storage.checkpoint import CheckpointStore  # noqa: E402
from myxtts.storage.files import digest_file  # noqa: E402

LATEST_END_SECONDS = 150.0
"""For all to end after one was lost: 30 s of silence, 60 s in which the launcher waits, and a slow machine."""
STAGES = ("dvae", "gpt")


def main():
    """Prints a line a round and the counts; exit code 1 where something is other than it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--hangs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="of each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="new folder")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    settings = write_settings(arguments.output, arguments.steps)
    began = time.monotonic()
    whole, broken = arguments.output / "whole", arguments.output / "broken"
    if code := start(settings, whole).wait():
        sys.exit(f"the run left alone ended with {code}; see {whole}.log")
    seconds = time.monotonic() - began
    print(f"the run left alone: {seconds:.0f} s", flush=True)
    draw, faults, done = random.Random(arguments.seed), [], 0
    kinds = ["kill"] * arguments.kills + ["hang"] * arguments.hangs
    draw.shuffle(kinds)
    while kinds:
        home = broken.with_name(f"broken_{done}")
        faults += break_until_done(settings, home, kinds, draw, seconds)
        faults += compare(whole, home)
        done += 1
    counts = f"{arguments.kills} kills and {arguments.hangs} hangs, {done} runs to their end"
    print("\n".join([*faults, f"{counts}: {len(faults)} faults"]))
    sys.exit(bool(faults))


def write_settings(folder, steps):
    """A configuration file of two small stages."""
    every = dict(log_every_steps=1, validate_every_steps=steps, checkpoint_every_steps=5, sample_every_steps=0)
    stages = {name: {"max_steps": steps} for name in STAGES}
    data = dict(augment=True, num_workers=1)
    config = tiny_run_config(make_tiny_corpus(folder / "corpus"), data=data, training=every, **stages).to_dict()
    config["training"]["leave_out"] = ["speaker", "decoder"]
    path = folder / "settings.json"
    path.write_text(json.dumps(config))
    return path


def start(settings, home):
    """Two workers, started by `myxtts launch`."""
    command = [sys.executable, "-m", "myxtts", "launch", "--workers", "2", "--", "train", "--config", str(settings)]
    with open(f"{home}.log", "ab") as log:
        return subprocess.Popen([*command, "--checkpoint-dir", str(home)], cwd=ROOT, stdout=log, stderr=log)


def break_until_done(settings, home, kinds, draw, seconds):
    """Breaks and starts one run until it comes to its end; yields what is other than it should be."""
    while True:
        kind = kinds[-1] if kinds else None
        launcher = start(settings, home)
        # From the first call of the other worker to the last step, and at times after it.
        deadline = time.monotonic() + (draw.uniform(0.1, 1.1) * seconds if kind else float("inf"))
        while launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if launcher.poll() is not None:
            if launcher.returncode:
                yield f"{home.name}: ended by itself with {launcher.returncode}"
            if launcher.returncode or not kinds or kind:
                return
            continue
        kinds.pop()
        workers = children(launcher.pid)
        victim = draw.randrange(len(workers))
        number = signal.SIGSTOP if kind == "hang" else draw.choice([signal.SIGKILL, signal.SIGTERM])
        os.kill(workers[victim], number)
        yield from ended(launcher, workers, f"{home.name}: {number.name} of worker {victim}", number)


def ended(launcher, workers, what, number):
    """Yields what is other than it should be after a worker was sent a signal."""
    began = time.monotonic()
    try:
        code = launcher.wait(LATEST_END_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()
        yield f"{what}: still there after {LATEST_END_SECONDS:.0f} s"
        return
    print(f"{what}: all ended after {time.monotonic() - began:.0f} s with {code}", flush=True)
    allowed = (0, LOST_EXIT_CODE) if number == signal.SIGTERM else (LOST_EXIT_CODE,)
    if code not in allowed:
        yield f"{what}: exit code {code}"
    yield from (f"{what}: process {pid} is left over" for pid in workers if Path(f"/proc/{pid}").exists())


def children(pid):
    """Processes that a process has started."""
    while True:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(found) == 2:
            return [int(one) for one in found]
        time.sleep(0.01)


def compare(whole, broken):
    """Yields what differs between two finished runs."""
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

"""The folder of a run made read-only, moved or copied while the real command trains in it, for `faults.py`."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from fault_runs import SETTINGS, TrainingRun, write_corpus

ROOT = Path(__file__).resolve().parents[2]
LONGEST_RUN_SECONDS = 3600.0
NUM_COPIES = 6


class CommandRun(TrainingRun):
    """A run of `python train_main.py` in a process of its own."""

    heeds_permissions: bool = False
    """Whether root is to be refused what permissions forbid."""

    def start(self, *more):
        command = [sys.executable, str(ROOT / "train_main.py"), *self.argv, *more]
        if self.heeds_permissions and not os.geteuid():
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", *command]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        return self.process.pid

    def wait(self) -> int:
        """Waits for the exit code."""
        try:
            return self.process.wait(LONGEST_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise RuntimeError(f"A run hung:\n{self.log.read_text()[-3000:]}") from None

    def said(self) -> str:
        return self.log.read_text()

    def until(self, holds) -> bool:
        """Waits until something holds or the run has ended; whether it still runs then."""
        while not holds() and self.process.poll() is None:
            time.sleep(0.002)
        return self.process.poll() is None

    def has_checkpoints(self) -> bool:
        return len(list(self.home.glob("*/step_*"))) >= 2


def trouble_folders(work, seed):
    """The part `folders`. Returns rows and whether the goal is met."""
    work.mkdir(parents=True)
    draw, corpus = random.Random(seed), write_corpus(work / "corpus", 40)
    settings = SETTINGS | {"training": SETTINGS["training"] | {"sample_every_steps": 20, "num_samples": 1}}
    whole = _made(work, "whole", corpus, settings)
    whole.start()
    if whole.wait():
        raise RuntimeError(f"The run left alone failed:\n{whole.said()[-3000:]}")
    rows, ok = [], True
    for trouble in (_no_permission, _read_only, _read_only_for_a_while, _moved, _moved_and_back, _copied):
        if trouble is _read_only and os.geteuid():
            continue  # mounting takes root
        found = trouble(_made(work, trouble.__name__.strip("_"), corpus, settings), whole, draw)
        ok = ok and found.startswith("as promised")
        rows.append([f"run's folder {trouble.__name__.strip('_').replace('_', ' ')}", "while it trains", found, "kept"])
        print(rows[-1], flush=True)
    return rows, ok


def _made(work, name, corpus, settings):
    (work / name).mkdir()
    return CommandRun(work / name, "run", corpus, settings)


def _ended(run, words):
    """What is wrong with a run that was to end with a sentence."""
    code = run.wait()
    faults = [] if code == 2 else [f"exit code {code}"]
    faults += [] if "Traceback" not in run.said() else ["a traceback"]
    last = (run.said().strip().splitlines() or [""])[-1]
    return faults + ([] if words in last else [f"the last line is {last[:200]}"])


def _resumed(run, whole):
    """What is wrong with a run that goes on until it is done."""
    run.start()
    return _done(run, whole)


def _done(run, whole):
    code = run.wait()
    faults = [] if code == 0 else [f"exit code {code}: {run.said()[-500:]}"]
    if code == 0 and run.ends() != whole.ends():
        faults.append("its weights are not those of the run left alone")
    if code == 0 and run.files() != whole.files():
        faults.append(f"files {sorted(run.files() ^ whole.files())[:5]}")
    return faults


def _told(faults, promise):
    return "; ".join(faults) if faults else f"as promised: {promise}"


TWO_FAILURES = "ended with a sentence after the third failure in a row, resumed, weights equal"


def _no_permission(run, whole, draw):
    run.heeds_permissions = True
    run.start()
    faults = [] if run.until(run.has_checkpoints) else ["it ended too soon"]
    places = [run.home, *(path for path in run.home.rglob("*") if path.is_dir())]
    for path in places:
        path.chmod(0o555)
    faults += _ended(run, "could not be written")
    for path in places:
        if path.exists():
            path.chmod(0o755)
    return _told(faults + _resumed(run, whole), TWO_FAILURES)


@contextmanager
def _mounted_over(folder):
    """The folder again, over itself, for reading: what is open for writing stays so, as after an error of the disk."""
    aside = folder.with_name("aside")
    aside.mkdir()
    subprocess.run(["mount", "--bind", folder, aside], check=True)
    try:
        # Read-only before it lies over the folder: a file that the run opens meanwhile would keep it from becoming so.
        subprocess.run(["mount", "-o", "remount,ro,bind", aside], check=True)
        subprocess.run(["mount", "--bind", aside, folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        subprocess.run(["umount", aside], check=True)
        aside.rmdir()


def _read_only(run, whole, draw):
    run.start()
    faults = [] if run.until(run.has_checkpoints) else ["it ended too soon"]
    with _mounted_over(run.home):
        faults += _ended(run, "could not be written")
        run.start()
        faults += _ended(run, "--checkpoint-dir must be a folder that can be written to")
    return _told(faults + _resumed(run, whole), TWO_FAILURES)


def _read_only_for_a_while(run, whole, draw):
    run.heeds_permissions = True
    run.start()
    run.until(run.has_checkpoints)
    stage = next(run.home.glob("*/step_*")).parent
    stage.chmod(0o555)
    faults = [] if run.until(lambda: "try 1 of 3" in run.said()) else ["it ended too soon"]
    stage.chmod(0o755)
    return _told(faults + _done(run, whole), "told, went on, weights equal")


def _moved(run, whole, draw):
    run.start()
    faults = [] if run.until(run.has_checkpoints) else ["it ended too soon"]
    old, new = run.home, run.home.with_name("elsewhere")
    old.rename(new)
    faults += _ended(run, "was moved or replaced; move it back")
    if old.exists():
        faults.append(f"made anew in the old place: {sorted(old.rglob('*'))[:5]}")
    run.argv[run.argv.index(str(old))] = str(new)
    run.home = new
    return _told(faults + _resumed(run, whole), "ended with a sentence, resumed in the new place, weights equal")


def _moved_and_back(run, whole, draw):
    run.start()
    faults = [] if run.until(run.has_checkpoints) else ["it ended too soon"]
    run.home.rename(run.home.with_name("elsewhere"))
    faults += [] if run.until(lambda: "try 1 of 3" in run.said()) else ["it ended while away"]
    run.home.with_name("elsewhere").rename(run.home)
    return _told(faults + _done(run, whole), "told, went on, weights equal")


def _copied(run, whole, draw):
    run.start()
    copies, faults = [], []
    while len(copies) < NUM_COPIES and run.until(run.has_checkpoints):
        time.sleep(draw.uniform(0.1, 1.5))
        copy = CommandRun(run.home.parent, f"copy_{len(copies)}", *run.given)
        # `cp` goes on after a file that has gone meanwhile.
        subprocess.run(["cp", "-a", run.home, copy.home], stderr=subprocess.DEVNULL)
        copies.append(copy)
    faults += [] if len(copies) > 2 else [f"only {len(copies)} copies"]
    faults += _done(run, whole)
    took_up = 0
    for copy in copies:
        copy.start()
        wrong = _done(copy, whole)
        took_up += "Resumed the" in copy.said()
        # What was half copied is set aside, and stays.
        extra = {name for name in copy.files() - whole.files() if "damaged_step_" in name}
        faults += [one for one in wrong if extra != copy.files() ^ whole.files() or not one.startswith("files")]
        shutil.rmtree(copy.home)
    return _told(faults, f"{len(copies)} copies went on to the same weights, {took_up} of them from a checkpoint")

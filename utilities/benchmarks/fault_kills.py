"""Kills training runs, conversions and set-asides at random moments, for `faults.py`."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from fault_runs import SETTINGS, TrainingRun, fork, write_corpus
from released_model import write_release

from myxtts.__main__ import main as myxtts
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import digest_file
from myxtts.storage.run_folder import own_run_folder

LONGEST_RUN_SECONDS = 3600.0
"""Of a start, after which a run counts as hung; beside other work one may take long."""
TRAINING_MOMENTS = ("start-up", "steps", "writing", "validation", "sampling")
LATEST_SECONDS = {"steps": 0.05, "writing": 0.03, "validation": 0.2, "sampling": 2.0}
"""After the moment is seen to have come, the kill comes at random within so many seconds."""
OTHERS_SHARE = 0.3
"""Of the kills, those of conversions and set-asides, half of them each."""
PERIODS = {"validation": SETTINGS["training"]["validate_every_steps"], "sampling": 20}


def kill_runs(work, num_kills, seed):
    """The part `kills`. Returns rows and whether the goal is met."""
    draw = random.Random(seed)
    training = SETTINGS["training"] | {"sample_every_steps": PERIODS["sampling"], "num_samples": 1}
    settings = SETTINGS | {"training": training}
    corpus = write_corpus(work / "corpus", 40)
    whole = TrainingRun(work, "whole", corpus, settings)
    startup_seconds = _run_whole(whole)
    others = int(OTHERS_SHARE * num_kills)
    kills, faults = Counter(), []
    faults += _told(_kill_conversions(work, others // 2, draw, kills))
    faults += _told(_kill_set_asides(work, whole, others - others // 2, draw, kills, startup_seconds))
    print(f"{dict(kills)}: {len(faults)} faults", flush=True)
    chains, taken_twice, differing = 0, 0, Counter()
    while sum(kills.values()) < num_kills:
        broken = TrainingRun(work, f"broken_{chains}", corpus, settings)
        chains += 1
        faults += _told(_kill_until_done(broken, num_kills, draw, kills, startup_seconds))
        taken_twice += broken.line_count() - len(whole.losses())
        faults += _told(_compare(whole, broken, chains, differing))
        so_far = f"{len(faults)} faults, {dict(differing) or 'nothing'} other than in the run left alone"
        print(f"run {chains} came to its end after {sum(kills.values())} kills in all: {so_far}", flush=True)
    if os.environ["TF_NUM_INTRAOP_THREADS"] == "1":
        faults += [f"{what} differ" for what in differing]
    moments = ", ".join(f"{count} {moment}" for moment, count in sorted(kills.items()))
    threads = f"{os.environ['TF_NUM_INTRAOP_THREADS']} threads"
    given = f"{sum(kills.values())} ({moments}), {chains} runs to their end, {taken_twice} steps taken twice, {threads}"
    found = f"{len(faults)} faults; {dict(differing) or 'no losses or weights'} differ from the run left alone"
    return [["kill -9", given, found, "0"]], not faults


def _told(faults):
    """The faults, each printed when it is found: a benchmark that is cut off has not found them for nothing."""
    for fault in faults:
        print(fault, flush=True)
        yield fault


def _run_whole(whole):
    """Runs one that nobody kills; returns the seconds before its first step."""
    began = time.monotonic()
    process = whole.start()
    while not whole.line_count():
        time.sleep(0.001)
    startup_seconds = time.monotonic() - began
    whole.finish(process)
    took = f"{time.monotonic() - began:.0f} s, first step after {startup_seconds:.1f} s"
    print(f"the run left alone: {len(whole.losses())} steps, {took}", flush=True)
    return startup_seconds


def _compare(whole, broken, number, differing):
    """Yields what is missing or too much in a run that was killed; counts in `differing` what is not bit for bit."""
    expected, found, ends = whole.losses(), broken.losses(), broken.ends()
    differing.update("losses" for key, values in found.items() if values != expected.get(key))
    differing.update("weights" for key, digest in whole.ends().items() if ends.get(key) != digest)
    yield from (f"chain {number}: step {key} is missing" for key in expected.keys() - found.keys())
    yield from (f"chain {number}: file {name}" for name in broken.files() ^ whole.files())


def _kill_until_done(broken, num_kills, draw, kills, startup_seconds):
    """Kills and resumes one run until it is done; yields what is damaged."""
    while True:
        left = num_kills - sum(kills.values())
        moment = draw.choice(TRAINING_MOMENTS) if left > 0 else None
        if not _run_and_kill(broken, moment, draw, startup_seconds):
            return
        kills[moment] += 1
        yield from _unreadable(broken)
        print(f"kill {sum(kills.values())}: {moment} at {broken.line_count()} lines", flush=True)


def _run_and_kill(broken, moment, draw, startup_seconds):
    """Starts the run and kills it at a moment of the given kind. Returns whether it was killed before it was done."""
    steps_before, wanted = broken.line_count(), draw.randrange(1, 25)
    delay = draw.uniform(0, LATEST_SECONDS.get(moment, startup_seconds))
    process = broken.start()
    if moment is None:
        broken.finish(process)
        return False
    began = time.monotonic()
    while not _has_come(moment, broken, broken.line_count() - steps_before, wanted):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"A resumed run ended by itself:\n{broken.log.read_text()[-3000:]}")
            return False
        if time.monotonic() - began > LONGEST_RUN_SECONDS:
            os.kill(process, signal.SIGKILL)
            raise RuntimeError(f"A run hung:\n{broken.log.read_text()[-3000:]}")
        time.sleep(0.0005)
    return _kill(process, delay)


def _has_come(moment, broken, new_steps, wanted):
    if moment in PERIODS:
        stage, step = broken.last_step()
        return new_steps and step % PERIODS[moment] == 0 and (moment != "sampling" or stage == "gpt")
    writing = moment == "writing" and new_steps >= wanted // 2 and broken.is_writing()
    return moment == "start-up" or (moment == "steps" and new_steps >= wanted) or writing


def _kill(process, delay):
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _unreadable(broken):
    for store, step in broken.checkpoints():
        try:
            store.verify(step)
        except CheckpointError as error:
            yield str(error)


def _kill_conversions(work, count, draw, kills):
    """Kills `myxtts convert --from-coqui`; yields outputs that are there and not whole."""
    source = write_release(work / "released")
    convert = ["convert", "--from-coqui", str(source / "model.pth"), "--output"]
    began = time.monotonic()
    _, status = os.waitpid(fork(lambda: myxtts([*convert, str(work / "converted")]), work / "convert.log"), 0)
    seconds = time.monotonic() - began
    if status:
        raise RuntimeError(f"The conversion failed:\n{(work / 'convert.log').read_text()[-3000:]}")
    expected = _digests(work / "converted")
    while kills["conversion"] < count:
        number = kills["conversion"]
        output = work / "conversions" / str(number)
        process = fork(lambda: myxtts([*convert, str(output)]), work / "convert.log")
        kills["conversion"] += _kill(process, draw.uniform(0, seconds))
        if output.exists() and _digests(output) != expected:
            yield f"conversion {number}: {sorted(_digests(output).items() ^ expected.items())[:4]}"


def _kill_set_asides(work, whole, count, draw, kills, startup_seconds):
    """Kills `--reset-training` around the moment it moves a run; yields what of it is not where it was, or aside."""
    before = {name: digest for name, digest in _digests(whole.home).items() if not name.startswith(OWN_LOGS)}
    while kills["set-aside"] < count:
        number = kills["set-aside"]
        reset = TrainingRun(work, f"reset_{number}", *whole.given)
        os.system(f"cp -a '{whole.home}' '{reset.home}'")
        process, began = reset.start("--reset-training"), time.monotonic()
        while time.monotonic() - began < 2 * startup_seconds and not list(reset.home.glob("*before_reset*")):
            time.sleep(0.0001)
        kills["set-aside"] += _kill(process, draw.choice((0.0, draw.uniform(0, 0.003), draw.uniform(0, 0.5))))
        with own_run_folder(reset.home):
            pass
        aside = reset.home / "before_reset"
        kept = _digests(aside if aside.is_dir() else reset.home)
        lost = [name for name, digest in before.items() if kept.get(name) != digest]
        if lost:
            yield f"set-aside {number}: {lost[:4]} of {len(lost)} are lost"


OWN_LOGS = ("train.log", "tensorboard", "clips_train.csv", "inspected_")
"""What the next run writes on in, or anew, before it sets anything aside."""


def _digests(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): digest_file(path) for path in folder.rglob("*") if path.is_file()}

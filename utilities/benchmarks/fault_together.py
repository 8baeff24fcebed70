"""Two at once, as processes: runs that begin in one folder, and commands that speak with one model, for `faults.py`."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fault_folders import CommandRun
from fault_runs import SETTINGS, write_corpus

from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import digest_file
from myxtts.storage.run_folder import own_run_folder

ROOT = Path(__file__).resolve().parents[2]
NUM_FULL_RUNS = 3
SAME_MOMENT_SECONDS = 1e-3
LEAD_SECONDS = 0.05
"""Between the start of the processes and the moment at which all of them begin."""
MYXTTS = "import sys; from myxtts.__main__ import main; sys.exit(main(sys.argv[1:]))"


def do_together(work, rounds):
    """The part `together`. Returns rows and whether the goal is met."""
    work.mkdir(parents=True)
    rows = []
    spreads, outcomes = [], Counter()
    while sum(spread < SAME_MOMENT_SECONDS for spread in spreads) < rounds and len(spreads) < 50 * rounds:
        told, spread = _begin_at_once(work / "folders" / str(len(spreads)))
        outcomes[told] += 1
        spreads.append(spread)
    close = sum(spread < SAME_MOMENT_SECONDS for spread in spreads)
    sound = close == rounds and outcomes == {("began", "refused"): len(spreads)}
    given = f"{len(spreads)} times two processes, {close} times within a millisecond"
    found = ", ".join(f"{count} times {' and '.join(told)}" for told, count in outcomes.items())
    rows.append(["runs that begin in one folder", given, found, "one begins"])
    corpus = write_corpus(work / "corpus", 40)
    whole = CommandRun(work, "whole", corpus, SETTINGS)
    whole.start()
    if whole.wait():
        raise RuntimeError(f"The run left alone failed:\n{whole.said()[-3000:]}")
    faults = [fault for number in range(NUM_FULL_RUNS) for fault in _train_at_once(work, number, whole, corpus)]
    rows.append(["the training command twice in one folder", f"{NUM_FULL_RUNS} times", faults or "one trains", "one"])
    spoken = _speak_at_once(work, whole.home, corpus / "wavs" / "0000.wav")
    rows.append(["two that speak with one model", "one output and two", spoken or "as one alone", "as one alone"])
    return rows, sound and not faults and not spoken


def _begin_at_once(folder):
    """Outcomes of processes that begin at one moment, sorted, and between which times they asked for the folder."""
    moment, processes = time.monotonic() + LEAD_SECONDS, []
    for _ in range(2):
        tell, listen = os.pipe()[::-1]
        hold, release = os.pipe()
        process = os.fork()
        if not process:
            os.close(release)
            _begin(folder, moment, tell, hold)
        os.close(tell)
        os.close(hold)
        processes.append((process, listen, release))
    told = [os.read(listen, 1000).decode().split("|") for _, listen, _ in processes]
    for process, listen, release in processes:
        os.close(release)
        os.close(listen)
        os.waitpid(process, 0)
    times = [float(at) for at, _ in told]
    return tuple(sorted(outcome for _, outcome in told)), max(times) - min(times)


def _begin(folder, moment, tell, hold):
    """Takes the folder at that moment, holds it until all have tried, and ends the process."""
    outcome = "died"
    try:
        time.sleep(max(0.0, moment - time.monotonic()))  # a processor that waits is free for the others
        at = time.monotonic()
        with own_run_folder(folder):
            os.write(tell, f"{at}|began".encode())
            os.read(hold, 1)
            outcome = None
    except CheckpointError as error:
        outcome = "refused" if str(error).startswith("Another run is writing to") else str(error)
    finally:
        if outcome:
            os.write(tell, f"{at}|{outcome}".encode())
        os._exit(0)


def _train_at_once(work, number, whole, corpus):
    """Yields what went wrong when the command was started twice in one folder."""
    first, second = (CommandRun(work, f"both_{number}", corpus, SETTINGS) for _ in range(2))
    second.log = work / f"both_{number}_other.log"
    for run in (first, second):
        run.start()
    codes = sorted((first.wait(), second.wait()))
    said = first.said() + second.said()
    if codes != [0, 2] or "Another run is writing to" not in said or "Traceback" in said:
        yield f"exit codes {codes}: {said[-500:]}"
    if first.ends() != whole.ends() or first.files() != whole.files():
        yield "the run that trained is not that left alone"


def _speak_at_once(work, model, voice):
    """What went wrong when two processes spoke with one model, into one file and into two."""
    before = {path: (digest_file(path), path.stat().st_mtime_ns) for path in model.rglob("*") if path.is_file()}
    given = ["say", "--checkpoint", str(model), "--text", "one two", "--reference-audio", str(voice), "--output"]

    def start(name):
        with open(work / "say.log", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-c", MYXTTS, *given, work / name], cwd=ROOT, stdout=log, stderr=log
            )

    alone = [start("alone.wav").wait()]
    together = [start(name) for name in ("same.wav", "same.wav")]
    codes = alone + [process.wait() for process in together]
    together = [start(name) for name in ("one.wav", "two.wav")]
    codes += [process.wait() for process in together]
    faults = [] if codes == 5 * [0] else [f"exit codes {codes}: {(work / 'say.log').read_text()[-500:]}"]
    names = {path.name for path in work.glob("*.wav")}
    if names != {"alone.wav", "same.wav", "one.wav", "two.wav"} or list(work.glob(".*.tmp")):
        faults.append(f"files {names}")
    elif len({digest_file(work / name) for name in names}) != 1:
        faults.append("not the same speech")
    after = {path: (digest_file(path), path.stat().st_mtime_ns) for path in model.rglob("*") if path.is_file()}
    return faults + ([] if after == before else ["the model's folder was changed"])

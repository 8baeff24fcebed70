"""Pulls the plug, damages files, feeds rubbish: is anything lost, and does anything bad get in?

    python utilities/benchmarks/faults.py                       all parts, the numbers of the goals
    python utilities/benchmarks/faults.py --only kills --kills 10

- `kills`: training runs are ended by `kill -9` at random moments (at start-up, between and in steps, while a checkpoint
  is written) and resumed by the same command until they are done. Every loss of every step must be, bit for bit, that
  of a run left alone, and so must the weights and optimizer state at the end. After each kill every checkpoint must be
  whole, and at the end no other file may be there.
- `damage`: the newest of two checkpoints is cut short, has a bit flipped or loses a file; it must be noticed and set
  aside, and the one before used.
- `inputs`: generated lists and WAV headers; accepted and rejected clips together must be those given.
- `corpus`: losses on a corpus with two per cent bad clips must be those on the corpus without them.
- `pause`: the share of the time that training waits for checkpoints at size `small` at the default frequency.

Each run is a fork of this process, which has imported TensorFlow and not started it; that spares each of them the
import and nothing else. Ends with exit code 1 when a goal is missed. `--append` adds the tables to docs/benchmarks.md.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Sums that several threads share may be added in another order each time.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

import numpy as np  # noqa: E402
import soundfile  # noqa: E402
import yaml  # noqa: E402
from fault_inputs import damage_checkpoints, judge_inputs  # noqa: E402
from hardware import append_table  # noqa: E402

from myxtts.cli import train  # noqa: E402
from myxtts.runs import stage as run_stage  # noqa: E402  brings TensorFlow, which takes most of a start
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore  # noqa: E402
from myxtts.training.callbacks import TensorBoardWriter  # noqa: E402

STAGES = ("dvae", "gpt")
SAMPLE_RATE = 22050
WORDS = "one two three four five six seven eight nine ten".split()
SETTINGS = {
    "model": dict(
        size="nano",
        max_text_tokens=24,
        max_audio_tokens=48,
        layers=1,
        width=16,
        heads=2,
        conditioning_blocks=1,
        conditioning_heads=2,
        num_latents=2,
        perceiver_heads=2,
        perceiver_head_width=8,
        num_codes=16,
        dvae_hidden=8,
        dvae_residual_blocks=1,
        codebook_width=8,
    ),
    "data": dict(
        max_seconds=1.5,
        max_text_length=20,
        batch_size=4,
        num_buckets=1,
        num_workers=2,
        pipeline_buffer_size=2,
        validation_share=0.1,
    ),
    "training": dict(
        dvae={"max_steps": 60, "crop_seconds": 0.4},
        gpt={"max_steps": 60},
        log_every_steps=1,
        validate_every_steps=15,
        checkpoint_every_steps=4,
        sample_every_steps=0,
        max_validation_batches=2,
    ),
}
LONGEST_RUN_SECONDS = 600.0
DEFAULT_CHECKPOINT_STEPS = 1000
LARGEST_PAUSE_SHARE = 0.02


class LossRecorder(TensorBoardWriter):
    """Also appends what each step gave to a file, in hexadecimal: `stage step loss gradient_norm`."""

    file = None

    def on_start(self, start):
        super().on_start(start)
        self._stage = start.stage
        self._descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_log(self, step, losses, timing):
        numbers = " ".join(float(losses[name]).hex() for name in ("loss", "gradient_norm"))
        os.write(self._descriptor, f"{self._stage} {step} {numbers}\n".encode())


class TrainingRun:
    """Forks the training command on a corpus; `home` is its checkpoint folder, with logs beside it."""

    def __init__(self, work, name, corpus, settings):
        self.home, self.losses_file = work / name, work / f"{name}.losses"
        self.log = work / f"{name}.log"
        config = work / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.argv = ["--train-data", str(corpus), "--config", str(config), "--checkpoint-dir", str(self.home)]

    def start(self):
        """Starts a process; returns its id."""
        sys.stdout.flush()
        process = os.fork()
        if process:
            return process
        code = 70
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            LossRecorder.file = self.losses_file
            run_stage.TensorBoardWriter = LossRecorder
            code = train.main(self.argv)
        except BaseException:  # the end of a process, where nobody else would print it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def finish(self, process):
        """Waits for a process that nobody kills; its exit code must be 0."""
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"A run ended with {os.waitstatus_to_exitcode(status)}:\n{self.log.read_text()[-3000:]}")

    def losses(self):
        """`{(stage, step): what it gave, each time that it was taken}`."""
        found = {}
        for line in self.losses_file.read_text().splitlines():
            stage, step, numbers = line.split(" ", 2)
            found.setdefault((stage, int(step)), set()).add(numbers)
        return found

    def line_count(self):
        """Steps logged so far."""
        return self.losses_file.read_bytes().count(b"\n") if self.losses_file.exists() else 0

    def is_writing(self):
        """Whether a checkpoint is half written at this moment."""
        for stage in STAGES:
            with contextlib.suppress(FileNotFoundError):
                if any(name.startswith(".step_") for name in os.listdir(self.home / stage)):
                    return True
        return False

    def checkpoints(self):
        return [
            (CheckpointStore(self.home / stage), step)
            for stage in STAGES
            for step in CheckpointStore(self.home / stage).steps()
        ]

    def ends(self):
        """Checksums of the last weights and optimizer state of each stage."""
        last = {store.folder.name: (store, step) for store, step in self.checkpoints()}
        return {
            (stage, name): store.digest(step, name)
            for stage, (store, step) in last.items()
            for name in ("model", "optimizer")
        }

    def files(self):
        """Names of the files that a run leaves, without logs."""
        return {
            path.relative_to(self.home).as_posix()
            for path in self.home.rglob("*")
            if not path.is_relative_to(self.home / "tensorboard")
        }


def write_corpus(folder, num_clips):
    """Writes clips of vibrating tones, half a second to a second long; returns the folder."""
    draw = np.random.default_rng(0)
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for number in range(num_clips):
        seconds = np.arange(int(draw.uniform(0.5, 1.0) * SAMPLE_RATE)) / SAMPLE_RATE
        pitch_hz = draw.uniform(90, 300)
        samples = sum(np.sin(2 * np.pi * pitch_hz * k * seconds + 3 * np.sin(30 * seconds)) / k for k in range(1, 12))
        noise = 0.01 * draw.standard_normal(len(seconds))
        soundfile.write(
            folder / "wavs" / f"{number:04d}.wav", 0.2 * samples * np.hanning(len(seconds)) + noise, SAMPLE_RATE
        )
        lines.append(f"{number:04d}|{' '.join(draw.choice(WORDS, 2))}|\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def kill_runs(work, num_kills, seed):
    """The part `kills`. Returns rows and whether the goal is met."""
    draw = random.Random(seed)
    corpus = write_corpus(work / "corpus", 40)
    whole = TrainingRun(work, "whole", corpus, SETTINGS)
    began = time.monotonic()
    process = whole.start()
    while not whole.line_count():
        time.sleep(0.001)
    startup_seconds = time.monotonic() - began
    whole.finish(process)
    expected, ends, files = whole.losses(), whole.ends(), whole.files()
    print(
        f"the run left alone: {len(expected)} steps, {time.monotonic() - began:.0f} s, first step after "
        f"{startup_seconds:.1f} s",
        flush=True,
    )
    kills, chains, faults, replayed = Counter(), 0, [], 0
    while sum(kills.values()) < num_kills:
        broken = TrainingRun(work, f"broken_{chains}", corpus, SETTINGS)
        done = False
        while not done:
            left = num_kills - sum(kills.values())
            moment = draw.choice(("start-up", "steps", "writing")) if left else None
            done = not _run_and_kill(broken, moment, draw, startup_seconds)
            if done:
                break
            kills[moment] += 1
            faults += _unreadable(broken)
            print(f"kill {sum(kills.values())}: {moment}, chain {chains} at {broken.line_count()} lines", flush=True)
        chains += 1
        found = broken.losses()
        faults += [
            f"chain {chains}: step {key} gave {values}" for key, values in found.items() if values != expected.get(key)
        ]
        faults += [f"chain {chains}: step {key} is missing" for key in expected.keys() - found.keys()]
        replayed += broken.line_count() - len(expected)
        faults += [
            f"chain {chains}: {key} ended otherwise" for key, digest in ends.items() if broken.ends().get(key) != digest
        ]
        faults += [f"chain {chains}: file {name}" for name in broken.files() ^ files]
    for fault in faults[:20]:
        print(fault, flush=True)
    moments = ", ".join(f"{count} {moment}" for moment, count in sorted(kills.items()))
    return [
        [
            "kill -9",
            f"{sum(kills.values())} ({moments}) in {chains} runs, {replayed} steps taken twice",
            f"{len(faults)} losses, weights, checkpoints or files not as they should be",
            "0",
        ]
    ], not faults


def _run_and_kill(broken, moment, draw, startup_seconds):
    """Starts the run and kills it at a moment of the given kind. Returns whether it was killed before it was done."""
    steps_before, wanted = broken.line_count(), draw.randrange(1, 25)
    delay = draw.uniform(0, {"start-up": startup_seconds, "steps": 0.05, "writing": 0.03}.get(moment, 0.0))
    process = broken.start()
    if moment is None:
        broken.finish(process)
        return False
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"A resumed run ended by itself:\n{broken.log.read_text()[-3000:]}")
            return False
        new_steps = broken.line_count() - steps_before
        if (
            moment == "start-up"
            or (moment == "steps" and new_steps >= wanted)
            or (moment == "writing" and new_steps >= wanted // 2 and broken.is_writing())
        ):
            break
        if time.monotonic() - began > LONGEST_RUN_SECONDS:
            os.kill(process, signal.SIGKILL)
            raise RuntimeError(f"A run hung:\n{broken.log.read_text()[-3000:]}")
        time.sleep(0.0005)
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


def train_on_bad_corpus(work):
    """The part `corpus`: 150 clips and three more that are bad. Returns rows and whether the goal is met."""
    good, bad = write_corpus(work / "good", 150), write_corpus(work / "bad", 150)
    lines = (bad / "metadata.csv").read_text().splitlines()
    samples = soundfile.read(bad / "wavs" / "0000.wav")[0]
    soundfile.write(
        bad / "wavs" / "nan.wav", np.where(np.arange(len(samples)) == 99, np.nan, samples), SAMPLE_RATE, "FLOAT"
    )
    (bad / "wavs" / "cut.wav").write_bytes((bad / "wavs" / "0001.wav").read_bytes()[:5000])
    soundfile.write(bad / "wavs" / "silent.wav", 0 * samples, SAMPLE_RATE)
    for place, name in ((150, "silent"), (70, "cut"), (0, "nan")):
        lines.insert(place, f"{name}|one two|")
    (bad / "metadata.csv").write_text("\n".join(lines) + "\n")
    stages = {stage: {**SETTINGS["training"][stage], "max_steps": 20} for stage in STAGES}
    settings = {**SETTINGS, "training": {**SETTINGS["training"], **stages}}
    found = []
    for name, corpus in (("on_good", good), ("on_bad", bad)):
        training = TrainingRun(work, name, corpus, settings)
        training.finish(training.start())
        found.append((training.losses(), training.ends()))
    report = (work / "on_bad" / "clips_train.csv").read_text().splitlines()
    named = sum(",rejected," in line for line in report)
    same = sum(found[0][0].get(key) == values for key, values in found[1][0].items())
    ok = found[0] == found[1] and named == 3
    return [
        [
            "corpus with 2 % bad clips",
            f"153 clips, {named} rejected by name",
            f"{same} of {len(found[0][0])} losses equal, end {'equal' if found[0][1] == found[1][1] else 'different'}",
            "all",
        ]
    ], ok


def measure_pause(work):
    """The part `pause`, in a process of its own. Returns rows and whether the goal is met."""
    reader, writer = os.pipe()
    if not (process := os.fork()):
        code = 70
        try:
            from checkpoint_pause import measure

            share, row = measure(write_corpus(work / "pause_corpus", 20), work / "pause", DEFAULT_CHECKPOINT_STEPS)
            os.write(writer, yaml.safe_dump([share, row]).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError("The pause could not be measured; see above.")
    share, row = yaml.safe_load(answer)
    return [[*row, "2 %"]], share <= LARGEST_PAUSE_SHARE


def main(argv=None):
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kills", "damage", "inputs", "corpus", "pause")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", action="store_true", help="add the table to docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    rows, missed = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        calls = {
            "kills": lambda: kill_runs(work, arguments.kills, arguments.seed),
            "damage": lambda: damage_checkpoints(work / "damage", arguments.damages, arguments.seed),
            "inputs": lambda: judge_inputs(work / "inputs", arguments.lines, arguments.seed),
            "corpus": lambda: train_on_bad_corpus(work),
            "pause": lambda: measure_pause(work),
        }
        for part in arguments.only:
            began = time.monotonic()
            found, ok = calls[part]()
            rows += [[*row, f"{time.monotonic() - began:.0f} s"] for row in found]
            missed += [] if ok else [part]
            print(f"{part}: {'as it should be' if ok else 'NOT AS IT SHOULD BE'}: {found}", flush=True)
    command = "python " + " ".join(["utilities/benchmarks/faults.py", *(sys.argv[1:] if argv is None else argv)])
    append_table("Faults", command, ["fault", "given", "found", "goal", "took"], rows, arguments.append)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

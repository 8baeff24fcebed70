"""Training runs as forks of this process, and the corpus they train on, for the benchmarks of faults."""

import contextlib
import os
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Sums that several threads share may be added in another order each time.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np  # noqa: E402
import soundfile  # noqa: E402
import yaml  # noqa: E402
from tiny import tiny_run_config  # noqa: E402  of the tests

from myxtts.cli import train  # noqa: E402
from myxtts.runs import stage as run_stage  # noqa: E402  brings TensorFlow, which takes most of a start
from myxtts.storage.checkpoint import CheckpointStore  # noqa: E402
from myxtts.training.watching.callbacks import TensorBoardWriter  # noqa: E402

STAGES = ("dvae", "gpt")
SAMPLE_RATE = 22050
WORDS = "one two three four five six seven eight nine ten".split()
SETTINGS = tiny_run_config(
    model={"layers": 1, "num_latents": 2},
    data={"num_buckets": 1, "validation_share": 0.1},
    dvae={"max_steps": 60, "crop_seconds": 0.4},
    gpt={"max_steps": 60},
    training=dict(
        leave_out=("speaker", "decoder"),
        log_every_steps=1,
        validate_every_steps=15,
        checkpoint_every_steps=4,
        max_validation_batches=2,
    ),
).to_dict()


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


def fork(main, log_path):
    """Calls `main` in a process of its own that logs to a file and ends with its exit code; returns its id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = main()
    except BaseException:  # the end of a process, where nobody else would print it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class TrainingRun:
    """Forks the training command on a corpus; `home` is its checkpoint folder, with logs beside it."""

    def __init__(self, work, name, corpus, settings):
        self.given = corpus, settings
        self.home, self.losses_file = work / name, work / f"{name}.losses"
        self.log = work / f"{name}.log"
        config = work / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.argv = ["--train-data", str(corpus), "--config", str(config), "--checkpoint-dir", str(self.home)]

    def start(self, *more):
        """Starts a process, with more arguments if any; returns its id."""

        def main():
            LossRecorder.file = self.losses_file
            run_stage.TensorBoardWriter = LossRecorder
            return train.main([*self.argv, *more])

        return fork(main, self.log)

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

    def last_step(self):
        """Stage and step of the last line of the log of losses."""
        lines = self.losses_file.read_text().splitlines() if self.losses_file.exists() else []
        stage, step = lines[-1].split(" ")[:2] if lines else ("", 0)
        return stage, int(step)

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
        """Names of the files that a run leaves, without logs, and without samples: one that is being spoken when the
        run is killed is not spoken again."""
        found = {path.relative_to(self.home) for path in self.home.rglob("*")}
        return {path.as_posix() for path in found if path.parts[0] not in ("tensorboard", "samples")}


def write_corpus(folder, num_clips, between_seconds=(0.5, 1.0)):
    """Writes clips of vibrating tones of a length between two; returns the folder."""
    draw = np.random.default_rng(0)
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for number in range(num_clips):
        seconds = np.arange(int(draw.uniform(*between_seconds) * SAMPLE_RATE)) / SAMPLE_RATE
        pitch_hz = draw.uniform(90, 300)
        samples = sum(np.sin(2 * np.pi * pitch_hz * k * seconds + 3 * np.sin(30 * seconds)) / k for k in range(1, 12))
        noise = 0.01 * draw.standard_normal(len(seconds))
        soundfile.write(
            folder / "wavs" / f"{number:04d}.wav", 0.2 * samples * np.hanning(len(seconds)) + noise, SAMPLE_RATE
        )
        lines.append(f"{number:04d}|{' '.join(draw.choice(WORDS, 2))}|\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder

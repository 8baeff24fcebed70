"""Runs `myxtts` commands, including training, as child processes, and reads the state of a run from its folder."""

import glob
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from myxtts.apps.studio.texts import PageError
from myxtts.apps.studio.training_form import OWN, config_in
from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import lock, remove_leftovers
from myxtts.storage.run_folder import METRICS, TAKEN_FROM, read_metrics

MOST_READ_BYTES, MOST_SHOWN_CHARACTERS = 200_000, 20_000
POLL_SECONDS = 0.5
ENDING_SECONDS = 60.0
"""Maximum time that a new training run waits for the process of the previous one to exit."""
FIGURES = ("loss", "avg_ms", "stall", "host_mb", "model_gpu_mb")
"""Measurements in `metrics.jsonl` that the page shows, in this order."""
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process after SIGTERM: killed by the signal, or ended by its own handler."""
trainings: dict[Path, subprocess.Popen] = {}
"""Training processes that this server started, by the folder of the run."""


class Tasks:
    """Long-running commands, at most one at a time for each name. They continue if the page is closed."""

    def __init__(self):
        self._last: dict[str, tuple[tuple[str, ...], subprocess.Popen, BinaryIO]] = {}
        self.states: dict[str, tuple[str, float]] = {}  # `working` or `cancelling`, and the time of the start
        self._lock = threading.Lock()

    def follow(self, name: str, *arguments: str) -> Iterator[str]:
        """Starts a `myxtts` command under `name`, unless it already runs; yields its output so far every `POLL_SECONDS`
        and at the end. Without `arguments`, follows the last command under this name, even if it has ended. Raises
        `UserError` if a different command is running under this name, or if the command fails or is cancelled."""
        with self._lock:
            if arguments and arguments != self.arguments(name):
                self.require_free(name)
                output = tempfile.TemporaryFile()
                self._last[name] = arguments, _start(arguments, output), output
                self.states[name] = "working", time.monotonic()
            elif name not in self._last:
                return
            _, process, output = self._last[name]
        folder = self.folders().get(name)
        while (code := process.poll()) is None:
            yield _printed(output)
            time.sleep(POLL_SECONDS)
        if code in ENDED:
            if folder:
                remove_leftovers(folder.parent, glob.escape(folder.name[:40]))
            raise PageError("was_cancelled")
        if code and (name, code) != ("evaluate", 3):  # 3: the report is written, without one of the models
            raise UserError(sentence_of(_printed(output)))
        yield _printed(output)

    def arguments(self, name: str) -> tuple[str, ...]:
        """Returns the arguments of the command that is running under a name, or () if none is running."""
        arguments, process, _ = self._last.get(name, ((), None, None))
        return arguments if process and process.poll() is None else ()

    def require_free(self, name: str) -> None:
        """Raises `UserError` if a command is running under this name. The message names the command's output folder."""
        if self.arguments(name):
            raise PageError("task_runs", self.folders().get(name, Path(name)).name.strip("_"))

    def folders(self) -> dict[str, Path]:
        """Returns `{task name: output folder}` of running commands; for `plan`, the folder of the planned run."""
        flags = ("--output=", "--checkpoint-dir=")
        words = {name: word for name in [*self._last] for word in self.arguments(name) if word.startswith(flags)}
        return {name: Path(word.partition("=")[2]) for name, word in words.items()}

    def cancel(self, name: str) -> bool:
        """Tells the command of this name to end, which may take a whole clip or step. Returns False if none runs."""
        with self._lock:
            if is_running := bool(self.arguments(name)):
                self.states[name] = "cancelling", self.states[name][1]
                os.killpg(self._last[name][1].pid, signal.SIGTERM)
            return is_running


def start_training(folder: Path, flags: Sequence[str]) -> None:
    """Starts `myxtts train` so that it outlives the server. Raises `UserError` if a run is training in `folder`."""
    require_free(folder)
    with open(output_path(folder), "ab") as output:
        end = time.monotonic() + ENDING_SECONDS
        while True:
            try:
                lock(output.fileno())  # kept by the new process, which locks the folder only later
                break
            except BlockingIOError:  # a run that has ended keeps the lock until its process exits
                require_free(folder)
                if time.monotonic() > end:
                    raise PageError("trains_already", folder.name) from None
                time.sleep(POLL_SECONDS)
            except OSError:  # the file system has no locks
                break
        output.truncate(0)
        trainings[folder.resolve()] = _start(["train", "--checkpoint-dir", str(folder), *flags], output)


def stop_training(folder: Path) -> None:
    """Stops the training run in a folder. The run saves a checkpoint after its current step, and then ends. If the run
    has not begun its first step, it ends immediately. Raises `UserError` if no run is training in the folder."""
    if (process := process_of(folder)) is None:
        raise PageError("no_training", folder.name)
    # If the server was started in the background (`&`), its runs ignore SIGINT until training begins.
    os.kill(process, signal.SIGTERM)


def require_free(folder: Path) -> None:
    """Raises `UserError` if a run is training in a folder."""
    if process_of(folder):
        raise PageError("trains_already", folder.name)


def process_of(folder: Path) -> int | None:
    """Returns the id of the process that is training in a folder, or None. Another server may have started it."""
    process = trainings.get(folder.resolve())
    own = process.pid if process is not None and process.poll() is None else None
    with suppress(OSError):  # no such folder, or no /proc
        status = folder.stat()
        for fields in map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines()):
            if "FLOCK" in fields and fields[-3].rpartition(":")[2] == str(status.st_ino):
                # A file on another file system may have the same inode number.
                with suppress(OSError):  # the process has ended, or belongs to another user
                    if any(os.path.samestat(status, one.stat()) for one in Path(f"/proc/{fields[-4]}/fd").iterdir()):
                        return int(fields[-4])
    return own


def failure(folder: Path) -> str | None:
    """Returns the error message of the last training run that the page started in a folder; None if it did not fail."""
    process, path, metrics = trainings.get(folder.resolve()), output_path(folder), folder / METRICS
    went_on = status_of(metrics).st_mtime > status_of(path).st_mtime  # in a training that was started elsewhere
    if went_on if process is None else process.poll() in (None, 0, *ENDED):
        return None
    output = _end_of(path)
    return sentence_of(output) if process is not None or "\nError: " in f"\n{output}" else None


def output_path(folder: Path) -> Path:
    """Returns the path of the file with the output of a training run that the page started."""
    return folder.with_name(f"{folder.name}.output.txt")


def status_of(path: Path) -> os.stat_result:
    """Returns the `lstat` of a file or link. If the path does not exist, all values of the result are 0."""
    with suppress(OSError):
        return path.lstat()
    return os.stat_result((0,) * 10)


def sentence_of(output: str) -> str:
    """Returns the last error message in the output of a command, or its last line if there is no error message."""
    _, found, error = f"\n{output.strip()}".rpartition("\nError: ")
    return (error if found else error.rpartition("\n")[2]) or "The command printed no output."


def _start(arguments, output):
    """Starts a `myxtts` command in a new session, so that the command outlives the server of the page."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "110", "PYTHONUNBUFFERED": "1"}
    options = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    return subprocess.Popen([sys.executable, "-m", "myxtts", *arguments], env=environment, **options)


def _end_of(path):
    """Returns the end of a text file, cleaned by `_printed`; "" if the file does not exist."""
    with suppress(OSError), open(path, "rb") as file:
        return _printed(file)
    return ""


def _printed(output) -> str:
    """Returns the end of a command's output. Omits old states of progress bars."""
    size = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), MOST_READ_BYTES, max(0, size - MOST_READ_BYTES)).decode(errors="replace")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(lines).strip()[-MOST_SHOWN_CHARACTERS:]


class RunView:
    """State of a run for display, read from its folder when the object is created.

    Attributes:
        failed: Error message of a failed training run; None if it did not fail.
        state: `training`, `failed`, `finished`, `stopped` or, before the first training, `not training`.
        stages: Names of the stages that the run trains, in the order of training.
        metrics: Lines of `metrics.jsonl`, each with `kind`, `stage`, `step` and measurements; `loss` is the main loss.
        log: The end of `train.log`.
        sample: The newest audio file of a synthesized or resynthesized validation clip; None if there is none.
        checkpoints: Steps at which checkpoints were saved, by stage.
    """

    def __init__(self, folder: Path):
        self.running: bool = process_of(folder) is not None
        self.failed: str | None = None if self.running else failure(folder)
        stores = {part: CheckpointStore(folder / part) for part in STAGES if (folder / part).is_dir()}
        states = {part: state for part, store in stores.items() if (state := store.newest_state())}
        finished = {part for part, state in states.items() if state.get("finished")}
        self.stages: list[str] = []
        if (folder / OWN).is_file():
            training = config_in(OWN, folder).training
            omitted = {part for part in finished if TAKEN_FROM in states[part]} | {*training.leave_out} - {*states}
            self.stages = [one for one in STAGES if one not in omitted] if training.stage == "all" else [training.stage]
        self.metrics: list[dict] = read_metrics(folder)
        for line in self.metrics:
            line["loss"] = line.get(STAGES[line["stage"]].main_loss) if line["stage"] in STAGES else None
        self.log: str = _end_of(folder / "train.log")
        sounds = [path for path in (folder / "samples").glob("*.wav") if not path.name.startswith("recording_")]
        self.sample: Path | None = max(sounds, key=lambda path: status_of(path).st_mtime, default=None)
        self.checkpoints: dict[str, list[int]] = {part: store.steps() for part, store in stores.items()}
        is_done = not self.running and self.stages and finished.issuperset(self.stages)
        idle = "finished" if is_done else "stopped" if self.metrics else "not training"
        self.state: str = "training" if self.running else "failed" if self.failed else idle

    def facts(self, texts: dict[str, str]) -> list[str]:
        """Returns the progress and the latest measurements as short texts in the language of `texts`."""
        newest = self.metrics[-1] if self.metrics else dict(stage=None)
        stage, step, total = newest["stage"], newest.get("step"), newest.get("total_steps", 0)
        facts = [texts["stage_of"].format(n, len(self.stages)) for n, one in enumerate(self.stages, 1) if one == stage]
        since = max((n for n, one in enumerate(self.metrics) if self.running and one["kind"] == "start"), default=0)
        lines = [one for one in self.metrics[since:] if one["kind"] == "training" and one["stage"] == stage]
        last = {name: value for name, value in lines[-1].items() if value is not None} if lines else {}
        # Until there are measurements, the log has the step, about once a minute.
        logged = self.log.rpartition("\n")[2].split(" ", 2)[-1] if self.running and not lines else ""
        if stage and not logged.startswith(f"{stage} step "):
            facts.append(texts["step_of"].format(stage, max(step or 0, *self.checkpoints.get(stage, ()), 0), total))
        facts += [texts["value"].format(logged)] * bool(logged)
        if self.running and "steps_per_second" in last:
            left = last.get("stage_seconds_left", (total - step) / last["steps_per_second"])
            facts.append(texts["left"].format(tqdm.format_interval(left)))
            if last.get("seconds_left", left) > left:
                facts.append(texts["left_in_run"].format(tqdm.format_interval(last["seconds_left"])))
        facts += [texts[name].format(last[name]) for name in FIGURES if name in last]
        if self.state == "finished":
            rows = [one for one in self.metrics if one["kind"] in ("start", "training")]
            spent = sum(max(0, b["step"] - a["step"]) * (b.get("avg_ms") or 0) for a, b in zip(rows, rows[1:])) / 1000
            facts += [texts["took"].format(tqdm.format_interval(spent))] * bool(spent) + [texts["go_on"]]
        return facts

    def curves(self) -> dict[str, list[tuple[int, float, str]]]:
        """Returns the loss curves by stage as points (step, loss, kind), where kind is `training` or `validation`."""
        found = {}
        for line in self.metrics:
            points = found.setdefault((line["stage"], line["kind"]), [])
            while points and points[-1][0] >= line["step"]:
                points.pop()  # the run was rolled back to an earlier step
            points += [(line["step"], line["loss"], line["kind"])] * (line["loss"] is not None)
        curves = {}
        for stage, points in ((stage, points) for (stage, _), points in found.items() if points):
            curves.setdefault(stage, []).extend(points[:: -(-len(points) // 600) or 1])  # at most 600
        return curves

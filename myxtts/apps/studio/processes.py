"""The `myxtts` commands as processes, and the process that trains in a folder."""

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

from myxtts.config.checks import UserError
from myxtts.storage.run_folder import METRICS

MOST_SHOWN_CHARACTERS = 20_000
POLL_SECONDS = 0.5
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a terminated process."""
_trainings: dict[Path, subprocess.Popen] = {}
"""Processes started here, by folder."""


def command(*arguments: str) -> list[str]:
    """A command line of `myxtts`, under this Python."""
    return [sys.executable, "-m", "myxtts", *arguments]


class Tasks:
    """Long commands, one at a time under each name; they can be cancelled and outlive the page."""

    def __init__(self):
        self._running: dict[str, subprocess.Popen] = {}
        self._lock = threading.Lock()

    def follow(self, name: str, *arguments: str) -> Iterator[str]:
        """Runs a command of `myxtts`; yields its output so far, at the end the whole.

        Raises:
            UserError: A task of that name is running, or the command failed or was cancelled.
        """
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if name in self._running and self._running[name].poll() is None:
                    raise UserError("The same task is running already. Wait for it or cancel it.")
                process = self._running[name] = _start(command(*arguments), output)
            shown = ""
            while (code := process.poll()) is None:
                time.sleep(POLL_SECONDS)
                if (now := _printed(output)) != shown:
                    yield (shown := now)
            if code in ENDED:
                raise UserError(f"myxtts {arguments[0]} was cancelled.")
            shown = _printed(output)
            if code not in (0, 1):
                raise UserError(sentence_of(shown))
            yield shown

    def cancel(self, name: str) -> None:
        """Terminates a command with its children; raises `UserError` if none of that name is running."""
        with self._lock:
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                raise UserError("There is nothing to cancel.")
            os.killpg(process.pid, signal.SIGTERM)


def start_training(folder: Path, flags: Sequence[str]) -> None:
    """Starts `myxtts train`, which outlives the page and its server; see `require_free`."""
    require_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(output_path(folder), "wb") as output:
        _trainings[folder.resolve()] = _start(command("train", "--checkpoint-dir", str(folder), *flags), output)


def stop_training(folder: Path) -> None:
    """Stops a run after its step and a checkpoint; before the first step at once.

    By SIGTERM: children of a server in the background of a shell ignore SIGINT until they take steps.

    Raises:
        UserError: No run trains there.
    """
    process = process_of(folder)
    if process is None:
        raise UserError(f"Nothing trains in {folder} now.")
    os.kill(process, signal.SIGTERM)


def require_free(folder: Path) -> None:
    """Raises `UserError` if a run trains in a folder."""
    if process_of(folder):
        raise UserError(f"A run trains in {folder} already. Stop it first, or choose another name.")


def process_of(folder: Path) -> int | None:
    """As `trainer_of`, or a process started here that has not locked the folder yet."""
    process = _trainings.get(folder.resolve())
    return trainer_of(folder) or (process.pid if process is not None and process.poll() is None else None)


def trainer_of(folder: Path) -> int | None:
    """Id of the process that trains in a folder, whoever started it; None if there is none.

    A run holds a lock on its folder, see `storage.run_folder`; the kernel lists the holders.
    """
    try:
        status = folder.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for fields in map(str.split, locks):
        if "FLOCK" in fields and fields[-3].rpartition(":")[2] == str(status.st_ino):
            # The inode number may be that of a file on another file system.
            with suppress(OSError):  # it ended, or is somebody else's
                if any(os.path.samestat(status, one.stat()) for one in Path(f"/proc/{fields[-4]}/fd").iterdir()):
                    return int(fields[-4])
    return None


def failure(folder: Path) -> str | None:
    """The error of the training that the page started in a folder; None if it did not fail.

    If an earlier server started it, the exit code is unknown: the last error it printed counts, unless the run
    continued since.
    """
    process, path, metrics = _trainings.get(folder.resolve()), output_path(folder), folder / METRICS
    if process is not None and process.poll() in (None, 0, *ENDED):
        return None
    try:
        if process is None and metrics.exists() and metrics.stat().st_mtime > path.stat().st_mtime:
            return None
        output = path.read_text(encoding="utf-8", errors="replace")[-MOST_SHOWN_CHARACTERS:]
    except OSError:
        return None
    has_error = any(line.startswith("Error: ") for line in output.splitlines())
    return sentence_of(output) if has_error or process is not None else None


def output_path(folder: Path) -> Path:
    """File with the output of a training that the page started."""
    return folder.with_name(f"{folder.name}.output.txt")


def sentence_of(output: str) -> str:
    """Returns the last error in the output of a command."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
    error = lines[starts[-1] :] if starts else lines[-1:]
    return "\n".join(error).removeprefix("Error: ") or "The command printed nothing."


def _start(words, output):
    """Starts a process in its own session, so that it outlives the page's server."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "110", "PYTHONUNBUFFERED": "1"}
    streams = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    return subprocess.Popen(words, env=environment, start_new_session=True, **streams)


def _printed(output) -> str:
    """The end of the output; of overwritten lines the last text."""
    end = output.seek(0, os.SEEK_END)
    start = max(0, end - MOST_SHOWN_CHARACTERS)
    text = os.pread(output.fileno(), MOST_SHOWN_CHARACTERS, start).decode(errors="replace")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")).strip()

"""The ordinary commands as processes of their own, and who trains in a folder now."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from myxtts.config.checks import UserError

OUTPUT_SUFFIX = ".output.txt"
"""Of the file beside a run's folder with what its process printed."""
MOST_SHOWN_CHARACTERS = 20_000


def command(*arguments: str) -> list[str]:
    """A command line of `myxtts`, under this Python."""
    return [sys.executable, "-m", "myxtts", *arguments]


def said(*arguments: str, seconds: float = 600.0) -> str:
    """Runs a command to its end; returns what it printed.

    Raises:
        UserError: It failed; the sentence is the command's own.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "110"}
    try:
        done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        raise UserError(f"myxtts {arguments[0]} took longer than {seconds:g} s and was ended.") from None
    if done.returncode not in (0, 1):
        raise UserError(sentence_of(done.stderr or done.stdout))
    return done.stdout[-MOST_SHOWN_CHARACTERS:]


def sentence_of(output: str) -> str:
    """The error that a command ended with, from what it printed."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
    told = lines[starts[-1] :] if starts else lines[-1:]
    return "\n".join(told).removeprefix("Error: ") or "The command ended without a word."


def trainer_of(folder: Path) -> int | None:
    """Process that trains in a folder now, whoever started it; None where there is none.

    A run locks its folder for as long as it lives, see `storage.run_folder`; the kernel says who holds the lock.
    """
    try:
        status = folder.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in locks:
        fields = line.split()
        is_near = "FLOCK" in fields and fields[-3].rpartition(":")[2] == str(status.st_ino)
        if is_near and _has_open(int(fields[-4]), status):
            return int(fields[-4])
    return None


def _has_open(process, status):
    """Whether a process has the file open: another file system may have one of the same number."""
    try:
        return any(os.path.samestat(status, one.stat()) for one in Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # it ended, or is somebody else's
        return False


def process_of(folder: Path) -> int | None:
    """As `trainer_of`, and one that this process started and that has not come so far as to lock the folder."""
    process = _started.get(folder.resolve())
    return trainer_of(folder) or (process.pid if process is not None and process.poll() is None else None)


def require_free(folder: Path) -> None:
    """Raises `UserError` where a run trains already."""
    if process_of(folder):
        raise UserError(f"A run trains in {folder} already. Stop it first, or name another folder.")


def start_training(folder: Path, flags: Sequence[str]) -> None:
    """Starts `myxtts train` in a session of its own, which lives on when the page or its server ends.

    Raises:
        UserError: A run trains there already.
    """
    require_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(output_path(folder), "w", encoding="utf-8") as output:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        options = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        process = subprocess.Popen(
            command("train", "--checkpoint-dir", str(folder), *flags), env=environment, **options
        )
    _started[folder.resolve()] = process


def stop_training(folder: Path) -> None:
    """Lets the run in a folder finish its step and write a checkpoint, as Ctrl-C does.

    Raises:
        UserError: Nothing trains there.
    """
    process = process_of(folder)
    if process is None:
        raise UserError(f"Nothing trains in {folder} now.")
    os.kill(process, signal.SIGINT)


def memory_of(process: int) -> float | None:
    """Resident memory of a process in MB; None where the system does not say it."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), None)


def failure(folder: Path) -> str | None:
    """The sentence that the training which the page started in a folder failed with; None while it did not.

    Of one that another server started, whose end nobody saw, the error that it printed last counts.
    """
    process = _started.get(folder.resolve())
    if process is not None and process.poll() in (None, 0):
        return None
    path, log = output_path(folder), folder / "train.log"
    try:
        if process is None and log.exists() and log.stat().st_mtime > path.stat().st_mtime:
            return None  # it was continued since, by somebody else
        output = path.read_text(encoding="utf-8", errors="replace")[-MOST_SHOWN_CHARACTERS:]
    except OSError:
        return None
    told = any(line.startswith("Error: ") for line in output.splitlines())
    return sentence_of(output) if told or process is not None else None


def output_path(folder: Path) -> Path:
    """Where a training started here prints to."""
    return folder.with_name(folder.name + OUTPUT_SUFFIX)


_started: dict[Path, subprocess.Popen] = {}

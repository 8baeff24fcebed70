"""What a run's folder tells of its training, whoever trains there and whether anybody does."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from myxtts.apps.studio.processes import failure, memory_of, process_of
from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.storage.checkpoint import CheckpointStore

LOG_BYTES = 2**20
LOG_LINES = 200
_STEP = re.compile(r"INFO (\w+) step (\d+)/(\d+) \| (.*)")
_NUMBER = re.compile(r"(\w+) ([-\d.e+]+)(?: \||$)")
_STEP_TIME = re.compile(r"Avg: ([\d.]+)ms")
_STALL = re.compile(r"stall ([\d.]+)%")


@dataclass(frozen=True)
class RunView:
    """State of a run."""

    folder: Path
    running: bool
    failed: str | None
    """The sentence that it failed with."""
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Step reached and steps asked for, by stage."""
    losses: list[dict] = field(default_factory=list)
    """Of each log line: stage, step, loss, and step_ms and stall_percent where they are told."""
    log: str = ""
    """Its last lines."""
    samples: tuple[Path, ...] = ()
    """Spoken sample sentences, newest first."""
    checkpoints: dict[str, list[int]] = field(default_factory=dict)
    """Steps of the checkpoints, by part."""

    memory_mb: float | None = None
    """That its process takes now, of the machine's memory."""

    @property
    def state(self) -> str:
        """One word."""
        return "training" if self.running else "failed" if self.failed else "not training"

    @property
    def summary(self) -> str:
        """One line."""
        return " · ".join([self.state, *self.facts])

    @property
    def facts(self) -> list[str]:
        """What is known of its progress, in few words each."""
        parts = [f"{stage} {step}/{total}" for stage, (step, total) in self.progress.items()]
        last = self.losses[-1] if self.losses else {}
        parts += [f"loss {last['loss']:.4f}"] if "loss" in last else []
        parts += [f"{last['step_ms']:.0f} ms a step"] if "step_ms" in last else []
        parts += [f"stall {last['stall_percent']:.0f} %"] if "stall_percent" in last else []
        parts += [f"memory {self.memory_mb:,.0f} MB"] if self.memory_mb else []
        return parts


def view_run(folder: Path) -> RunView:
    """Reads a run's folder; one that is not there yet has nothing to tell but a failure."""
    log = _tail(folder / "train.log")
    losses = [found for line in log.splitlines() if (found := _logged(line))]
    progress = {one["stage"]: (one["step"], one["total"]) for one in losses}
    samples = sorted((folder / "samples").glob("step_*.wav"), key=lambda path: path.name, reverse=True)
    stores = {part: CheckpointStore(folder / part).steps() for part in STAGES if (folder / part).is_dir()}
    lines = "\n".join(log.splitlines()[-LOG_LINES:])
    trainer = process_of(folder)
    failed = None if trainer else failure(folder)
    memory_mb = memory_of(trainer) if trainer else None
    return RunView(folder, trainer is not None, failed, progress, losses, lines, tuple(samples), stores, memory_mb)


def runs_in(folder: Path) -> list[str]:
    """Names of the runs in a folder, newest first."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()] if folder.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def run_folder(home: Path, name: str) -> Path:
    """The folder of a run by its name; raises `UserError` for what is no name."""
    return named_folder(home, name, "run")


def named_folder(home: Path, name: str, what: str) -> Path:
    """`home / name`.

    Args:
        what: That has the name, for the error.

    Raises:
        UserError: The name could lead elsewhere.
    """
    if not re.fullmatch(r"[^\W_][\w .-]{0,99}", name or ""):
        rule = f"A {what}'s name has letters, digits, spaces, _, - and . and begins with a letter or digit"
        raise UserError(f"{rule}. Received: {name!r}.")
    return home / name


def _logged(line):
    match = _STEP.search(line)
    if not match:
        return None
    numbers = {name: float(value) for name, value in _NUMBER.findall(match[4]) if _is_number(value)}
    told = {"stage": match[1], "step": int(match[2]), "total": int(match[3])}
    told |= {"loss": numbers["loss"]} if "loss" in numbers else {}
    for name, pattern in (("step_ms", _STEP_TIME), ("stall_percent", _STALL)):
        if found := pattern.search(match[4]):
            told[name] = float(found[1])
    return told


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _tail(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""

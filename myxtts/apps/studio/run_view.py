"""The state of a run from its folder, whoever trains there and whether anybody does."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from myxtts.apps.studio.processes import failure, process_of
from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import read_metrics

LOG_BYTES, LOG_LINES = 2**16, 200
"""Most of the end of `train.log` that is shown."""


@dataclass(frozen=True)
class RunView:
    """State of a run."""

    folder: Path
    running: bool
    failed: str | None
    """The error that it failed with."""
    losses: list[dict] = field(default_factory=list)
    """Lines of `metrics.jsonl` about training, each with `stage`, `step` and what was measured there."""
    log: str = ""
    """The end of `train.log`."""
    samples: tuple[Path, ...] = ()
    """Spoken sample sentences, newest first."""
    checkpoints: dict[str, list[int]] = field(default_factory=dict)
    """Steps of the checkpoints, by part."""
    memory_mb: float | None = None
    """Resident memory of its process."""

    @property
    def state(self) -> str:
        """One word."""
        return "training" if self.running else "failed" if self.failed else "not training"

    @property
    def facts(self) -> list[str]:
        """Its progress, in few words each."""
        last_lines = {one["stage"]: one for one in self.losses}
        total = lambda line: f"/{line['total_steps']}" if "total_steps" in line else ""
        parts = [f"{stage} {line['step']}{total(line)}" for stage, line in last_lines.items()]
        last = {name: value for name, value in self.losses[-1].items() if value is not None} if self.losses else {}
        parts += [f"loss {last['loss']:.4f}"] if "loss" in last else []
        parts += [f"{last['avg_ms']:.0f} ms a step"] if "avg_ms" in last else []
        parts += [f"stall {100 * last['stall']:.0f} %"] if "stall" in last else []
        return parts + ([f"memory {self.memory_mb:,.0f} MB"] if self.memory_mb else [])


def view_run(folder: Path) -> RunView:
    """Reads a run's folder; one that does not exist yet can only have failed."""
    trainer = process_of(folder)
    return RunView(
        folder,
        running=trainer is not None,
        failed=None if trainer else failure(folder),
        losses=[line for line in read_metrics(folder) if line["kind"] == "training"],
        log=_tail(folder / "train.log"),
        samples=tuple(sorted((folder / "samples").glob("step_*.wav"), key=lambda path: path.name, reverse=True)),
        checkpoints={part: CheckpointStore(folder / part).steps() for part in STAGES if (folder / part).is_dir()},
        memory_mb=_memory_of(trainer),
    )


def runs_in(folder: Path) -> list[str]:
    """Names of the runs in a folder, newest first."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()] if folder.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def named_folder(home: Path, name: str, what: str = "run") -> Path:
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


def _memory_of(process):
    try:
        return psutil.Process(process).memory_info().rss / 2**20 if process else None
    except psutil.Error:
        return None


def _tail(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return "\n".join(file.read(LOG_BYTES).decode("utf-8", errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ""

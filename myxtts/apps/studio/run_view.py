"""The state of a run, read from its folder."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from myxtts.apps.studio.processes import failure, process_of
from myxtts.apps.studio.training_form import OWN, config_in, stages_of, values_of
from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.storage.base_model import BASE_NAME
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import read_metrics

LOG_BYTES, LOG_LINES = 2**16, 200
"""Limits of the shown end of `train.log`."""
FIGURES = ("loss", "avg_ms", "stall", "host_mb", "model_gpu_mb")
"""Measurements of `metrics.jsonl` that the page shows."""
MAIN_LOSSES = ("mel", "codes", "reconstruction", "speaker")
"""Main loss of each stage in `metrics.jsonl`."""
MOST_POINTS = 600
"""Most points of a loss curve."""


@dataclass(frozen=True)
class RunView:
    """State of a run."""

    running: bool
    failed: str | None
    """The error, if it failed."""
    stages: list[str] = field(default_factory=list)
    """Names of the stages it trains, in order."""
    metrics: list[dict] = field(default_factory=list)
    """Lines of `metrics.jsonl`, each with `kind`, `stage`, `step` and measurements."""
    log: str = ""
    """The end of `train.log`."""
    samples: tuple[Path, ...] = ()
    """Synthesized and resynthesized validation clips, newest first."""
    checkpoints: dict[str, list[int]] = field(default_factory=dict)
    """Steps of the checkpoints, by part."""

    @property
    def state(self) -> str:
        """`training`, `failed` or `not training`."""
        return "training" if self.running else "failed" if self.failed else "not training"

    def facts(self, said: dict[str, str]) -> list[str]:
        """Its progress, as short texts in the page's language."""
        if not self.metrics:
            return []
        newest = self.metrics[-1]
        stage, step, total = newest["stage"], newest["step"], newest.get("total_steps", 0)
        facts = []
        if stage in self.stages:
            facts += [said["stage_of"].format(self.stages.index(stage) + 1, len(self.stages))]
        facts += [said["step_of"].format(stage, f"{step}/{total}")]
        lines = [one for one in self.metrics if one["kind"] == "training" and one["stage"] == stage]
        last = {name: value for name, value in lines[-1].items() if value is not None} if lines else {}
        if self.running and "steps_per_second" in last:
            facts += [said["left"].format(tqdm.format_interval((total - step) / last["steps_per_second"]))]
        return facts + [said[name].format(last[name]) for name in FIGURES if name in last]

    def curves(self) -> dict[str, list[tuple[int, float, str]]]:
        """Points of the main loss by stage, at most `MOST_POINTS` of each kind: step, loss, kind of line."""
        found = {}
        for line in self.metrics:
            points = found.setdefault((line["stage"], line["kind"]), [])
            while points and points[-1][0] >= line["step"]:
                points.pop()  # the run was rolled back to an earlier step
            losses = [line[name] for name in MAIN_LOSSES if line.get(name) is not None]
            points += [(line["step"], loss, line["kind"]) for loss in losses[:1]]
        curves = {}
        for (stage, _), points in found.items():
            curves.setdefault(stage, []).extend(points[:: -(-len(points) // MOST_POINTS) or 1])
        return curves


def view_run(folder: Path) -> RunView:
    """Reads a run's folder."""
    trainer = process_of(folder)
    config = config_in(OWN, folder) if (folder / OWN).is_file() else None
    sounds = [path for path in (folder / "samples").glob("*.wav") if not path.name.startswith("recording_")]
    return RunView(
        running=trainer is not None,
        failed=None if trainer else failure(folder),
        stages=[row[0] for row in stages_of(config, values_of(config))] if config else [],
        metrics=read_metrics(folder),
        log=_tail(folder / "train.log"),
        samples=tuple(sorted(sounds, key=lambda path: path.stat().st_mtime, reverse=True)),
        checkpoints={part: CheckpointStore(folder / part).steps() for part in STAGES if (folder / part).is_dir()},
    )


def runs_in(folder: Path) -> list[str]:
    """Names of the runs in a folder, newest first."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()] if folder.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def named_folder(home: Path, name: str, what: str = "run") -> Path:
    """`home / name`, the folder of a `what`; raises `UserError` for names that could lead elsewhere."""
    if name == BASE_NAME or not re.fullmatch(r"[^\W_][\w .-]{0,99}", name or ""):
        raise UserError(
            f"The name of a {what} must begin with a letter or digit, may have letters, digits, spaces, _, - and ., "
            f"and must not be base. Received: {name!r}."
        )
    return home / name


def _tail(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return "\n".join(file.read(LOG_BYTES).decode("utf-8", errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ""

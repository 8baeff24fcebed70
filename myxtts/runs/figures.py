"""Every figure of a run in `metrics.jsonl`, a JSON object a line, and its losses as a picture, `curves.png`."""

import json
import logging
import math
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.storage.files import append_line
from myxtts.storage.run_folder import METRICS, read_metrics
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.callbacks import Callback

logger = logging.getLogger(__name__)

CURVES = "curves.png"


class MetricsFile(Callback):
    """Adds a line for each log line and each validation of a stage; what a disk does not take is told once."""

    def __init__(self, folder: str | Path):
        self.path: Path = Path(folder, METRICS)
        self._stage, self._told = {}, False

    def on_start(self, start):
        self._stage = {"stage": start.stage, "total_steps": start.total_steps}

    def on_log(self, step, losses, timing):
        self._add("training", step, {**losses, **timing})

    def on_validation(self, step, losses, is_best):
        self._add("validation", step, {**losses, "is_best": is_best})

    def _add(self, kind, step, figures):
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = json.dumps({**self._stage, "step": step, "kind": kind, **finite}, default=float)
        try:
            append_line(self.path, line)
        except OSError as error:
            if not self._told:
                logger.error("%s cannot be written to: %s. Training goes on.", self.path, error.strerror)
            self._told = True


def write_curves(folder: str | Path, history: dict[str, list[dict[str, float]]]) -> None:
    """Draws the losses that decide over checkpoints, from training and validation; what goes wrong is told.

    Args:
        history: See `Run.history`.
    """
    from myxtts.runs.pictures import draw_curves

    curves, metrics = {}, read_metrics(folder)
    for stage, validations in history.items():
        main = STAGE_CLASSES[stage].main_loss
        training = {}
        for line in metrics:
            if line["stage"] == stage and line["kind"] == "training":
                # A run that went back has other figures from there on.
                training = {step: loss for step, loss in training.items() if step < line["step"]}
                if line.get(main) is not None:
                    training[line["step"]] = line[main]
        shown = {f"training {main}": training, f"validation {main}": {one["step"]: one[main] for one in validations}}
        if shown := {name: losses for name, losses in shown.items() if losses}:
            curves[stage] = shown
    try:
        if curves:
            draw_curves(Path(folder, CURVES), curves)
    except (OSError, UserError) as error:
        logger.error("The loss curves could not be written to %s: %s", Path(folder, CURVES), error)

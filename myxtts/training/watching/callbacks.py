"""Trainer callbacks: the base class, objects that describe a stage to callbacks, and the writer of metrics."""

import json
import logging
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.storage.files import AnyPath, append_line
from myxtts.storage.run_folder import METRICS

logger = logging.getLogger(__name__)


class StageStart(NamedTuple):
    """Description of a stage, made when its training starts (`step` is 0) or resumes (after `step` optimizer steps).

    `num_weights` counts the trained parameters. `batch_size` is in clips, `accumulation` in batches per optimizer step.
    `preset` is the setting `training.optimizations`. `placement` describes in one line where the variables are.
    """

    stage: str
    step: int
    total_steps: int
    model_size: str
    num_weights: int
    batch_size: int
    accumulation: int
    preset: str
    placement: str


class StageEnd(NamedTuple):
    """Results of a stage at the end of its training.

    `timing` has the keys described for `Callback.on_log`, but covers the whole run. `traces` counts traces of the train
    step. `skipped_steps` counts non-finite updates, which are skipped. `loss_scale` is None without dynamic scaling.
    """

    stage: str
    step: int
    timing: dict
    traces: int
    loss_scale: float | None
    skipped_steps: int


class Callback:
    """Base class of callbacks. The trainer calls these methods, all of which are optional:

    - `on_start(start: StageStart)`: before the first step.
    - `on_waiting(seconds)`: in Multi-GPU Mode, before training waits `seconds` to give the data pipeline a head start.
    - `on_running()`: in Multi-GPU Mode, when the pipeline is filled.
    - `on_ledger(ledger: Ledger)`: after the first step that changed the weights.
    - `on_micro_batch(what, done, count)`: after `done` of `count` micro-batches. `what` is "read" or "computed".
    - `on_step(step)`: after every step.
    - `on_log(step, losses, timing)`: every `training.log_every_steps`. `losses` are means over those steps since the
      last call that have the same loss names as the last step. `timing` contains `StepClock.report()`, memory in MB
      (`host_mb`, `model_gpu_mb`) and GPU utilization (`model_gpu_percent`).
    - `on_validation(step, losses, is_best)`: after each validation, while the model has the averaged weights.
    - `on_evaluation(step, figures, is_best)`: after each speech evaluation. A lower `figures["score"]` is better.
    - `on_sample(step)`: every `training.sample_every_steps`, while the model has the averaged weights.
    - `on_end(end: StageEnd)`: after the last step.
    """


class EventFile:
    """Writes TensorBoard event files to a folder. Creates the folder; its parent must exist.

    Values that cannot be written are lost, and only the first error is logged. After an error, `write` starts a new
    file, because TensorBoard stops reading a file at a truncated record.
    """

    def __init__(self, folder: AnyPath):
        self.folder: Path = Path(folder)
        self._writer, self._has_failed = None, False

    def write(self, step: int, write: Callable[[], None]) -> None:
        """Calls the function `write`, records its `tf.summary` calls for `step`, and flushes the file."""
        try:
            if self._writer is None:
                # Without parents, so that the folder of a run that was moved is not created again.
                self.folder.mkdir(exist_ok=True)
                with tempfile.TemporaryFile(dir=self.folder) as file:  # raises on a full disk, before a file is left
                    file.write(bytes(4096))
                self._writer = tf.summary.create_file_writer(str(self.folder))
            with self._writer.as_default(step=step):
                write()
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            self._writer = None
            if not self._has_failed:
                first_line = getattr(error, "message", str(error)).partition("\n")[0]
                reason = re.sub(r"^\{\{.*?\}\} *", "", first_line)  # without the operation's name
                logger.error("TensorBoard cannot write to %s: %s. Training continues.", self.folder, reason)
            self._has_failed = True


class MetricsWriter(Callback):
    """Writes losses, timing, validations and evaluations to `metrics.jsonl` in a run's folder, and to TensorBoard.

    TensorBoard files, which also contain the settings, are in `logs/{stage}`. Only the first write error is logged.
    """

    def __init__(self, home: AnyPath, logs: AnyPath, config: XTTSConfig):
        self.path, self.logs = Path(home, METRICS), Path(logs)
        self._settings = f"```\n{json.dumps(config.to_dict(), indent=1, ensure_ascii=False)}\n```"
        self._has_failed = False

    def on_start(self, start):
        self._stage = {"stage": start.stage, "total_steps": start.total_steps}
        self._add("start", start.step, {})
        self._events = EventFile(self.logs / start.stage)
        self._events.write(start.step, lambda: tf.summary.text("settings", self._settings))

    def on_log(self, step, losses, timing):
        self._add("training", step, {**losses, **timing})
        self._show(step, train=losses, timing=timing)

    def on_validation(self, step, losses, is_best):
        self._add("validation", step, {**losses, "is_best": is_best})
        self._show(step, validation=losses)

    def on_evaluation(self, step, figures, is_best):
        self._add("evaluation", step, {**figures, "is_best": is_best})
        self._show(step, evaluation=figures)

    def _add(self, kind, step, figures):
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        try:
            append_line(self.path, json.dumps({**self._stage, "step": step, "kind": kind, **finite}, default=float))
        except OSError as error:
            if not self._has_failed:
                logger.error("%s cannot be written to: %s. Training continues.", self.path, error.strerror)
            self._has_failed = True

    def _show(self, step, **groups):
        def write():
            for group, figures in groups.items():
                for name, value in figures.items():
                    tf.summary.scalar(f"{group}/{name}", value)

        self._events.write(step, write)

"""Monitors a stage's training: validation, speech evaluation, divergence, overtraining, switch report, callbacks."""

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from myxtts.config.checks import UserError, counted
from myxtts.config.stages import STAGES
from myxtts.devices.configuration import require_placement
from myxtts.devices.gpu_monitor import BYTES_PER_MB, GPUMonitor
from myxtts.devices.machine import resident_bytes
from myxtts.storage.files import write_json
from myxtts.training.loop.device_pipeline import copy_to, timing_of_all
from myxtts.training.loop.switches import LedgerKeeper
from myxtts.training.stages.base import Objective
from myxtts.training.watching.callbacks import StageEnd, StageStart

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

WARN_AFTER = 5
"""Number of overtrained validations after which `OvertrainingDetector` warns, if its patience is 0."""


class TrainingDiverged(UserError):
    """Raised after too many consecutive steps that were skipped because of non-finite losses or gradients."""


class DivergenceGuard:
    """Detects divergence: `limit` consecutive steps with a non-finite loss or gradient."""

    def __init__(self, limit: int):
        self.limit, self.rate_scale, self.returns = limit, 1.0, 0
        self.in_row, self._row = 0, deque(maxlen=limit)
        """`rate_scale` multiplies the learning rate. `returns` counts rollbacks, `in_row` counts bad steps in a row."""

    def state(self) -> dict:
        return {"rate_scale": self.rate_scale, "returns": self.returns, "in_row": self.in_row}

    def restore(self, state: dict) -> None:
        self.rate_scale = float(state["rate_scale"])
        self.returns, self.in_row = int(state["returns"]), int(state["in_row"])
        self._row.clear()

    def record(self, step: int, clips: list[np.ndarray], losses: dict[str, float]) -> None:
        """Records a step, which is bad if `losses["finite"]` is false. `clips` contains clip indices for each batch."""
        if losses["finite"]:
            self.in_row = 0
            self._row.clear()
            return
        broken = [name for name, value in losses.items() if not math.isfinite(value)]
        self.in_row += 1
        self._row.append({"step": step, "clips": np.concatenate(clips).tolist(), "not_finite": broken})

    def bad_steps(self) -> list[dict]:
        """Returns `step`, `clips` and `not_finite` (loss names) of each bad step; `[]` unless training diverged."""
        return list(self._row) if self.in_row >= self.limit else []


class OvertrainingDetector:
    """Early stopping (Prechelt 1998) that distinguishes overtraining from a plateau.

    `update` counts the validations that look like overtraining: the validation loss is higher than at the best
    validation, but the training loss (mean since the previous validation) is lower. A new best loss resets the count.
    `update` warns when the count reaches half of `patience`, and sets `stopped` when it reaches `patience`. With
    `patience` 0, `update` warns when the count reaches `WARN_AFTER`, and never sets `stopped`.
    """

    def __init__(self, patience: int):
        self.patience, self.diverging, self.stopped = patience, 0, False
        self._best = self._training_at_best = math.inf
        self._best_step, self._sum, self._count = 0, 0.0, 0

    def record(self, loss: float) -> None:
        """Records the main loss of a training step that changed the weights."""
        self._sum += loss
        self._count += 1

    def update(self, step: int, loss: float) -> str | None:
        """Records a validation loss. Returns a message if the detector warns or ends the stage, else None."""
        training = self._sum / self._count if self._count else math.inf
        self._sum, self._count = 0.0, 0
        if loss < self._best:
            self._best, self._best_step, self._training_at_best, self.diverging = loss, step, training, 0
            return None
        if not (math.isfinite(loss) and loss > self._best and training < self._training_at_best):
            return None
        self.diverging += 1
        self.stopped = 0 < self.patience <= self.diverging
        warn_after = max(1, self.patience // 2) if self.patience else WARN_AFTER
        if not self.stopped and self.diverging != warn_after:
            return None
        best = f"the best ({self._best:.4f} of step {self._best_step}, last {loss:.4f})"
        seen = f"Overtraining: {counted(self.diverging, 'validation')} above {best} while the training loss fell."
        if self.stopped:
            return f"{seen} The stage ends with the best checkpoint."
        then = f"The stage ends after {self.patience}" if self.patience else "--overtraining-patience N ends it after N"
        return f"{seen} {then}. More data, more dropout or a smaller model helps."

    def state(self) -> dict:
        """Returns the detector's state as JSON values for a checkpoint. None stands for infinity."""
        best, training = (x if math.isfinite(x) else None for x in (self._best, self._training_at_best))
        counts = {"diverging": self.diverging, "stopped": self.stopped, "sum": self._sum, "count": self._count}
        return {**counts, "best_step": self._best_step, "best": best, "training_at_best": training}

    def restore(self, state: dict) -> None:
        """Restores a saved `state`. A stopped run can continue if the patience has been increased."""
        self.diverging, self._best_step = int(state["diverging"]), int(state["best_step"])
        losses = state["best"], state["training_at_best"]
        self._best, self._training_at_best = (math.inf if x is None else float(x) for x in losses)
        self._sum, self._count = float(state["sum"]), int(state["count"])
        self.stopped = has_stopped(state, self.patience)


def has_stopped(state: dict, patience: int) -> bool:
    """Returns whether early stopping ended the run that saved `state`, and would still end it with this `patience`."""
    return bool(state["stopped"]) and 0 < patience <= int(state["diverging"])


class Watch:
    """Monitors a trainer: validates, selects the best step, ends the stage early, and calls the callbacks."""

    def __init__(self, trainer: "StageTrainer"):
        training = trainer.config.training
        self.trainer, self.main_loss = trainer, STAGES[trainer.stage.name].main_loss
        self.divergence = DivergenceGuard(training.max_bad_steps)
        self.overtraining = OvertrainingDetector(training.overtraining_patience)
        self.speech_judge: Callable[[int], dict] | None = None
        """Function `step -> metrics` that evaluates speech, or None. A lower value of the metric `score` is better."""
        self.monitor: GPUMonitor | None = None
        """Monitor of the GPUs in use, set by the run. If it is None, GPU memory and utilization are not reported."""
        self.ledger_keeper: LedgerKeeper | None = None
        """Creates the `Ledger`. Must be set before the first step, to see whether that step changes the averages."""
        objectives = trainer.stage.validated([rule.objective for rule in trainer.train_step.rules])
        self.evaluate = Evaluator(trainer, objectives)
        self._callbacks, self._unread, self._recent = [], [], []

    def call(self, method: str, *arguments) -> None:
        """Calls the method named `method` with `arguments` on each callback that defines this method."""
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

    def start(self, callbacks: Iterable, total: int) -> None:
        """Stores `callbacks` and calls their `on_start`. Raises `DeviceError` if a variable is on the wrong device."""
        self._callbacks, trainer = list(callbacks), self.trainer
        placement = require_placement(trainer.placed_variables().items(), trainer.plan)
        weights = sum(int(tf.size(v.value)) for v in trainer.train_step.trainable.values())
        training, sizes = trainer.config.training, (trainer.batching.batch_size, trainer.batching.accumulation)
        progress = trainer.stage.name, trainer.step, total, trainer.config.model.size, weights
        self.call("on_start", StageStart(*progress, *sizes, training.optimizations, placement))

    def end(self) -> None:
        """Calls the callbacks' `on_end` with the results of the whole stage."""
        step, trainer = self.trainer.train_step, self.trainer
        scale = next((float(rule.loss_scale.numpy()) for rule in step.rules if rule.scaled), None)
        timing = trainer.clock.report(whole_run=True) | self._machine()
        self.call("on_end", StageEnd(trainer.stage.name, trainer.step, timing, step.traces, scale, step.bad_steps))

    def after_step(self, losses: dict, batches: int) -> None:
        """Records the losses and the clips of the last step, which used `batches` batches.

        If too many consecutive steps had non-finite losses or gradients, writes these steps to a file and raises
        `TrainingDiverged`. With `--strict`, raises `ConfigError` if a switch did not have the requested effect.
        """
        trainer, step, state = self.trainer, self.trainer.train_step, self.trainer.state
        if trainer.ledger is None and losses["finite"] and step.rules[-1] in step.acting(step.phase):
            trainer.ledger = self.ledger_keeper.ledger(losses)
            self.call("on_ledger", trainer.ledger)
            if trainer.config.training.strict:
                trainer.ledger.require()
        used = range(state.position - batches, state.position)
        self._unread.append((trainer.step, [state.clips.order.batch(position).indices for position in used], losses))
        if trainer.step % max(1, self.divergence.limit // 4):
            return
        self.read()
        if bad_steps := self.divergence.bad_steps():
            raise TrainingDiverged(
                f"Losses or gradients of {self.divergence.limit} consecutive steps up to step {trainer.step} were not "
                f"finite. {self._report_divergence(bad_steps)} lists losses and clips. Lower --lr, train in "
                "float32, or remove the clips."
            )

    def read(self) -> None:
        """Copies new losses to the host and records them. Called rarely, because copying waits for the device."""
        for step, clips, tensors in self._unread:
            losses = {name: float(value) for name, value in tensors.items()}
            self._recent.append(losses)
            self.divergence.record(step, clips, losses)
            main_loss = losses.get(self.main_loss)  # None in phases without the main update
            if losses["finite"] and main_loss is not None:
                self.overtraining.record(main_loss)
        self._unread.clear()

    def forget_steps(self) -> None:
        """Discards losses that have not been logged yet. Called after training returns to an earlier step."""
        self._unread.clear()
        self._recent.clear()

    def _report_divergence(self, bad_steps):
        """Writes the bad steps to a file or, if that fails, to the log. Returns the location, for an error message."""
        trainer, stage, clips = self.trainer, self.trainer.stage.name, self.trainer.state.clips.clips
        if not trainer.workers.is_chief:
            return "The log of worker 0"
        path = f"{trainer.config.training.checkpoint_dir}/diverged_{stage}_step_{trainer.step}.json"
        weights = trainer.train_step.trainable.items()
        found = {
            "stage": stage,
            "step": trainer.step,
            "learning_rate": float(trainer.train_step.rules[0].optimizer.learning_rate.numpy()),
            "weights_not_finite": [name for name, v in weights if not np.isfinite(v.numpy()).all()],
            "bad_steps": [{**bad, "clips": [clips[index].id for index in bad["clips"]]} for bad in bad_steps],
        }
        try:
            write_json(path, found)
        except OSError as error:
            logger.error("Cannot write %s: %s. Its contents: %s", path, error, found)
            return "The log"
        return path

    def log(self, learning_rate: float) -> None:
        """Calls the callbacks' `on_log` with mean losses of finite steps (see `Callback`). Logs the stage's advice."""
        trainer, stage = self.trainer, self.trainer.stage
        self.read()
        finite = [step for step in self._recent if step["finite"]] or self._recent
        names = [name for name in finite[-1] if not name.endswith("finite")]
        alike = [one for one in finite if one.keys() == finite[-1].keys()]
        report = {name: float(np.mean([one[name] for one in alike])) for name in names}
        report |= {"learning_rate": learning_rate, **stage.report(), "skipped_steps": trainer.train_step.bad_steps}
        self._recent.clear()
        timing = timing_of_all(trainer.clock.report(), trainer.workers) | self._machine()
        self.call("on_log", trainer.step, report, timing)
        for line in stage.advise(report):
            logger.warning("%s", line)

    def _machine(self):
        """Returns this process's resident memory, and the GPUs' memory and utilization, for `Callback.on_log`."""
        gpus = self.monitor.report().figures(self.trainer.plan.gpu_roles) if self.monitor else {}
        return {"host_mb": resident_bytes() / BYTES_PER_MB, **gpus}

    def validate(self, loader) -> tuple[dict[str, float], bool]:
        """Validates the averaged weights. Returns the losses, and whether this step is the best so far."""
        trainer, state = self.trainer, self.trainer.state
        with trainer.clock.paused(), trainer.train_step.averaged_weights():
            losses = self.evaluate(loader)
            main = losses[self.main_loss]
            is_best = state.improves("loss", main)
            state.history.append({"step": state.step, **losses})
            for line in trainer.stage.advise(self.evaluate.metrics):
                logger.warning("%s", line)
            self.call("on_validation", state.step, losses, is_best)
        self.read()
        if advice := self.overtraining.update(state.step, main):
            logger.warning("%s", advice)
        return losses, is_best

    def evaluate_speech(self) -> bool:
        """Evaluates synthesized speech and reports the metrics. Returns whether this step is the best so far."""
        trainer, state = self.trainer, self.trainer.state
        with trainer.clock.paused(), trainer.train_step.averaged_weights():
            figures = self.speech_judge(state.step)
        is_best = bool(figures) and state.scored(figures["score"])
        if figures:
            self.call("on_evaluation", state.step, figures, is_best)
        return is_best

    @property
    def ended_early(self) -> bool:
        """Whether early stopping has ended the stage, because of validation losses or of speech evaluations."""
        patience = self.trainer.config.training.evaluation_patience
        return self.overtraining.stopped or 0 < patience <= self.trainer.state.stale_evaluations


class Evaluator:
    """Computes the validation losses of `objectives`, without dropout, and the metrics returned by `Stage.score`.
    The batches are divided among the workers and their replicas."""

    def __init__(self, trainer: "StageTrainer", objectives: list[Objective]):
        self.trainer, self.objectives, self._traced = trainer, objectives, None
        self.metrics: dict[str, float] = {}
        """Metrics that `Stage.score` returned in the last evaluation."""

    def __call__(self, loader) -> dict[str, float]:
        """Returns losses and metrics of the current weights, by name. A loss without items to average is NaN.

        Uses up to `training.max_validation_batches` batches, evenly spaced, so that clips of all lengths are included.
        """
        batches, most = loader.order.batches_per_epoch, self.trainer.config.training.max_validation_batches
        totals, counts, outputs, examined = Counter(), Counter(), [], []
        workers, at_once = self.trainer.workers, len(self.trainer.replicas.devices)
        own = np.linspace(0, batches - 1, min(batches, most)).round().astype(int)[workers.index :: workers.count]
        for first in range(0, len(own), at_once):
            examined += self._examine([loader(one) for one in own[first : first + at_once]])
        # In the order of the batches, so that sums are rounded as in one process.
        for sums, number, arrays in filter(None, chain.from_iterable(zip_longest(*workers.gather(examined)))):
            totals.update(sums)
            counts.update(number)
            outputs.append(arrays and tuple(np.asarray(*array) for array in arrays))
        self.metrics = self.trainer.stage.score(outputs)
        return {name: totals[name] / (counts[name] or math.nan) for name in totals} | self.metrics

    def _examine(self, waves):
        """Evaluates at most one batch per replica. Returns `(loss sums, item counts, outputs to score)` per batch."""
        replicas, devices = self.trainer.replicas, self.trainer.replicas.devices
        prepared = [self.trainer.preparation(tf.nest.map_structure(tf.constant, wave)) for wave in waves]
        # If there are fewer batches than replicas, the last batch is repeated, and repeated results are dropped.
        prepared += prepared[-1:] * (len(devices) - len(waves))
        batches = [copy_to(batch, device) for batch, device in zip(prepared, devices)]
        together = replicas.distribute(batches)
        if self._traced is None:
            signature = [type(together)(*map(_of_any_size, together))]
            run = lambda batch: replicas.strategy.run(self._sums, (batch,))
            self._traced = tf.function(run, input_signature=signature, autograph=False)
        with tf.device(devices[0]):
            sums, counts = self._traced(together)
        examined, local = [], replicas.strategy.experimental_local_results
        for batch, device, *results in zip(batches[: len(waves)], devices, local(sums), local(counts)):
            with tf.device(device):
                output = self.trainer.stage.outputs_to_score(batch)
            losses, number = ({name: float(value) for name, value in values.items()} for values in results)
            examined.append((losses, number, output and [(array.tolist(), array.dtype.name) for array in output]))
        return examined

    def _sums(self, batch):
        sums, counts = {}, {}
        for objective in self.objectives:
            sums |= objective.loss_sums(batch)[0]
            counts |= objective.counts(batch)
        return sums, counts


def _of_any_size(field):
    """Returns a `TypeSpec` of a batch field, with dynamic first and second axes, so that one trace fits all batches."""
    spec = tf.type_spec_from_value(field)
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None] * min(2, spec.shape.rank) + spec.shape[2:], spec.dtype)
    return type(spec)(*map(_of_any_size, field.values))  # one per replica

"""What looks at a stage while it trains: validation, evaluated speech, divergence, overtraining, ledger, callbacks."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from myxtts.data.buckets import BatchOrder
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import require_placement
from myxtts.training.watching.callbacks import StageEnd, StageStart
from myxtts.training.watching.divergence import DivergenceGuard, write_divergence
from myxtts.training.watching.ledger import Ledger, LedgerKeeper
from myxtts.training.watching.overtraining import OvertrainingDetector
from myxtts.training.watching.step_clock import timing_of_all
from myxtts.training.watching.validation import Evaluator

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)


class Watch:
    """Looks at a trainer's steps, decides which is the best and whether to go on, and tells callbacks what it sees."""

    def __init__(self, trainer: "StageTrainer"):
        training = trainer.config.training
        self.trainer = trainer
        self.divergence = DivergenceGuard(training.max_bad_steps)
        self.overtraining = OvertrainingDetector(training.overtraining_patience)
        self.speech_judge: Callable[[int], dict] | None = None
        """`(step) -> figures` of what is heard every `training.evaluate_every_steps`, with their `score`, lower is
        better; none where it could not be heard. Set by whoever can let the model speak."""
        self.ledger: Ledger | None = None
        """What the switches do, seen at the first step."""
        objectives = trainer.stage.validated([rule.objective for rule in trainer.train_step.rules])
        self._evaluator = Evaluator(trainer.stage, objectives, trainer.replicas)
        self._callbacks = []
        self.recent: list[dict] = []
        """What the train step returned since the last log line."""

    def call(self, method: str, *arguments) -> None:
        """Calls a method of every callback that has it."""
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

    def start(self, callbacks: Iterable, total: int) -> None:
        """Reports the start of a stage of `total` steps; raises unless every variable lives where the plan has it."""
        self._callbacks, trainer = list(callbacks), self.trainer
        placement = require_placement(trainer.placed_variables().items(), trainer.plan)
        weights = sum(int(tf.size(v.value)) for v in trainer.train_step.trainable().values())
        training, sizes = trainer.config.training, (trainer.batching.batch_size, trainer.batching.accumulation)
        progress = trainer.stage.name, trainer.step, total, trainer.config.model.size, weights
        self.call("on_start", StageStart(*progress, *sizes, training.optimizations, placement))

    def before_first_step(self, num_shapes: int) -> None:
        """Prepares to observe the first step, whose batches have up to `num_shapes` shapes."""
        trainer = self.trainer
        observed = trainer.stage, trainer.train_step, trainer.switches, trainer.batching, trainer.model_device
        self._keeper = LedgerKeeper(*observed, num_shapes)

    def end(self) -> None:
        """Reports the end of a stage."""
        step, trainer = self.trainer.train_step, self.trainer
        scaled = [rule for rule in step.rules if rule.scaled]
        scale = float(scaled[0].loss_scale.numpy()) if scaled else None
        timing, seen = trainer.clock.report(whole_run=True), (step.traces, step.compilations)
        self.call("on_end", StageEnd(trainer.stage.name, trainer.step, timing, *seen, scale, step.bad_steps))

    def after_step(self, losses: dict, batches: int, dataset: SpeechDataset, order: BatchOrder) -> None:
        """Takes note of a step on the last `batches` batches.

        Raises:
            TrainingDiverged: The last steps in a row were not finite; the run's folder says which.
            LedgerDifference: Under `--strict`, at the first step.
        """
        trainer = self.trainer
        is_whole = trainer.train_step.rules[-1].has_turn(trainer.train_step.phase)
        if self.ledger is None and losses["finite"] and is_whole:
            self.ledger = self._keeper.ledger(losses)
            self.call("on_ledger", self.ledger)
            if trainer.config.training.strict:
                self.ledger.require()
        self.recent.append(losses)
        clips = [order.batch(trainer.state.position - back).indices for back in range(batches, 0, -1)]
        if trainer.stage.main_loss in losses:  # not where only another update has its turn
            self.overtraining.watch(losses[trainer.stage.main_loss], losses["finite"])
        bad_steps = self.divergence.watch(trainer.step, clips, losses)
        if bad_steps is not None:
            raise self.divergence.error(trainer.step, self._report_divergence(bad_steps, dataset))

    def _report_divergence(self, bad_steps, dataset):
        trainer, step = self.trainer, self.trainer.train_step
        if not trainer.workers.is_chief:
            return "the log of worker 0"
        named = [{**bad, "clips": [dataset.train[index].id for index in bad["clips"]]} for bad in bad_steps]
        at = trainer.stage.name, trainer.step, float(step.learning_rate.numpy())
        return write_divergence(trainer.config.training.checkpoint_dir, *at, step.trainable(), named)

    def log(self, learning_rate: float) -> None:
        """Reports means since the last time."""
        trainer, stage = self.trainer, self.trainer.stage
        report = {**_means(self.recent), "learning_rate": learning_rate, **stage.report()}
        report["skipped_steps"] = trainer.train_step.bad_steps
        self.recent = []
        self.call("on_log", trainer.step, report, timing_of_all(trainer.clock.report(), trainer.workers))
        for line in stage.advise(report):
            logger.warning("%s", line)

    def evaluate(self, loader) -> dict[str, float]:
        """Validation losses by name: means over every token of at most `training.max_validation_batches` batches."""
        trainer = self.trainer
        with trainer.train_step.averaged_weights():
            return self._evaluator(loader, trainer.preparation, trainer.config.training.max_validation_batches)

    def validate(self, loader) -> tuple[dict[str, float], bool]:
        """Evaluates, and keeps and reports the losses; returns them, and whether the step is the best so far."""
        trainer, state = self.trainer, self.trainer.state
        with trainer.clock.paused():
            losses = self.evaluate(loader)
        is_best = state.improves("loss", main := losses[trainer.stage.main_loss])
        state.history.append({"step": state.step, **losses})
        with trainer.clock.paused(), trainer.train_step.averaged_weights():
            self.call("on_validation", state.step, losses, is_best)
        if advice := self.overtraining.update(state.step, main):
            logger.warning("%s", advice)
        return losses, is_best

    def evaluate_speech(self) -> bool:
        """Lets the speech be judged; returns whether the step is the best so far."""
        trainer, state = self.trainer, self.trainer.state
        with trainer.clock.paused(), trainer.train_step.averaged_weights():
            figures = self.speech_judge(state.step)
        is_best = bool(figures) and state.scored(figures["score"])
        if figures:
            self.call("on_evaluation", state.step, figures, is_best)
        return is_best

    @property
    def ended_early(self) -> bool:
        """Whether the stage is to end at its best checkpoint."""
        return self.overtraining.stopped or self.trainer.state.is_stale(
            self.trainer.config.training.evaluation_patience
        )


def _means(steps):
    """Means by name over the steps that counted, or over all where none did, of the figures that the last one has.

    Where steps are of two phases, what has no turn yet has no figures either.
    """
    counted = [step for step in steps if bool(step["finite"])] or steps
    names = [name for name in counted[-1] if not name.endswith("finite")]
    return {name: float(np.mean([float(one[name]) for one in counted if name in one])) for name in names}

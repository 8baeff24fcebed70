"""What is told of a stage where its training begins, diverges and ends."""

from typing import TYPE_CHECKING

import tensorflow as tf

from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import require_placement
from myxtts.training.loop.divergence import write_divergence
from myxtts.training.watching.callbacks import StageEnd, StageStart

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer


def start_report(trainer: "StageTrainer", total: int) -> StageStart:
    """Of a stage of `total` steps; raises unless every variable lives where the plan has it."""
    placement = require_placement(trainer.placed_variables().items(), trainer.plan)
    weights = sum(int(tf.size(v.value)) for v in trainer.train_step.trainable().values())
    training, sizes = trainer.config.training, (trainer.batching.batch_size, trainer.batching.accumulation)
    progress = trainer.stage.name, trainer.step, total, trainer.config.model.size, weights
    return StageStart(*progress, *sizes, training.optimizations, placement)


def end_report(trainer: "StageTrainer") -> StageEnd:
    """Of the steps taken."""
    step, scaled = trainer.train_step, [rule for rule in trainer.train_step.rules if rule.scaled]
    scale = float(scaled[0].loss_scale.numpy()) if scaled else None
    timing = trainer.clock.report(whole_run=True)
    return StageEnd(trainer.stage.name, trainer.step, timing, step.traces, step.compilations, scale, step.bad_steps)


def report_divergence(trainer: "StageTrainer", bad_steps: list[dict], dataset: SpeechDataset) -> str:
    """Writes what is known of the steps that diverged into the run's folder; returns in words where it is."""
    named = [{**bad, "clips": [dataset.train[index].id for index in bad["clips"]]} for bad in bad_steps]
    step, home = trainer.train_step, trainer.config.training.checkpoint_dir
    if not trainer.workers.is_chief:
        return "the log of worker 0"
    rate = float(step.learning_rate.numpy())
    return write_divergence(home, trainer.stage.name, trainer.step, rate, step.trainable(), named)

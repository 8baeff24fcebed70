"""What callbacks are told when the training of a stage begins and ends."""

from typing import TYPE_CHECKING

import tensorflow as tf

from myxtts.devices.configuration import require_placement
from myxtts.training.callbacks import StageEnd, StageStart

if TYPE_CHECKING:
    from myxtts.training.trainer import XTTSTrainer


def start_report(trainer: "XTTSTrainer", total_steps: int) -> StageStart:
    """What `on_start` tells.

    Raises:
        PlacementError: A variable is not on the model devices.
    """
    placement = require_placement(trainer.placed_variables().items(), trainer.plan)
    weights = sum(int(tf.size(v.value)) for v in trainer.train_step.trainable().values())
    training, sizes = trainer.config.training, (trainer.batching.batch_size, trainer.batching.accumulation)
    progress = trainer.stage.name, trainer.step, total_steps, trainer.config.model.size, weights
    return StageStart(*progress, *sizes, training.optimizations, placement)


def end_report(trainer: "XTTSTrainer") -> StageEnd:
    """What `on_end` tells."""
    step, scaled = trainer.train_step, [rule for rule in trainer.train_step.rules if rule.scaled]
    scale = float(scaled[0].loss_scale.numpy()) if scaled else None
    timing = trainer.clock.report(whole_run=True)
    return StageEnd(trainer.stage.name, trainer.step, timing, step.traces, step.compilations, scale, step.bad_steps)

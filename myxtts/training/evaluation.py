"""Validation losses of a stage."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.training.device_pipeline import copy_to
from myxtts.training.stages.base import Objective, Stage


class Evaluator:
    """Means of every loss of a stage's objectives over validation batches, without dropout; traced once.

    What the stage judges by besides comes with them.
    """

    def __init__(self, stage: Stage, objectives: list[Objective], device: str):
        self.stage, self.objectives, self.device, self._traced = stage, objectives, device, None

    def __call__(self, loader, prepare: Callable, max_batches: int) -> dict[str, float]:
        """Losses by name, each the mean over all its items; `prepare` is the stage's preparation.

        With fewer batches than there are they still show all lengths: the loader's order goes from short to long.
        """
        batches = loader.order.batches_per_epoch
        totals, counts, looks = Counter(), Counter(), []
        for position in np.linspace(0, batches - 1, min(batches, max_batches)).round().astype(int):
            wave = tf.nest.map_structure(tf.constant, loader(position))
            batch = copy_to(prepare(wave), self.device)
            with tf.device(self.device):
                sums, number = self._function(batch)(batch)
                looks.append(self.stage.look(batch))
            for name in sums:
                totals[name] += float(sums[name])
                counts[name] += float(number[name])
        losses = {name: totals[name] / max(counts[name], 1.0) for name in totals}
        return losses | self.stage.judge(looks)

    def _function(self, example):
        """Traced sums and counts of a batch of any sizes."""
        if self._traced is None:
            shapes = (tf.TensorSpec([None] * min(2, one.shape.rank) + one.shape[2:], one.dtype) for one in example)
            self._traced = tf.function(self._sums, input_signature=[type(example)(*shapes)])
        return self._traced

    def _sums(self, batch):
        sums, counts = {}, {}
        for objective in self.objectives:
            sums |= objective.loss_sums(batch)[0]
            counts |= objective.counts(batch)
        return sums, counts


def mean_losses(steps: list[dict]) -> dict[str, float]:
    """Means by name over the steps that counted, or over all where none did, of the figures that the last one has.

    Where steps are of two phases, what has no turn yet has no figures either.
    """
    counted = [step for step in steps if bool(step["finite"])] or steps
    names = [name for name in counted[-1] if not name.endswith("finite")]
    return {name: float(np.mean([float(one[name]) for one in counted if name in one])) for name in names}

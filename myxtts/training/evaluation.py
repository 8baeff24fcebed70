"""Validation losses of a stage."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.devices.workers import Workers
from myxtts.training.device_pipeline import copy_to
from myxtts.training.stages.base import Objective, Stage


class Evaluator:
    """Means of every loss of a stage's objectives over validation batches, without dropout; traced once.

    What the stage judges by besides comes with them. Workers take turns with the batches.
    """

    def __init__(self, stage: Stage, objectives: list[Objective], device: str, workers: Workers):
        self.stage, self.objectives, self.device, self._traced = stage, objectives, device, None
        self.workers = workers

    def __call__(self, loader, prepare: Callable, max_batches: int) -> dict[str, float]:
        """Losses by name, each the mean over all its items; `prepare` is the stage's preparation.

        With fewer batches than there are they still show all lengths: the loader's order goes from short to long.
        """
        batches = loader.order.batches_per_epoch
        totals, counts, looks = Counter(), Counter(), []
        positions = np.linspace(0, batches - 1, min(batches, max_batches)).round().astype(int)
        index, count = self.workers.index, self.workers.count
        shares = self.workers.gather([self._examine(loader(one), prepare) for one in positions[index::count]])
        # In the order of the batches, as one process adds them up.
        for place in range(len(positions)):
            sums, number, look = shares[place % count][place // count]
            totals.update(sums)
            counts.update(number)
            looks.append(look and tuple(np.asarray(*array) for array in look))
        losses = {name: totals[name] / max(counts[name], 1.0) for name in totals}
        return losses | self.stage.judge(looks)

    def _examine(self, wave, prepare):
        """Sums and counts of the losses of a batch, and what the stage judges by, as JSON values."""
        batch = copy_to(prepare(tf.nest.map_structure(tf.constant, wave)), self.device)
        with tf.device(self.device):
            sums, number = self._function(batch)(batch)
            look = self.stage.look(batch)
        sums, number = ({name: float(value) for name, value in values.items()} for values in (sums, number))
        return sums, number, look and [(array.tolist(), array.dtype.name) for array in look]

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

"""Validation losses of a stage."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.training.loop.device_pipeline import copy_to
from myxtts.training.loop.replicas import Replicas
from myxtts.training.stages.base import Objective, Stage


class Evaluator:
    """Means of every loss of a stage's objectives over validation batches, without dropout; traced once.

    What the stage judges by besides comes with them. Workers, and the replicas of each, take turns with the batches.
    """

    def __init__(self, stage: Stage, objectives: list[Objective], replicas: Replicas):
        self.stage, self.objectives, self.replicas, self._traced = stage, objectives, replicas, None

    def __call__(self, loader, prepare: Callable, max_batches: int) -> dict[str, float]:
        """Losses by name, each the mean over all its items; `prepare` is the stage's preparation.

        With fewer batches than there are they still show all lengths: the loader's order goes from short to long.
        """
        batches = loader.order.batches_per_epoch
        totals, counts, looks = Counter(), Counter(), []
        positions = np.linspace(0, batches - 1, min(batches, max_batches)).round().astype(int)
        workers, at_once, examined = self.replicas.workers, len(self.replicas.devices), []
        count, own = workers.count, positions[workers.index :: workers.count]
        for first in range(0, len(own), at_once):
            examined += self._examine([loader(one) for one in own[first : first + at_once]], prepare)
        shares = workers.gather(examined)
        # In the order of the batches, as one process adds them up.
        for place in range(len(positions)):
            sums, number, look = shares[place % count][place // count]
            totals.update(sums)
            counts.update(number)
            looks.append(look and tuple(np.asarray(*array) for array in look))
        losses = {name: totals[name] / max(counts[name], 1.0) for name in totals}
        return losses | self.stage.judge(looks)

    def _examine(self, waves, prepare):
        """Sums and counts of the losses of each batch, one on each replica, and what the stage judges by, as JSON."""
        devices = self.replicas.devices
        prepared = [prepare(tf.nest.map_structure(tf.constant, wave)) for wave in waves]
        # Where the last batches are fewer, the others see the last one again, which nobody asks about.
        prepared += prepared[-1:] * (len(devices) - len(waves))
        batches = [copy_to(batch, device) for batch, device in zip(prepared, devices)]
        together = self.replicas.distribute(batches)
        with tf.device(devices[0]):
            sums, counts = self._function(together)(together)
        examined = []
        for batch, device, *results in zip(batches, devices, *map(self.replicas.local, (sums, counts))):
            if len(examined) < len(waves):
                with tf.device(device):
                    look = self.stage.look(batch)
                losses, number = ({name: float(value) for name, value in values.items()} for values in results)
                examined.append((losses, number, look and [(array.tolist(), array.dtype.name) for array in look]))
        return examined

    def _function(self, example):
        """Traced sums and counts of batches of any sizes, one for each replica."""
        if self._traced is None:
            self._traced = tf.function(
                lambda batch: self.replicas.strategy.run(self._sums, (batch,)),
                input_signature=[type(example)(*map(_of_any_size, example))],
            )
        return self._traced

    def _sums(self, batch):
        sums, counts = {}, {}
        for objective in self.objectives:
            sums |= objective.loss_sums(batch)[0]
            counts |= objective.counts(batch)
        return sums, counts


def _of_any_size(field):
    """The specification of a field of a batch, or of the replicas' batches, whose first two sizes may be any."""
    spec = tf.type_spec_from_value(field)
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None] * min(2, spec.shape.rank) + spec.shape[2:], spec.dtype)
    return type(spec)(*map(_of_any_size, field.values))  # one for each replica

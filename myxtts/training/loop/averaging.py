"""Averages of the weights over the steps of training, for validation and speech."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf


class WeightAverages:
    """Exponential moving averages of trained weights (Polyak and Juditsky 1992), one beside each weight's replica.

    The decay of step t is `min(decay, (1 + t) / (10 + t))`, as in `tf.train.ExponentialMovingAverage` with
    `num_updates`. Keras's `use_ema` has no such rise: with a decay of 0.999 the weights of the first step would still
    make up a third of the average after a thousand steps, which is more than a short run has.

    To be made in the strategy's scope and on the model device. `decay` is the share of the old average that stays at
    each step, from 0 to below 1.
    """

    def __init__(self, named: dict[str, keras.Variable], decay: float, strategy: tf.distribute.Strategy):
        self.decay, self._names = decay, tuple(named)
        self.averages = [tf.Variable(tf.zeros(v.shape), trainable=False, name="average") for v in named.values()]
        self._pairs = list(zip(self.averages, named.values()))
        self._strategy = strategy
        self.restart()

    def variables(self) -> dict[str, tf.Variable]:
        """The averages by name."""
        return {f"average/{name}": v for name, v in zip(self._names, self.averages)}

    def restart(self) -> None:
        """Sets each average to its weight."""

        def assign():
            for average, weight in self._pairs:
                average.assign(weight.value)

        self._strategy.run(assign)

    def update(self, step: tf.Tensor) -> None:
        """Takes the weights of one more step in; to be called on each replica, after the optimizer.

        `step` is how many steps count in the averages so far, this one left out.
        """
        step = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(self.decay, (1.0 + step) / (10.0 + step))
        for average, weight in self._pairs:
            average.assign_add((weight.value - average) * rate)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Within the block each weight holds its average, and the other way round; afterwards all is as before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self):
        def exchange():
            for average, weight in self._pairs:
                held = tf.identity(weight.value)
                weight.assign(average.read_value())
                average.assign(held)

        self._strategy.run(exchange)

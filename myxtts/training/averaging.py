"""Averages of the weights over the steps of training, for validation and speech."""

from contextlib import contextmanager

import tensorflow as tf


class WeightAverages:
    """Exponential moving averages of trained weights (Polyak and Juditsky 1992), one beside each weight's replica.

    The decay of step t is `min(decay, (1 + t) / (10 + t))`, as in `tf.train.ExponentialMovingAverage` with
    `num_updates`. Keras's `use_ema` has no such rise: with a decay of 0.999 the weights of the first step would still
    make up a third of the average after a thousand steps, which is more than a short run has.

    To be made in the strategy's scope and on the model device.

    Args:
        named: `{name: Keras variable}`.
        decay: Share of the old average that stays at each step, from 0 to below 1.
        strategy: `tf.distribute.Strategy`.
    """

    def __init__(self, named, decay, strategy):
        self.decay = decay
        self.weights = dict(named)
        self.averages = [tf.Variable(tf.zeros(v.shape), trainable=False, name="average") for v in named.values()]
        self._strategy = strategy
        self.restart()

    def variables(self):
        """The averages by name."""
        return {f"average/{name}": v for name, v in zip(self.weights, self.averages)}

    def restart(self):
        """Sets each average to its weight."""

        def assign():
            for average, weight in zip(self.averages, self.weights.values()):
                average.assign(weight.value)

        self._strategy.run(assign)

    def update(self, step):
        """Takes the weights of one more step in; to be called on each replica, after the optimizer.

        Args:
            step: Steps that count in the averages so far, this one left out; integer tensor.
        """
        step = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(self.decay, (1.0 + step) / (10.0 + step))
        for average, weight in zip(self.averages, self.weights.values()):
            average.assign_add((weight.value - average) * rate)

    @contextmanager
    def in_place_of_weights(self):
        """Within the block each weight holds its average, and the other way round; afterwards all is as before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self):
        def exchange():
            for average, weight in zip(self.averages, self.weights.values()):
                held = tf.identity(weight.value)
                weight.assign(average.read_value())
                average.assign(held)

        self._strategy.run(exchange)

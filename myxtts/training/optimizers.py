"""AdamW as XTTS was trained with it."""

import keras
from keras import ops


class AdamW(keras.optimizers.AdamW):
    """AdamW with epsilon after the bias correction (Loshchilov and Hutter 2019, algorithm 2), as in PyTorch.

    Keras's own adds it before, which at the first step makes it `1 / sqrt(1 - beta_2)` times as large: a weight whose
    gradient is near epsilon then moves by another amount. Arguments are those of `keras.optimizers.AdamW`.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight and its moments; called by Keras, after weight decay."""
        learning_rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        self.assign_add(momentum, (gradient - momentum) * (1.0 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1.0 - self.beta_2))
        # Both corrections as scalars: epsilon, too, is multiplied out, so the weights are gone over once.
        mean_correction = 1.0 - ops.power(ops.cast(self.beta_1, variable.dtype), step)
        root_correction = ops.sqrt(1.0 - ops.power(ops.cast(self.beta_2, variable.dtype), step))
        rate = learning_rate * root_correction / mean_correction
        self.assign_sub(variable, rate * momentum / (ops.sqrt(velocity) + self.epsilon * root_correction))

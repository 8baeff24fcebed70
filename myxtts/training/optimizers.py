"""AdamW as XTTS was trained with it."""

import keras
import tensorflow as tf


class AdamW(keras.optimizers.AdamW):
    """AdamW with epsilon after the bias correction (Loshchilov and Hutter 2019, algorithm 2), as in PyTorch.

    Keras's own adds it before, which at the first step makes it `1 / sqrt(1 - beta_2)` times as large: a weight whose
    gradient is near epsilon then moves by another amount. It also goes over weights and moments a dozen times; here one
    kernel does all. Arguments are those of `keras.optimizers.AdamW`.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight and its moments; called by Keras, after weight decay."""
        dtype = variable.dtype
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        step = tf.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        beta_2_power = tf.pow(beta_2, step)
        # The kernel adds epsilon before the correction, too; multiplied by the correction it comes after.
        epsilon = tf.cast(self.epsilon, dtype) * tf.sqrt(1 - beta_2_power)
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(self._momentums[index]),
            v=_handle(self._velocities[index]),
            beta1_power=tf.pow(beta_1, step),
            beta2_power=beta_2_power,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )


def _handle(variable):
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle

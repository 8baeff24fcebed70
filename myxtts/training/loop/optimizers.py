"""AdamW as in the XTTS recipe, and the learning-rate schedule."""

import math

import keras
import tensorflow as tf

from myxtts.config.stages import StageConfig


def make_optimizer(settings: StageConfig, trainable: dict) -> keras.optimizers.Optimizer:
    """Creates the optimizer of weights, given by name, and its slots; must be called on the weights' device."""
    beta_1, beta_2 = settings.betas
    rates = dict(weight_decay=settings.weight_decay, beta_1=beta_1, beta_2=beta_2, epsilon=1e-8)
    optimizer = AdamW(settings.learning_rate, **rates)
    excluded = [v for name, v in trainable.items() if no_weight_decay(name)]
    if excluded:
        optimizer.exclude_from_weight_decay(var_list=excluded)
    optimizer.build(list(trainable.values()))
    return optimizer


def no_weight_decay(name: str) -> bool:
    """Whether the XTTS recipe leaves a weight undecayed: biases, norms (not the perceiver's), embeddings."""
    last = name.rsplit("/", 1)[-1]
    return last in ("bias", "beta") or last.endswith("_embedding") or (last == "gamma" and "norm" in name)


class AdamW(keras.optimizers.AdamW):
    """AdamW with epsilon after the bias correction (Loshchilov and Hutter 2019, algorithm 2), as in PyTorch.

    Keras adds epsilon before the correction, which makes it `1 / sqrt(1 - beta_2)` times as large in the first step and
    changes the update of weights with gradients near epsilon. Keras also needs a dozen passes over weights and moments;
    this is one kernel. Takes the arguments of `keras.optimizers.AdamW`.
    """

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        dtype = variable.dtype
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        step = tf.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        beta_2_power = tf.pow(beta_2, step)
        # The kernel adds epsilon before the correction; multiplied by the correction, it has the effect of after.
        epsilon = tf.cast(self.epsilon, dtype) * tf.sqrt(1 - beta_2_power)
        m, v = _handle(self._momentums[index]), _handle(self._velocities[index])
        betas = dict(beta1_power=tf.pow(beta_1, step), beta2_power=beta_2_power, beta1=beta_1, beta2=beta_2)
        rates = dict(lr=tf.cast(learning_rate, dtype), epsilon=epsilon)
        tf.raw_ops.ResourceApplyAdam(var=_handle(variable), m=m, v=v, grad=tf.cast(gradient, dtype), **betas, **rates)


def _handle(variable):
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


def total_steps(max_steps: int | None, epochs: int, batches_per_epoch: int, accumulation: int) -> int:
    """Number of optimizer steps of a stage: `max_steps`, or those of its epochs."""
    return max_steps or max(1, epochs * batches_per_epoch // accumulation)


def learning_rate(settings: StageConfig, step: int, total_steps: int) -> float:
    """Learning rate after `step` of `total_steps` steps: linear warm-up, then a half cosine.

    The warm-up takes at most a tenth of the steps. After `total_steps`, the rate stays at its final value. Source:
    Loshchilov and Hutter (2017).
    """
    peak, final_share = settings.learning_rate, settings.final_learning_rate
    warmup = min(settings.warmup_steps, total_steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))

"""Batch normalization with accurate statistics that do not depend on how a batch is split."""

from collections.abc import Callable

import keras
from keras import ops

from myxtts.models.layers.tensor import Shape, Tensor


class BatchNormalization(keras.layers.Layer):
    """Normalizes the channels of `(..., C)` in float32 (Ioffe and Szegedy 2015).

    A single float32 sum over a batch of spectrograms has an error of about 1e-5 that depends on how the batch is split.
    So sums are taken axis by axis (Higham 1993, "The accuracy of floating point summation"), and the variance about the
    mean (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").

    `training` selects batch statistics and updates the moving ones, which are used otherwise.

    Args:
        momentum: Share of the old value in a moving statistic: 1 minus PyTorch's momentum.
    """

    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.momentum, self.epsilon = momentum, epsilon
        self.over_replicas: Callable[[Tensor], Tensor] = lambda value: value
        """Sums a value over the replicas that share a batch."""

    def build(self, input_shape: Shape):
        def weight(name, start, trainable=True):
            options = dict(name=name, trainable=trainable, dtype="float32", autocast=False)
            return self.add_weight(shape=input_shape[-1:], initializer=start, **options)

        self.gamma, self.beta = weight("gamma", "ones"), weight("beta", "zeros")
        self.moving_mean = weight("moving_mean", "zeros", False)
        self.moving_variance = weight("moving_variance", "ones", False)

    def call(self, inputs: Tensor, training=False) -> Tensor:
        x = ops.cast(inputs, "float32")
        mean, variance = (ops.convert_to_tensor(value) for value in (self.moving_mean, self.moving_variance))
        if training:
            moving = mean, variance
            mean, variance = self.moments(x)
            for variable, old, new in zip((self.moving_mean, self.moving_variance), moving, (mean, variance)):
                variable.assign(old * self.momentum + new * (1.0 - self.momentum))
        scale, shift = (ops.convert_to_tensor(value) for value in (self.gamma, self.beta))
        normalized = ops.batch_normalization(x, mean, variance, -1, shift, scale, self.epsilon)
        return ops.cast(normalized, self.compute_dtype)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance `(C,)` of `(..., C)` float32, over the rows of all replicas.

        Means and variances of groups are combined by Chan et al., equation 2.1. Starting with axis 1, time, which is
        the longest, keeps little besides `x` for the backward pass.
        """
        mean, variance = ops.moments(x, axes=[1]) if len(x.shape) > 2 else (x, ops.zeros_like(x))
        while len(mean.shape) > 1:
            axis = min(1, len(mean.shape) - 2)
            variance = ops.mean(variance, axis=axis)
            mean, between = ops.moments(mean, axes=[axis])
            variance = variance + between
        rows = ops.cast(ops.size(x) // ops.shape(x)[-1], x.dtype)
        count = self.over_replicas(rows)
        whole = self.over_replicas(rows * mean) / count
        return whole, self.over_replicas(rows * (variance + ops.square(mean - whole))) / count

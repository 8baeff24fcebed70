"""Layers with their weights made at once, and dense layers with the initial values of PyTorch and of GPT-2."""

import keras
from keras import ops

from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.tensor import Shape, Tensor


class AdaptableDense(keras.layers.Dense):
    """`Dense` whose low-rank adapters, once enabled, have a dropout of their own (Hu et al. 2022, appendix D).

    Call arguments: `inputs` `(..., C)`; `seed` as in `Dropout`, of the adapters' dropout.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)
        self.adapter_dropout = Dropout(0.0)
        """On what enters the adapters; its rate and site are set where they are enabled."""

    def call(self, inputs: Tensor, training=None, seed=None) -> Tensor:
        outputs = super().call(inputs, training)
        if seed is None or not self.adapter_dropout.rate:
            return outputs
        # The kernel has the adapters' product added already: what is left is what dropout changes of their input.
        change = self.adapter_dropout(inputs, seed=seed) - inputs
        down, up = (ops.cast(factor, change.dtype) for factor in (self.lora_kernel_a, self.lora_kernel_b))
        scale = ops.cast(self.lora_alpha / self.lora_rank, change.dtype)
        return outputs + scale * ops.matmul(ops.matmul(change, down), up)


def built(layer: keras.layers.Layer, *shapes: Shape) -> keras.layers.Layer:
    """`layer`, with weights for inputs of these shapes."""
    layer.build(*shapes)
    return layer


def torch_linear(units: int, fan_in: int, name: str, use_bias=True, dtype=None, zero=False) -> keras.layers.Dense:
    """A built Dense layer whose weights start uniform within 1 / sqrt(fan_in), as in `torch.nn.Linear`, or at zero."""
    bound = fan_in**-0.5
    start = keras.initializers.Zeros if zero else lambda: keras.initializers.RandomUniform(-bound, bound)
    layer = keras.layers.Dense(units, None, use_bias, start(), start(), name=name, dtype=dtype)
    return built(layer, (None, fan_in))


def normal_linear(units: int, fan_in: int, name: str, stddev=0.02, dtype=None) -> AdaptableDense:
    """A built dense layer whose kernel starts normally distributed, as GPT-2's do, and whose bias starts at zero."""
    start = keras.initializers.RandomNormal(0.0, stddev)
    return built(AdaptableDense(units, kernel_initializer=start, dtype=dtype, name=name), (None, fan_in))

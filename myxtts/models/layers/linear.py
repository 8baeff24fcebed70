"""Dense layers with the initial values of PyTorch and of GPT-2."""

import keras
from keras import ops

from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.tensor import Shape, Tensor


class AdaptableDense(keras.layers.Dense):
    """`Dense` with dropout on the input of its LoRA adapters (Hu et al. 2022, appendix D), if they are enabled.

    Call arguments: `inputs` `(..., C)`; `seed` of the adapter dropout, as in `Dropout`.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)
        self.adapter_dropout = Dropout(0.0)
        """Its rate and site are set when adapters are enabled."""

    def call(self, inputs: Tensor, training=None, seed=None) -> Tensor:
        outputs = super().call(inputs, training)
        if seed is None or not self.adapter_dropout.rate:
            return outputs
        # The kernel already includes the adapters, so only the effect of dropout on their input is added.
        change = self.adapter_dropout(inputs, seed=seed) - inputs
        down, up = (ops.cast(factor, change.dtype) for factor in (self.lora_kernel_a, self.lora_kernel_b))
        scale = ops.cast(self.lora_alpha / self.lora_rank, change.dtype)
        return outputs + scale * ops.matmul(ops.matmul(change, down), up)


def built(layer: keras.layers.Layer, *shapes: Shape) -> keras.layers.Layer:
    """Builds `layer` for inputs of these shapes, and returns it."""
    layer.build(*shapes)
    return layer


def torch_linear(units: int, fan_in: int, name: str, use_bias=True, dtype=None, zero=False) -> keras.layers.Dense:
    """A built Dense layer with the initial weights of `torch.nn.Linear`, uniform within 1 / sqrt(fan_in), or zeros."""
    bound = fan_in**-0.5
    start = keras.initializers.Zeros if zero else lambda: keras.initializers.RandomUniform(-bound, bound)
    layer = keras.layers.Dense(units, None, use_bias, start(), start(), name=name, dtype=dtype)
    return built(layer, (None, fan_in))


def normal_linear(units: int, fan_in: int, name: str, stddev=0.02, dtype=None) -> AdaptableDense:
    """A built Dense layer with a normally distributed kernel and zero bias, as in GPT-2."""
    start = keras.initializers.RandomNormal(0.0, stddev)
    return built(AdaptableDense(units, kernel_initializer=start, dtype=dtype, name=name), (None, fan_in))

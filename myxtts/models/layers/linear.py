"""Layers with their weights made at once, and dense layers with the initial values of PyTorch and of GPT-2."""

import keras

from myxtts.models.layers.tensor import Shape


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


def normal_linear(units: int, fan_in: int, name: str, stddev=0.02, dtype=None) -> keras.layers.Dense:
    """A built Dense layer whose kernel starts normally distributed, as GPT-2's do, and whose bias starts at zero."""
    start = keras.initializers.RandomNormal(0.0, stddev)
    return built(keras.layers.Dense(units, kernel_initializer=start, dtype=dtype, name=name), (None, fan_in))

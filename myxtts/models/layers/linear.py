"""Layers with their weights made at once, and dense layers with torch's initial values."""

import keras

from myxtts.models.layers.tensor import Shape


def built(layer: keras.layers.Layer, *shapes: Shape) -> keras.layers.Layer:
    """`layer`, with weights for inputs of these shapes."""
    layer.build(*shapes)
    return layer


def torch_linear(units: int, fan_in: int, name: str, use_bias=True, dtype=None, zero=False) -> keras.layers.Dense:
    """A built Dense layer whose weights start as `torch.nn.Linear`'s do, uniform within 1 / sqrt(fan_in), or at zero.

    Args:
        units: Output channels.
        fan_in: Input channels.
        name: Layer name.
        use_bias: Whether there is a bias.
        dtype: Dtype policy.
        zero: Start at zero instead.
    """
    bound = fan_in**-0.5
    start = keras.initializers.Zeros if zero else lambda: keras.initializers.RandomUniform(-bound, bound)
    layer = keras.layers.Dense(units, None, use_bias, start(), start(), name=name, dtype=dtype)
    return built(layer, (None, fan_in))

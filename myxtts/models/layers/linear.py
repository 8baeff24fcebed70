"""Dense layers with torch's initial values."""

import keras


def torch_linear(units, fan_in, name, use_bias=True, dtype=None, zero=False):
    """A Dense layer whose weights start as `torch.nn.Linear`'s do, uniform within 1 / sqrt(fan_in), or at zero.

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
    return keras.layers.Dense(
        units, use_bias=use_bias, kernel_initializer=start(), bias_initializer=start(), name=name, dtype=dtype
    )

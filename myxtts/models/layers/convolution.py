"""Convolutions with PyTorch's padding and initialization, channels last.

TensorFlow's `"same"` pads a strided convolution on one side more than on the other, and differently for even and odd
lengths. Here padding is a number of zeros on both sides, so that weights of the reference give its output.
"""

import math

import keras
from keras import ops

from myxtts.models.layers.tensor import Shape, Tensor


class _Convolution(keras.layers.Layer):
    """Shared part of `Conv1D` and `Conv2D`; `rank` is the number of spatial axes."""

    rank: int

    def __init__(self, filters: int, kernel_size: int, stride=1, padding=None, dilation=1, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        if stride > 1 and dilation > 1:
            received = f"Received: stride={stride}, dilation={dilation}."
            raise ValueError(f"A convolution may have a stride or a dilation, not both. {received}")
        if padding is None:
            if kernel_size % 2 == 0:
                rule = "kernel_size must be odd for the default padding, which is the same on both sides"
                raise ValueError(f"{rule}. Received: kernel_size={kernel_size}. Give `padding`.")
            padding = dilation * (kernel_size - 1) // 2
        self.filters, self.kernel_size, self.stride = filters, kernel_size, stride
        self.padding, self.dilation, self.use_bias = padding, dilation, use_bias

    def build(self, input_shape: Shape):
        shape = (self.kernel_size,) * self.rank + (input_shape[-1], self.filters)
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, self.use_bias)

    def call(self, x: Tensor) -> Tensor:
        keeps_length = self.stride == 1 and 2 * self.padding == self.dilation * (self.kernel_size - 1)
        if self.padding and not keeps_length:
            x = ops.pad(x, [[0, 0]] + [[self.padding, self.padding]] * self.rank + [[0, 0]])
        padding, stride = "same" if keeps_length else "valid", self.stride
        if self.kernel_size == 1 and stride > 1:
            # The same values for less; the gradient of such a kernel writes past its buffer in TensorFlow 2.21 on CPUs
            # with oneDNN, where the length is even.
            x, stride = x[(slice(None), *(slice(None, None, stride),) * self.rank)], 1
        x = ops.conv(x, self.kernel, stride, padding, "channels_last", self.dilation)
        return x if self.bias is None else x + self.bias


class Conv1D(_Convolution):
    """Convolution over time, `(B, T, C)` to `(B, T', filters)`.

    The kernel has the shape `(kernel_size, C, filters)`: a PyTorch weight `(out, in, k)` with its axes reversed. It
    starts as PyTorch's does, and so does the bias: uniform within 1 / sqrt(fan in).

    Args:
        filters: Output channels.
        kernel_size: Taps.
        stride: Input samples per output sample. `T' = 1 + (T + 2 padding - dilation (kernel_size - 1) - 1) // stride`.
        padding: Zeros on each side; None keeps the length at stride 1, `dilation (kernel_size - 1) / 2`.
        dilation: Distance of the taps; not together with a stride.
        use_bias: Whether to add a bias.

    Call arguments: `x`.
    """

    rank = 1


class Conv2D(_Convolution):
    """Convolution over two axes, `(B, H, W, C)` to `(B, H', W', filters)`, with square kernels.

    The kernel has the shape `(kernel_size, kernel_size, C, filters)`; arguments as of `Conv1D`, for both axes.
    """

    rank = 2


class ConvTranspose1D(keras.layers.Layer):
    """Transposed convolution over time, `(B, T, C)` to `(B, stride T, filters)`.

    Equals PyTorch's with `padding = (kernel_size - stride) / 2`. The kernel has the shape `(kernel_size, filters, C)`:
    a PyTorch weight `(in, out, k)` with its axes reversed. Initial values are as of `Conv1D`.

    Args:
        filters: Output channels.
        kernel_size: Taps; `kernel_size - stride` must be even and not negative.
        stride: Output samples per input sample.
    """

    def __init__(self, filters: int, kernel_size: int, stride: int, **kwargs):
        super().__init__(**kwargs)
        if kernel_size < stride or (kernel_size - stride) % 2:
            rule = "even and not negative, so that the length grows by exactly the stride"
            received = f"Received: kernel_size={kernel_size}, stride={stride}."
            raise ValueError(f"kernel_size - stride must be {rule}. {received}")
        self.filters, self.kernel_size, self.stride = filters, kernel_size, stride

    def build(self, input_shape: Shape):
        shape = (self.kernel_size, self.filters, input_shape[-1])
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, use_bias=True)

    def call(self, x: Tensor) -> Tensor:
        x = ops.conv_transpose(x, self.kernel, strides=self.stride, padding="same", data_format="channels_last")
        return x + self.bias


def _add_kernel_and_bias(layer, kernel_shape, use_bias):
    """Adds the weights of a convolution whose kernel ends in one axis that the fan-in does not count."""
    bound = 1.0 / math.sqrt(math.prod(kernel_shape[:-1]))
    of_kernel, of_bias = (keras.initializers.RandomUniform(-bound, bound) for _ in range(2))
    kernel = layer.add_weight(name="kernel", shape=kernel_shape, initializer=of_kernel)
    return kernel, layer.add_weight(name="bias", shape=(layer.filters,), initializer=of_bias) if use_bias else None

"""Convolutions with PyTorch's padding and initialization, channels last.

TensorFlow's `"same"` pads a strided convolution asymmetrically, and differently for even and odd lengths. Symmetric
zero padding gives the output of the reference from its weights.
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
            raise ValueError(f"stride or dilation must be 1. Received: stride={stride}, dilation={dilation}.")
        if padding is None and kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd unless padding is given. Received: kernel_size={kernel_size}.")
        self.filters, self.kernel_size, self.stride = filters, kernel_size, stride
        self.padding = dilation * (kernel_size - 1) // 2 if padding is None else padding
        self.dilation, self.use_bias = dilation, use_bias

    def build(self, input_shape: Shape):
        shape = (self.kernel_size,) * self.rank + (input_shape[-1], self.filters)
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, self.use_bias)

    def call(self, x: Tensor) -> Tensor:
        keeps_length = self.stride == 1 and 2 * self.padding == self.dilation * (self.kernel_size - 1)
        if self.padding and not keeps_length:
            x = ops.pad(x, [[0, 0]] + [[self.padding, self.padding]] * self.rank + [[0, 0]])
        padding, stride = "same" if keeps_length else "valid", self.stride
        if self.kernel_size == 1 and stride > 1:
            # Slicing is equivalent and cheaper, and avoids a bug: with oneDNN, TensorFlow 2.21's gradient of such a
            # kernel writes past its buffer if the length is even.
            x, stride = x[(slice(None), *(slice(None, None, stride),) * self.rank)], 1
        x = ops.conv(x, self.kernel, stride, padding, "channels_last", self.dilation)
        return x if self.bias is None else x + self.bias


class Conv1D(_Convolution):
    """Convolution over time, `(B, T, C)` to `(B, T', filters)`.

    `T' = 1 + (T + 2 padding - dilation (kernel_size - 1) - 1) // stride`. The kernel `(kernel_size, C, filters)` is a
    PyTorch weight `(out, in, k)` with its axes reversed. Kernel and bias start as in PyTorch: uniform within
    1 / sqrt(fan in).

    Args:
        padding: Zeros on each side; None is `dilation (kernel_size - 1) / 2`, which keeps the length at stride 1.
        dilation: Distance between taps; must be 1 with a stride.
    """

    rank = 1


class Conv2D(_Convolution):
    """Convolution over two axes with a square kernel, `(B, H, W, C)` to `(B, H', W', filters)`; see `Conv1D`."""

    rank = 2


class ConvTranspose1D(keras.layers.Layer):
    """Transposed convolution over time, `(B, T, C)` to `(B, stride T, filters)`.

    Equals PyTorch's with `padding = (kernel_size - stride) / 2`, which must be a whole number. The kernel
    `(kernel_size, filters, C)` is a PyTorch weight `(in, out, k)` with its axes reversed; it starts as in `Conv1D`.
    """

    def __init__(self, filters: int, kernel_size: int, stride: int, **kwargs):
        super().__init__(**kwargs)
        if kernel_size < stride or (kernel_size - stride) % 2:
            received = f"kernel_size={kernel_size}, stride={stride}"
            raise ValueError(f"kernel_size - stride must be even and not negative. Received: {received}.")
        self.filters, self.kernel_size, self.stride = filters, kernel_size, stride

    def build(self, input_shape: Shape):
        shape = (self.kernel_size, self.filters, input_shape[-1])
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, use_bias=True)

    def call(self, x: Tensor) -> Tensor:
        x = ops.conv_transpose(x, self.kernel, strides=self.stride, padding="same", data_format="channels_last")
        return x + self.bias


def _add_kernel_and_bias(layer, kernel_shape, use_bias):
    """Adds kernel and bias; the fan-in is the product of all axes of the kernel but the last."""
    bound = 1.0 / math.sqrt(math.prod(kernel_shape[:-1]))
    of_kernel, of_bias = (keras.initializers.RandomUniform(-bound, bound) for _ in range(2))
    kernel = layer.add_weight(name="kernel", shape=kernel_shape, initializer=of_kernel)
    return kernel, layer.add_weight(name="bias", shape=(layer.filters,), initializer=of_bias) if use_bias else None

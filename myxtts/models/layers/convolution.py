"""Convolutions with PyTorch's padding and initialization, channels last.

TensorFlow's `"same"` pads a strided convolution on one side more than on the other, and differently for even and odd
lengths. Here padding is a number of zeros on both sides, so that weights of the reference give its output.
"""

import math

import keras
from keras import ops

from myxtts.models.layers.minimal_filtering import minimal_filtering
from myxtts.models.layers.tensor import Shape, Tensor

_WORTH_FILTERING = 700
"""Taps times channels from which minimal filtering is quicker than oneDNN's convolution (docs/experiments.md)."""
_FILTERED_TAPS = 3
"""Taps of square kernels that are computed so."""


def set_fewer_products(layer: keras.layers.Layer, on: bool):
    """Chooses whether the convolutions in `layer` use minimal filtering where it is quicker, see `Conv1D`."""
    for sublayer in layer._flatten_layers():
        if isinstance(sublayer, _Convolution):
            sublayer.fewer_products = on


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
        self.fewer_products = False
        """Whether wide float32 layers are computed by minimal filtering: for inference on a CPU."""

    def build(self, input_shape: Shape):
        shape = (self.kernel_size,) * self.rank + (input_shape[-1], self.filters)
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, self.use_bias)

    def call(self, x: Tensor) -> Tensor:
        x = self._filter(x) if self._is_filtered(x) else self._convolve(x)
        return x if self.bias is None else x + self.bias

    def _convolve(self, x):
        keeps_length = self._keeps_length()
        if self.padding and not keeps_length:
            x = ops.pad(x, [[0, 0]] + [[self.padding, self.padding]] * self.rank + [[0, 0]])
        padding, stride = "same" if keeps_length else "valid", self.stride
        if self.kernel_size == 1 and stride > 1:
            # The same values for less; the gradient of such a kernel writes past its buffer in TensorFlow 2.21 on CPUs
            # with oneDNN, where the length is even.
            x, stride = x[(slice(None), *(slice(None, None, stride),) * self.rank)], 1
        return ops.conv(x, self.kernel, stride, padding, "channels_last", self.dilation)

    def _is_filtered(self, x):
        """Whether minimal filtering is asked for, possible and quicker."""
        reach = self.kernel_size**self.rank * min(x.shape[-1], self.filters)
        worth = self.kernel_size > 1 and reach >= _WORTH_FILTERING
        return self.fewer_products and worth and self._keeps_length() and self.compute_dtype == "float32"

    def _keeps_length(self):
        return self.stride == 1 and 2 * self.padding == self.dilation * (self.kernel_size - 1)


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

    def _filter(self, x):
        return minimal_filtering(x, ops.convert_to_tensor(self.kernel), self.dilation)


class Conv2D(_Convolution):
    """Convolution over two axes, `(B, H, W, C)` to `(B, H', W', filters)`, with square kernels.

    The kernel has the shape `(kernel_size, kernel_size, C, filters)`; arguments as of `Conv1D`, for both axes. W must
    be known where `fewer_products` is on.
    """

    rank = 2

    def _is_filtered(self, x):
        return super()._is_filtered(x) and self.kernel_size == _FILTERED_TAPS and self.dilation == 1

    def _filter(self, x):
        height, width, channels = ops.shape(x)[1], x.shape[2], self.kernel_size * x.shape[3]
        padded = ops.pad(x, ((0, 0), (0, 0), (self.padding, self.padding), (0, 0)))
        # A row's neighbors become channels; in the rows laid end to end, the taps of a column lie a row apart.
        neighbors = ops.concatenate([padded[:, :, tap : tap + width] for tap in range(self.kernel_size)], axis=-1)
        kernel = ops.reshape(self.kernel, (self.kernel_size, channels, self.filters))
        x = minimal_filtering(ops.reshape(neighbors, (-1, height * width, channels)), kernel, dilation=width)
        return ops.reshape(x, (-1, height, width, self.filters))


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

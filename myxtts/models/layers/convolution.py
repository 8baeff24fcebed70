"""Convolutions with PyTorch's padding and initialisation, channels last.

TensorFlow's `"same"` pads a strided convolution on one side more than on the other, and differently for even and odd
lengths. Here padding is a number of zeros on both sides, so that weights of the reference give its output.
"""

import math

import keras
from keras import ops

from myxtts.models.layers.minimal_filtering import minimal_filtering

_WORTH_FILTERING = 700
"""Taps times channels from which minimal filtering is quicker than oneDNN's convolution (docs/experiments.md)."""
_FILTERED_TAPS = 3
"""Taps of square kernels that are computed so."""


class _Convolution(keras.layers.Layer):
    """Shared part of `Conv1D` and `Conv2D`; `rank` is the number of spatial axes."""

    rank = None

    def __init__(
        self, filters, kernel_size, stride=1, padding=None, dilation=1, use_bias=True, kernel_initializer=None, **kwargs
    ):
        super().__init__(**kwargs)
        if stride > 1 and dilation > 1:
            raise ValueError(
                "A convolution may have a stride or a dilation, not both. "
                f"Received: stride={stride}, dilation={dilation}."
            )
        if padding is None:
            if kernel_size % 2 == 0:
                raise ValueError(
                    "kernel_size must be odd for the default padding, which is the same on both sides. "
                    f"Received: kernel_size={kernel_size}. Give `padding`."
                )
            padding = dilation * (kernel_size - 1) // 2
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        shape = (self.kernel_size,) * self.rank + (input_shape[-1], self.filters)
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, self.use_bias)

    def call(self, x):
        keeps_length = self._keeps_length()
        if self.padding and not keeps_length:
            x = ops.pad(x, [[0, 0]] + [[self.padding, self.padding]] * self.rank + [[0, 0]])
        x = ops.conv(
            x,
            self.kernel,
            strides=self.stride,
            padding="same" if keeps_length else "valid",
            data_format="channels_last",
            dilation_rate=self.dilation,
        )
        return x if self.bias is None else x + self.bias

    def _is_filtered(self, x, fewer_products):
        """Whether minimal filtering is asked for, possible and quicker."""
        worth = (
            self.kernel_size > 1 and self.kernel_size**self.rank * min(x.shape[-1], self.filters) >= _WORTH_FILTERING
        )
        return fewer_products and worth and self._keeps_length() and self.compute_dtype == "float32"

    def _keeps_length(self):
        return self.stride == 1 and 2 * self.padding == self.dilation * (self.kernel_size - 1)

    def compute_output_shape(self, input_shape):
        reach = self.dilation * (self.kernel_size - 1) - 2 * self.padding
        lengths = [n if n is None else (n - reach - 1) // self.stride + 1 for n in input_shape[1:-1]]
        return (input_shape[0], *lengths, self.filters)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


class Conv1D(_Convolution):
    """Convolution over time, `(B, T, C)` to `(B, T', filters)`.

    The kernel has the shape `(kernel_size, C, filters)`: a PyTorch weight `(out, in, k)` with its axes reversed.

    Args:
        filters: Output channels.
        kernel_size: Taps.
        stride: Input samples per output sample. `T' = 1 + (T + 2 padding - dilation (kernel_size - 1) - 1) // stride`.
        padding: Zeros on each side; None keeps the length at stride 1, `dilation (kernel_size - 1) / 2`.
        dilation: Distance of the taps; not together with a stride.
        use_bias: Whether to add a bias.
        kernel_initializer: Keras initializer, with which the bias starts at zero; None for PyTorch's default, kernel
            and bias uniform within 1 / sqrt(fan in).

    Call arguments: `x`; `fewer_products` computes wide float32 layers by minimal filtering, for inference on a CPU.
    """

    rank = 1

    def call(self, x, fewer_products=False):
        if not self._is_filtered(x, fewer_products):
            return super().call(x)
        x = minimal_filtering(x, ops.convert_to_tensor(self.kernel), self.dilation)
        return x if self.bias is None else x + self.bias


class Conv2D(_Convolution):
    """Convolution over two axes, `(B, H, W, C)` to `(B, H', W', filters)`, with square kernels.

    The kernel has the shape `(kernel_size, kernel_size, C, filters)`; arguments as of `Conv1D`, for both axes. W must be
    known where `fewer_products` is asked for.
    """

    rank = 2

    def call(self, x, fewer_products=False):
        if not (self._is_filtered(x, fewer_products) and self.kernel_size == _FILTERED_TAPS and self.dilation == 1):
            return super().call(x)
        height, width, channels = ops.shape(x)[1], x.shape[2], self.kernel_size * x.shape[3]
        padded = ops.pad(x, ((0, 0), (0, 0), (self.padding, self.padding), (0, 0)))
        # A row's neighbours become channels; in the rows laid end to end, the taps of a column lie a row apart.
        neighbours = ops.concatenate([padded[:, :, tap : tap + width] for tap in range(self.kernel_size)], axis=-1)
        kernel = ops.reshape(self.kernel, (self.kernel_size, channels, self.filters))
        x = minimal_filtering(ops.reshape(neighbours, (-1, height * width, channels)), kernel, dilation=width)
        x = ops.reshape(x, (-1, height, width, self.filters))
        return x if self.bias is None else x + self.bias


class ConvTranspose1D(keras.layers.Layer):
    """Transposed convolution over time, `(B, T, C)` to `(B, stride T, filters)`.

    Equals PyTorch's with `padding = (kernel_size - stride) / 2`. The kernel has the shape `(kernel_size, filters, C)`:
    a PyTorch weight `(in, out, k)` with its axes reversed.

    Args:
        filters: Output channels.
        kernel_size: Taps; `kernel_size - stride` must be even and not negative.
        stride: Output samples per input sample.
        kernel_initializer: As of `Conv1D`.
    """

    def __init__(self, filters, kernel_size, stride, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs)
        if kernel_size < stride or (kernel_size - stride) % 2:
            raise ValueError(
                "kernel_size - stride must be even and not negative, so that the length grows by exactly the stride. "
                f"Received: kernel_size={kernel_size}, stride={stride}."
            )
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        shape = (self.kernel_size, self.filters, input_shape[-1])
        self.kernel, self.bias = _add_kernel_and_bias(self, shape, use_bias=True)

    def call(self, x):
        x = ops.conv_transpose(x, self.kernel, strides=self.stride, padding="same", data_format="channels_last")
        return x + self.bias

    def compute_output_shape(self, input_shape):
        batch, length, _ = input_shape
        return (batch, length if length is None else length * self.stride, self.filters)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _add_kernel_and_bias(layer, kernel_shape, use_bias):
    """Adds the weights of a convolution whose kernel ends in one axis that the fan-in does not count."""
    bound = 1.0 / math.sqrt(math.prod(kernel_shape[:-1]))
    kernel_initializer, bias_initializer = layer.kernel_initializer, "zeros"
    if kernel_initializer is None:
        kernel_initializer = keras.initializers.RandomUniform(-bound, bound)
        bias_initializer = keras.initializers.RandomUniform(-bound, bound)
    kernel = layer.add_weight(name="kernel", shape=kernel_shape, initializer=kernel_initializer)
    if not use_bias:
        return kernel, None
    return kernel, layer.add_weight(name="bias", shape=(layer.filters,), initializer=bias_initializer)

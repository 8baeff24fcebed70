"""Basic layers: dropout, dense layers, norms and convolutions. Padding and initialization follow PyTorch or GPT-2."""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
from keras import ops

Tensor = Any
"""A tensor of the backend, or a value that Keras converts to one."""
Shape = tuple[int | None, ...]
"""Shape of a tensor; None for an axis of unknown length."""


class Layer(keras.layers.Layer):
    """Base class of the model's layers, which create their weights in the constructor instead of in `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.built = True


class GivenSeed(keras.random.SeedGenerator):
    """Seed generator that always returns a given tensor, because `keras.random` does not accept a tensor as seed."""

    def __init__(self, seed: Tensor):  # the base class would create a state variable
        self._given = ops.cast(seed, "uint32" if keras.backend.backend() == "jax" else "int32")

    def next(self, ordered=True) -> Tensor:
        return self._given


class Dropout(Layer):
    """Dropout with a mask that depends only on `(seed, site)`.

    The mask of `keras.layers.Dropout` depends on a counter of calls instead. A counter would change between a forward
    pass and its recomputation, and would be missing in checkpoints.

    `rate` is the fraction of values that are set to zero. `site` is the number of this layer, unique within the model.

    Call arguments: `x` of any shape; `seed`, an int32 tensor `(2,)` with (replica, step), or None for no dropout.
    """

    def __init__(self, rate: float, site: int = 0, **kwargs):
        super().__init__(autocast=False, **kwargs)  # the input keeps its dtype, whatever the default policy
        self.rate, self.site = rate, site

    def call(self, x: Tensor, seed=None) -> Tensor:
        return self.apply(x, self.keep_mask(ops.shape(x), seed))

    def keep_mask(self, shape: Shape, seed: Tensor | None, part: int | Tensor = 0) -> Tensor | None:
        """Returns a bool mask of shape `shape`, True for values to keep; None if `seed` is None or the rate is 0.

        If the mask is computed in chunks, `part` is the number of the chunk, below 1,024. Each chunk has its own mask.
        """
        if seed is None or self.rate == 0.0:
            return None
        seed = GivenSeed(ops.cast(seed, "int32") + site_offset(self.site, part))
        return keras.random.uniform(shape, dtype="float32", seed=seed) >= self.rate

    def apply(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """Returns `x / (1 - rate)`, but 0 where the mask `keep` is False; returns `x` unchanged if `keep` is None."""
        if keep is None:
            return x
        return ops.where(keep, x * ops.cast(1.0 / (1.0 - self.rate), x.dtype), ops.cast(0.0, x.dtype))


def site_offset(site: int, part: int | Tensor = 0) -> Tensor:
    """Returns an int32 offset `(2,)`. Added to a step's seed, it gives each dropout site and chunk a different seed.

    A step's seed is (replica, step). The offset adds a multiple of 1,024 to the replica number, which is below 1,024.
    """
    return ops.stack([(site << 20) + ops.cast(part, "int32") * 1024, ops.cast(0, "int32")])


class AdaptableDense(keras.layers.Dense):
    """`Dense` layer that can have LoRA adapters, with dropout on their input (Hu et al. 2022, appendix D).

    Call arguments: `inputs` `(..., C)`; `seed` of the adapters' dropout, or None for no dropout (see `Dropout`).
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)
        self.adapter_dropout = Dropout(0.0)
        """Dropout on the input of the adapters; its rate and site are set when adapters are added."""

    def call(self, inputs: Tensor, training=None, seed=None) -> Tensor:
        outputs = self.activation(add_bias(ops.matmul(inputs, self.kernel), self.bias))
        if seed is None or not self.adapter_dropout.rate:
            return outputs
        # The kernel already includes the adapters; the code below adds the effect of dropout on their input.
        change = self.adapter_dropout(inputs, seed=seed) - inputs
        down, up = (ops.cast(factor, change.dtype) for factor in (self.lora_kernel_a, self.lora_kernel_b))
        scale = ops.cast(self.lora_alpha / self.lora_rank, change.dtype)
        return outputs + scale * ops.matmul(ops.matmul(change, down), up)


@functools.cache
def has_gpu() -> bool:
    """Returns whether TensorFlow is the backend and sees a GPU. Must be called after the devices are configured."""
    return keras.backend.backend() == "tensorflow" and bool(keras.distribution.list_devices("gpu"))


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """Returns `x` `(..., C)` plus a bias `(C,)`; returns `x` unchanged if the bias is None.

    On an H100, TensorFlow's gradient of a 16-bit bias took a fifth to a half of a training step. So on GPUs, this
    function computes the gradient of a 16-bit bias as a matrix product with ones.
    """
    if bias is None:
        return x
    if keras.backend.standardize_dtype(x.dtype) == "float32" or not has_gpu():
        return ops.add(x, bias)

    def differentiable(x, bias):
        def gradient(upstream):
            rows = ops.reshape(upstream, (-1, upstream.shape[-1]))
            return upstream, ops.matmul(ops.ones((1, ops.shape(rows)[0]), rows.dtype), rows)[0]

        return ops.add(x, bias), gradient

    return ops.custom_gradient(differentiable)(x, ops.convert_to_tensor(bias))


def built(layer: keras.layers.Layer, *shapes: Shape) -> keras.layers.Layer:
    """Builds `layer` for inputs of the given shapes, and returns `layer`."""
    layer.build(*shapes)
    return layer


_BLANK = ContextVar("_BLANK", default=False)


@contextmanager
def blank_weights() -> Iterator[None]:
    """Context manager in which `uniform` and `normal` return zeros, to save time if weights are loaded afterwards."""
    token = _BLANK.set(True)
    try:
        yield
    finally:
        _BLANK.reset(token)


def uniform(bound: float) -> Any:
    """Returns an initializer for weights: uniform within ±`bound`, or zeros in a `blank_weights` block."""
    return "zeros" if _BLANK.get() else keras.initializers.RandomUniform(-bound, bound)


def normal(stddev: float) -> Any:
    """Returns an initializer for weights: normal with mean 0, or zeros in a `blank_weights` block."""
    return "zeros" if _BLANK.get() else keras.initializers.RandomNormal(0.0, stddev)


def shared_array(value: Any) -> np.ndarray:
    """Returns a tensor's or variable's value as an array. Later changes of the variable do not affect the array."""
    held = value.value if isinstance(value, keras.Variable) else value
    return np.asarray(held.read_value() if hasattr(held, "read_value") else held)  # `asarray` copies a variable


def dense(units: int, fan_in: int, name: str, dtype=None, **options) -> keras.layers.Dense:
    """Creates and builds an `AdaptableDense` layer; `options` are arguments of `keras.layers.Dense`."""
    return built(AdaptableDense(units, name=name, dtype=dtype, **options), (None, fan_in))


def torch_linear(units: int, fan_in: int, name: str, use_bias=True, dtype=None, zero=False) -> keras.layers.Dense:
    """Creates a `dense` layer with PyTorch's initialization, uniform within ±1 / sqrt(fan_in), or zeros if `zero`."""
    options = {name: "zeros" if zero else uniform(fan_in**-0.5) for name in ("kernel_initializer", "bias_initializer")}
    return dense(units, fan_in, name, dtype, use_bias=use_bias, **options)


def normal_linear(units: int, fan_in: int, name: str, stddev=0.02, dtype=None) -> AdaptableDense:
    """Creates a `dense` layer with GPT-2's initialization: a normally distributed kernel and a zero bias."""
    return dense(units, fan_in, name, dtype, kernel_initializer=normal(stddev))


def layer_norm(width: int, name: str, dtype=None, epsilon=1e-5, **options) -> keras.layers.LayerNormalization:
    """Creates and builds a `LayerNormalization` with PyTorch's default epsilon instead of Keras's 1e-3."""
    norm = keras.layers.LayerNormalization(epsilon=epsilon, name=name, dtype=dtype, **options)
    return built(norm, (None, None, width))


class Conv1D(Layer):
    """Convolution over time with zero padding on both sides, `(B, T, channels)` to `(B, ceil(T / stride), filters)`.

    The kernel `(kernel_size, channels, filters)` is a PyTorch weight `(out, in, k)` with reversed axes. Kernel and bias
    are initialized as in PyTorch, uniform within ±1 / sqrt(fan_in).

    `kernel_size` must be odd. `dilation`, the distance between taps, must be 1 if the stride is above 1.
    """

    rank = 1  # number of spatial axes

    def __init__(self, channels: int, filters: int, kernel_size: int, stride=1, dilation=1, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size, self.stride, self.dilation, self.use_bias = kernel_size, stride, dilation, use_bias
        self.padding = dilation * (kernel_size - 1) // 2
        shape = (kernel_size,) * self.rank + (channels, filters)
        bound = 1.0 / math.sqrt(math.prod(shape[:-1]))
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=uniform(bound))
        self.bias = self.add_weight(name="bias", shape=(filters,), initializer=uniform(bound)) if use_bias else None

    def call(self, x: Tensor) -> Tensor:
        padding, stride = "same", self.stride
        if stride > 1 and self.kernel_size == 1:
            # Slicing is equivalent and cheaper, and avoids a bug: with oneDNN, TensorFlow 2.21's gradient of such a
            # kernel writes past its buffer if the length is even.
            x, stride = x[(slice(None), *(slice(None, None, stride),) * self.rank)], 1
        elif stride > 1:
            x, padding = ops.pad(x, [[0, 0]] + [[self.padding, self.padding]] * self.rank + [[0, 0]]), "valid"
        x = ops.conv(x, self.kernel, stride, padding, "channels_last", self.dilation)
        return x if self.bias is None else x + self.bias


class Conv2D(Conv1D):
    """`Conv1D` over two axes, `(B, H, W, channels)` to `(B, ceil(H / stride), ceil(W / stride), filters)`."""

    rank = 2


def conv_transpose(channels: int, filters: int, kernel_size: int, stride: int, **options) -> keras.layers.Layer:
    """Creates and builds a transposed convolution over time, `(B, T, channels)` to `(B, stride T, filters)`.

    Equals `torch.nn.ConvTranspose1d` with `padding=(kernel_size - stride) / 2`, which must be an integer. The kernel
    `(kernel_size, filters, channels)` is a PyTorch weight `(in, out, k)` with reversed axes, initialized as in PyTorch.
    """
    bound = 1.0 / math.sqrt(kernel_size * filters)
    options |= dict(kernel_initializer=uniform(bound), bias_initializer=uniform(bound), data_format="channels_last")
    return built(keras.layers.Conv1DTranspose(filters, kernel_size, stride, "same", **options), (None, None, channels))

"""Convolution over time with fewer products: Winograd's minimal filtering (Lavin and Gray 2016, section 4.1)."""

import functools

import numpy as np
from keras import ops

from myxtts.models.layers.tensor import Tensor

_OUTPUTS = 4
"""Output samples of one tile."""
_POINTS = {3: (0.0, 1.0, -1.0, 0.5, -2.0), 4: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0)}
"""Where polynomials are evaluated, besides infinity, for so many taps: those that lose least precision."""


def minimal_filtering(x: Tensor, kernel: Tensor, dilation: int = 1) -> Tensor:
    """`"same"` convolution at stride 1, with about half of the products.

    A tile of four outputs needs six products per channel pair for three taps and seven for four, instead of twelve and
    sixteen; longer kernels are sums over groups of four taps. What is saved in products is paid in memory traffic, and
    part of it in precision: worth it on a CPU, for wide layers.

    Args:
        x: `(B, T, C)`.
        kernel: `(k, C, filters)`; `dilation (k - 1)` must be even.
        dilation: Distance of the taps.

    Returns:
        `(B, T, filters)`.
    """
    size, channels, filters = kernel.shape
    taps = 3 if size <= 3 else 4
    groups = -(-size // taps)
    evaluate_kernel, evaluate_input, interpolate = _transforms(taps)
    points = len(evaluate_input)
    batch, length = ops.shape(x)[0], ops.shape(x)[1]
    step = _OUTPUTS * dilation
    tiles = (length + step - 1) // step
    rows = tiles + groups - 1

    before = dilation * (size - 1) // 2
    x = ops.pad(x, ((0, 0), (before, (tiles + groups) * step - length - before), (0, 0)))
    # Neighboring samples of one phase of the dilation lie `dilation` apart: a tile is four runs of that many samples.
    x = ops.reshape(x, (batch, tiles + groups, step, channels))
    runs = [x[:, :rows, j * dilation : (j + 1) * dilation] for j in range(_OUTPUTS)]
    runs += [x[:, 1:, j * dilation : (j + 1) * dilation] for j in range(points - _OUTPUTS)]
    values = ops.matmul(evaluate_input, ops.reshape(ops.stack(runs), (points, -1)))

    kernel = ops.pad(kernel, ((0, groups * taps - size), (0, 0), (0, 0)))
    kernel = ops.transpose(ops.reshape(kernel, (groups, taps, channels, filters)), (1, 0, 2, 3))
    kernel = ops.matmul(evaluate_kernel, ops.reshape(kernel, (taps, -1)))
    if groups == 1:
        products = ops.matmul(
            ops.reshape(values, (points, -1, channels)), ops.reshape(kernel, (points, channels, filters))
        )
    else:
        values = ops.reshape(values, (points, batch, rows * dilation, channels))
        kernel = ops.reshape(kernel, (points, groups, channels, filters))
        products = ops.stack(
            [ops.conv(values[i], kernel[i], dilation_rate=dilation, data_format="channels_last") for i in range(points)]
        )
    outputs = ops.matmul(interpolate, ops.reshape(products, (points, -1)))
    outputs = ops.transpose(ops.reshape(outputs, (_OUTPUTS, batch, tiles, dilation * filters)), (1, 2, 0, 3))
    return ops.reshape(outputs, (batch, -1, filters))[:, :length]


@functools.cache
def _transforms(taps):
    """Matrices that evaluate taps and inputs, and make outputs of the products, float32.

    With V the Vandermonde matrix of the points: outputs are `A^T [(G taps) * (B^T inputs)]`, where G and A have the
    first columns of V and `B^T` is the transposed inverse of V (Toom and Cook's multiplication, transposed).
    """
    points = np.array(_POINTS[taps])
    vandermonde = np.zeros((len(points) + 1,) * 2)
    vandermonde[:-1] = points[:, None] ** np.arange(len(points) + 1)
    vandermonde[-1, -1] = 1.0

    def first_columns(count):
        columns = vandermonde[:, :count].copy()
        columns[-1] = np.arange(count) == count - 1  # the point at infinity takes the highest power
        return columns

    evaluate_kernel, interpolate = first_columns(taps), first_columns(_OUTPUTS).T
    evaluate_input = np.linalg.inv(vandermonde).T
    scale = np.abs(evaluate_kernel).sum(axis=1, keepdims=True)
    return tuple(matrix.astype("float32") for matrix in (evaluate_kernel / scale, evaluate_input * scale, interpolate))

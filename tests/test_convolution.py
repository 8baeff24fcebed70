"""Convolution layers against a plain NumPy convolution."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.layers import Conv1D, Conv2D, conv_transpose


def correlate(x, kernel, bias, stride, padding, dilation):
    """Convolution over time as PyTorch defines it, `(B, T, C)` with a kernel `(k, C, out)`, sample by sample."""
    x = np.pad(x, [(0, 0), (padding, padding), (0, 0)])
    reach = dilation * (len(kernel) - 1) + 1
    starts = range(0, x.shape[1] - reach + 1, stride)
    taps = np.stack([x[:, start : start + reach : dilation] for start in starts], axis=1)
    return np.einsum("btkc,kco->bto", taps, kernel) + bias


@pytest.mark.parametrize("length", [12, 13])
@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"kernel_size": 3}, {"stride": 1, "padding": 1, "dilation": 1}),
        ({"kernel_size": 3, "stride": 2}, {"stride": 2, "padding": 1, "dilation": 1}),
        ({"kernel_size": 7, "dilation": 3}, {"stride": 1, "padding": 9, "dilation": 3}),
        ({"kernel_size": 5, "stride": 3}, {"stride": 3, "padding": 2, "dilation": 1}),
    ],
)
def test_conv1d_pads_both_sides_equally(length, arguments, expected):
    x = np.random.default_rng(0).standard_normal((2, length, 3)).astype("float32")
    layer = Conv1D(3, 4, **arguments)
    actual = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(actual, correlate(x, *layer.get_weights(), **expected), atol=1e-5)


@pytest.mark.parametrize("kernel_size, stride", [(16, 8), (4, 2), (2, 2)])
def test_transposed_conv_is_the_adjoint_of_the_strided_conv(kernel_size, stride):
    layer = conv_transpose(3, 4, kernel_size, stride)
    x = np.random.default_rng(0).standard_normal((2, 6, 3)).astype("float32")
    y = np.random.default_rng(0).standard_normal((2, 6 * stride, 4)).astype("float32")
    up = keras.ops.convert_to_numpy(layer(x))
    kernel, bias = layer.get_weights()
    down = correlate(y, kernel, 0, stride, (kernel_size - stride) // 2, 1)
    assert up.shape == y.shape
    np.testing.assert_allclose(np.sum((up - bias) * y), np.sum(x * down), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [6, 7])
@pytest.mark.parametrize("kind, rank", [(Conv1D, 1), (Conv2D, 2)])
def test_gradient_of_a_strided_convolution_of_one_tap_is_right_and_avoids_the_operation_that_writes_past_its_buffer(
    kind, rank, length
):
    layer, draw = kind(3, 4, kernel_size=1, stride=2), np.random.default_rng(0)
    x = draw.standard_normal((2, *(length,) * rank, 3)).astype("float32")
    weights = draw.standard_normal((2, *((length + 1) // 2,) * rank, 4)).astype("float32")

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) * weights)
        return tape.gradient(loss, [layer.kernel.value, x])

    of_kernel, of_x = (one.numpy() for one in gradients(tf.constant(x)))
    taken = (slice(None), *(slice(None, None, 2),) * rank)
    expected = np.zeros_like(x)
    expected[taken] = weights @ layer.get_weights()[0].reshape(3, 4).T
    np.testing.assert_allclose(of_x, expected, atol=1e-5)
    seen, asked = x[taken].reshape(-1, 3), weights.reshape(-1, 4)
    np.testing.assert_allclose(of_kernel.reshape(3, 4), seen.T @ asked, atol=1e-4)
    operations = gradients.get_concrete_function(tf.constant(x)).graph.get_operations()
    strides = [list(one.get_attr("strides")) for one in operations if one.type.startswith("Conv2D")]
    assert all(set(steps) == {1} for steps in strides), strides

"""The checks that every layer of the project must pass: serialization, shapes, gradients, mixed precision."""

import json

import keras
import numpy as np
import tensorflow as tf
from tiny import spread

from myxtts.models.xtts import named_weights


def check_layer(
    make_layer, inputs, *, call_kwargs=None, trainable=True, dynamic_axes=None, mixed_output_dtype=None, unreached=()
):
    """Checks the requirements on all layers.

    1. `from_config(get_config())`, through JSON, gives a layer whose weights have the same paths and shapes. With the
       values of the original, it has the same output.
    2. Symbolic shapes equal the real ones, with all axes known and with `dynamic_axes` unknown.
    3. The gradient reaches every trainable weight. Weights are moved off their initial values first, so that layers
       which start at zero are tested, too.
    4. Under float16 and bfloat16 policies variables stay float32, the output is finite and has the compute dtype.

    Args:
        make_layer: Function without arguments that makes a fresh layer under the current dtype policy.
        inputs: One array, or a tuple of arrays passed by position.
        call_kwargs: Further keyword arguments of the call; arrays or plain values.
        trainable: Whether the layer must have trainable weights; False asserts that it has none.
        dynamic_axes: For each input, a tuple of the axes whose length may be unknown. By default axis 0, and axis 1 of
            integer inputs and of inputs with three axes or more.
        mixed_output_dtype: Dtype of floating outputs under a mixed policy, if it is not the compute dtype.
        unreached: Prefix of the names of trainable weights that must have no gradient.

    Returns:
        The float32 layer, with moved weights, for further checks.
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    call_kwargs = call_kwargs or {}
    keras.utils.set_random_seed(0)
    layer = make_layer()
    layer(*inputs, **call_kwargs)
    assert bool(layer.trainable_variables) == trainable, f"trainable weights: {[*named_weights(layer)]}"
    spread(layer.trainable_variables, 0.1)
    outputs = _to_numpy(layer(*inputs, **call_kwargs))
    _check_serialization(layer, inputs, call_kwargs, outputs)
    _check_symbolic_shapes(make_layer, inputs, call_kwargs, outputs, dynamic_axes or _default_dynamic_axes(inputs))
    if trainable:
        _check_gradients(layer, inputs, call_kwargs, unreached)
    for policy in ("mixed_float16", "mixed_bfloat16"):
        _check_mixed_precision(make_layer, inputs, call_kwargs, policy, mixed_output_dtype)
    return layer


def _check_serialization(layer, inputs, call_kwargs, outputs):
    clone = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    clone(*inputs, **call_kwargs)
    weights, clone_weights = _relative_shapes(layer), _relative_shapes(clone)
    assert clone_weights == weights, f"a layer rebuilt from its config has weights {clone_weights}, not {weights}"
    clone.set_weights(layer.get_weights())
    for expected, actual in zip(outputs, _to_numpy(clone(*inputs, **call_kwargs)), strict=True):
        np.testing.assert_array_equal(actual, expected, err_msg="a layer rebuilt from its config gives other output")


def _check_symbolic_shapes(make_layer, inputs, call_kwargs, outputs, dynamic_axes):
    for axes_by_input in (((),) * len(inputs), dynamic_axes):
        symbols = []
        for array, axes in zip(inputs, axes_by_input, strict=True):
            shape = tuple(None if axis in axes else length for axis, length in enumerate(array.shape))
            symbols.append(keras.KerasTensor(shape, dtype=keras.backend.standardize_dtype(array.dtype)))
        symbolic = keras.tree.flatten(make_layer()(*symbols, **call_kwargs))
        for expected, actual in zip(outputs, symbolic, strict=True):
            assert len(actual.shape) == expected.ndim, f"symbolic shape {actual.shape}, real shape {expected.shape}"
            agree = [known in (None, real) for known, real in zip(actual.shape, expected.shape, strict=True)]
            assert all(agree), f"symbolic shape {actual.shape}, real shape {expected.shape}"
            if not any(axes_by_input):
                assert tuple(actual.shape) == expected.shape, f"shape left unknown: {actual.shape}"


def _check_gradients(layer, inputs, call_kwargs, unreached):
    random = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        loss = 0.0
        for output in keras.tree.flatten(layer(*inputs, **call_kwargs)):
            if keras.backend.is_float_dtype(output.dtype):
                direction = random.standard_normal(output.shape).astype("float32")
                loss += tf.reduce_sum(tf.cast(output, "float32") * direction)
    named = {name: variable.value for name, variable in named_weights(layer).items() if variable.trainable}
    for name, gradient in tape.gradient(loss, named).items():
        reached = gradient is not None and bool(np.any(tf.convert_to_tensor(gradient).numpy()))
        expected = not name.startswith(tuple(unreached))
        assert reached == expected, f"gradient {'reaches' if reached else 'does not reach'} {name}"
        finite = not reached or np.isfinite(tf.convert_to_tensor(gradient).numpy()).all()
        assert finite, f"gradient of {name} is not finite"


def _check_mixed_precision(make_layer, inputs, call_kwargs, policy, mixed_output_dtype):
    default = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        layer = make_layer()
        outputs = keras.tree.flatten(layer(*inputs, **call_kwargs))
    finally:
        keras.config.set_dtype_policy(default)
    variable_dtypes = {variable.dtype for variable in layer.trainable_variables}
    assert variable_dtypes <= {"float32"}, f"{policy}: variables of dtypes {variable_dtypes}"
    for output in outputs:
        dtype = keras.backend.standardize_dtype(output.dtype)
        if keras.backend.is_float_dtype(dtype):
            assert dtype == (mixed_output_dtype or layer.compute_dtype), f"{policy}: output dtype {dtype}"
            assert np.isfinite(tf.cast(output, "float32").numpy()).all(), f"{policy}: output is not finite"


def _default_dynamic_axes(inputs):
    return tuple((0, 1) if array.ndim >= 3 or np.issubdtype(array.dtype, np.integer) else (0,) for array in inputs)


def _relative_shapes(layer):
    """Returns `(name, shape)` of each weight; the name excludes that of the layer, which differs between instances."""
    return [(name, tuple(weight.shape)) for name, weight in named_weights(layer).items()]


def _to_numpy(outputs):
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]

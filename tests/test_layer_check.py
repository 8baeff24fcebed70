"""The shared layer check turns red on each breach it is there for."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_check import check_layer


class Scale(keras.layers.Layer):
    """Multiplies by a weight; the flags break one promise each."""

    def __init__(
        self, power=1, loses_config=False, wrong_shape=False, idle_weight=False, full_precision=False, **kwargs
    ):
        super().__init__(**kwargs)
        self.power = power
        self.loses_config = loses_config
        self.wrong_shape = wrong_shape
        self.idle_weight = idle_weight
        self.full_precision = full_precision

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer="ones")
        if self.idle_weight:
            self.idle = self.add_weight(name="idle", shape=(1,), initializer="ones")

    def call(self, x):
        x = (x * self.scale) ** self.power
        return ops.cast(x, "float32") if self.full_precision else x

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 1) if self.wrong_shape else input_shape

    def get_config(self):
        return super().get_config() | (
            {} if self.loses_config else {"power": self.power, "idle_weight": self.idle_weight}
        )


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")


def test_sound_layer_passes():
    check_layer(lambda: Scale(power=2), X)


@pytest.mark.parametrize(
    "make_layer, message",
    [
        (lambda: Scale(power=2, loses_config=True), "rebuilt from its config"),
        (lambda: Scale(wrong_shape=True), "symbolic shape"),
        (lambda: Scale(idle_weight=True), "does not reach scale.*/idle"),
        (lambda: Scale(full_precision=True), "mixed_float16: output dtype float32"),
    ],
)
def test_broken_promise_is_found(make_layer, message):
    with pytest.raises(AssertionError, match=message):
        check_layer(make_layer, X)


def test_layer_without_weights_is_no_trainable_layer():
    with pytest.raises(AssertionError, match="trainable weights"):
        check_layer(keras.layers.ReLU, X)
    check_layer(keras.layers.ReLU, X, trainable=False)


def test_weight_that_is_to_stay_unreached_may_be_named():
    check_layer(lambda: Scale(idle_weight=True), X, unreached=("idle",), dynamic_axes=((0,),))

"""Minimal filtering against the direct convolution, and where a layer takes which."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model_config

from myxtts.models.layers import convolution
from myxtts.models.layers.convolution import Conv1D, Conv2D, set_fewer_products
from myxtts.models.layers.minimal_filtering import minimal_filtering
from myxtts.models.xtts import XTTS


def direct(x, kernel, dilation):
    """The convolution as its definition has it, in float64."""
    x, kernel = x.astype(np.float64), kernel.astype(np.float64)
    reach = dilation * (len(kernel) - 1) // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (0, 0)))
    return sum(padded[:, i * dilation : i * dilation + x.shape[1]] @ tap for i, tap in enumerate(kernel))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([3, 5, 7, 11]), st.integers(1, 5), st.integers(1, 40), st.integers(1, 3), st.integers(0, 99))
def test_outputs_equal_the_convolution(size, dilation, length, batch, seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, length, 5)).astype(np.float32)
    kernel = random.standard_normal((size, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(minimal_filtering(x, kernel, dilation), direct(x, kernel, dilation), atol=1e-3)


def test_precision_is_kept():
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 200, 256)).astype(np.float32)
    for size in (3, 11):
        kernel = random.standard_normal((size, 256, 32)).astype(np.float32)
        expected = direct(x, kernel, 1)
        assert np.abs(minimal_filtering(x, kernel) - expected).max() < 2e-5 * np.abs(expected).max()


def test_length_may_be_unknown_when_traced():
    random = np.random.default_rng(0)
    kernel = tf.constant(random.standard_normal((7, 4, 4)), tf.float32)
    function = tf.function(
        lambda x: minimal_filtering(x, kernel, 3), input_signature=[tf.TensorSpec([None, None, 4], tf.float32)]
    )
    for length in (1, 29):
        x = random.standard_normal((2, length, 4)).astype(np.float32)
        np.testing.assert_allclose(function(x), direct(x, kernel.numpy(), 3), atol=1e-4)


@pytest.mark.parametrize(
    "settings_, taken",
    [
        ({"filters": 250, "kernel_size": 3}, True),
        ({"filters": 250, "kernel_size": 7, "dilation": 3}, True),
        ({"filters": 8, "kernel_size": 3}, False),
        ({"filters": 250, "kernel_size": 1}, False),
        ({"filters": 250, "kernel_size": 3, "stride": 2}, False),
        ({"filters": 250, "kernel_size": 3, "padding": 0}, False),
        ({"filters": 250, "kernel_size": 4, "padding": 2}, False),
        ({"filters": 250, "kernel_size": 4, "dilation": 2, "padding": 3}, True),
        ({"filters": 250, "kernel_size": 3, "dtype": "mixed_bfloat16"}, False),
    ],
)
def test_layer_takes_it_only_where_it_is_right_and_quicker(monkeypatch, settings_, taken):
    calls = []
    monkeypatch.setattr(convolution, "minimal_filtering", lambda *given_: calls.append(1) or minimal_filtering(*given_))
    layer = Conv1D(**settings_)
    x = np.random.default_rng(0).standard_normal((1, 20, 250)).astype(np.float32)
    expected = layer(x)
    assert not calls
    set_fewer_products(layer, True)
    np.testing.assert_allclose(layer(x), expected, atol=1e-4)
    assert bool(calls) == taken


@pytest.mark.parametrize(
    "settings_, taken",
    [
        ({"filters": 96, "kernel_size": 3}, True),
        ({"filters": 8, "kernel_size": 3}, False),
        ({"filters": 96, "kernel_size": 3, "stride": 2}, False),
        ({"filters": 96, "kernel_size": 5}, False),
        ({"filters": 96, "kernel_size": 3, "dilation": 2}, False),
        ({"filters": 96, "kernel_size": 3, "padding": 0}, False),
    ],
)
def test_square_kernel_is_filtered_only_where_it_is_right_and_quicker(monkeypatch, settings_, taken):
    calls = []
    monkeypatch.setattr(
        convolution,
        "minimal_filtering",
        lambda *given_, **named: calls.append(1) or minimal_filtering(*given_, **named),
    )
    layer = Conv2D(**settings_)
    x = np.random.default_rng(0).standard_normal((2, 11, 7, 80)).astype(np.float32)
    layer.build(x.shape)
    expected = layer(x)
    set_fewer_products(layer, True)
    function = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 7, 80], tf.float32)])
    np.testing.assert_allclose(function(x), expected, atol=1e-4)
    assert bool(calls) == taken


def test_codes_and_sound_are_the_same_with_fewer_products(monkeypatch):
    monkeypatch.setattr(convolution, "_WORTH_FILTERING", 3)
    config, random = tiny_model_config(), np.random.default_rng(0)
    model = XTTS(config, parts=("dvae", "speaker", "decoder"))
    mel, speaker_mel = (random.standard_normal((2, 24, bands)).astype(np.float32) for bands in (80, 64))
    latents = random.standard_normal((1, 5, config.width)).astype(np.float32)
    speaker = random.standard_normal((1, config.speaker_width)).astype(np.float32)
    filtered = []
    monkeypatch.setattr(
        convolution,
        "minimal_filtering",
        lambda *given_, **named: filtered.append(1) or minimal_filtering(*given_, **named),
    )
    for layer, call, inputs in (
        (model.speaker_encoder, model.speaker_encoder, (speaker_mel,)),
        (model.dvae, model.dvae.mel_to_vectors, (mel,)),
        (model.decoder, model.decoder, (latents, speaker)),
    ):
        expected = call(*inputs)
        assert not filtered
        set_fewer_products(layer, True)
        np.testing.assert_allclose(call(*inputs), expected, atol=1e-5)
        assert filtered
        filtered.clear()
    set_fewer_products(model.dvae, False)
    model.dvae.mel_to_vectors(mel)
    assert not filtered

"""Attention, transformer, perceiver, conditioning encoder, quantizer and dropout: the shared check, and NumPy."""

import keras
import numpy as np
import pytest
from layer_check import check_layer
from scipy.special import erf
from tiny import tiny_model_config

from myxtts.models.conditioning_encoder import ConditioningBlock, ConditioningEncoder, num_groups
from myxtts.models.dvae import DVAE, DVAEResidualBlock
from myxtts.models.gpt import GPT
from myxtts.models.layers.attention import CausalSelfAttention, attention, merge_heads, split_heads
from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.linear import torch_linear
from myxtts.models.layers.transformer import TransformerBlock
from myxtts.models.layers.vector_quantizer import VectorQuantizer
from myxtts.models.perceiver import PerceiverLayer, PerceiverResampler
from myxtts.models.xtts import XTTS, named_weights

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 5, 16)).astype("float32")
CAUSAL = np.tril(np.ones((5, 5), bool))
KEY_MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
SEED = np.array([1, 2], "int32")


def to_numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def numpy_attention(query, key, value, mask=None):
    """Attention head by head; `(heads, T, D)`."""
    out = np.zeros_like(query)
    for head in range(len(query)):
        scores = query[head] @ key[head].T / np.sqrt(query.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[head] = weights / weights.sum(-1, keepdims=True) @ value[head]
    return out


def heads_of(x, heads):
    return np.stack(np.split(x, heads, axis=-1))


def random_weights(layer, scale=0.3):
    random = np.random.default_rng(3)
    layer.set_weights([scale * random.standard_normal(w.shape).astype("float32") for w in layer.get_weights()])
    return layer


def weights_by_name(layer):
    return {name: to_numpy(variable) for name, variable in named_weights(layer).items()}


LAYERS = {
    "causal_self_attention": (lambda: CausalSelfAttention(2, 0.1), X, {"key_mask": KEY_MASK}, {}),
    "transformer_block": (lambda: TransformerBlock(2, 0.1, site=3), X, {"key_mask": KEY_MASK}, {}),
    "transformer_block_with_dropout": (lambda: TransformerBlock(2, 0.5), X, {"seed": SEED}, {}),
    "perceiver_layer": (lambda: PerceiverLayer(2, 4), (X, X[:, :3] + 1), {}, {}),
    "perceiver_resampler": (lambda: PerceiverResampler(3, 2, 2, 4), X, {}, {}),
    "conditioning_block": (lambda: ConditioningBlock(2), X, {}, {}),
    "conditioning_encoder": (lambda: ConditioningEncoder(16, 2, 2), X[..., :6], {}, {}),
    "dvae_residual_block": (lambda: DVAEResidualBlock(16), X, {}, {}),
    "dropout": (lambda: Dropout(0.5, site=4), X, {"seed": SEED}, {"trainable": False, "mixed_output_dtype": "float32"}),
    "vector_quantizer": (
        lambda: VectorQuantizer(7, 4),
        np.array([[0, 3], [6, 3]], "int32"),
        {},
        {"trainable": False, "mixed_output_dtype": "float32"},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_keeps_the_promises_of_all_layers(name):
    make_layer, inputs, call_kwargs, checks = LAYERS[name]
    check_layer(make_layer, inputs, call_kwargs=call_kwargs, **checks)


def test_gpt_keeps_the_promises_of_all_layers():
    latents = RANDOM.standard_normal((2, 4, 16)).astype("float32")
    text, audio = np.array([[3, 7, 9, 0], [3, 8, 0, 0]], "int32"), np.array([[16, 1, 17], [16, 5, 17]], "int32")
    # The latents come from outside, so the layers that make them are not reached.
    gpt = GPT(tiny_model_config())
    gpt.build()
    unreached = [v.path for v in gpt.trainable_variables if "conditioning_encoder" in v.path or "perceiver" in v.path]
    check_layer(
        lambda: GPT(tiny_model_config(), name=gpt.name),
        (latents, text, audio),
        mixed_output_dtype="float32",
        unreached=unreached,
        dynamic_axes=((0,), (0, 1), (0, 1)),
    )


class Reconstruction(DVAE):
    """The output of a DVAE that has the compute dtype."""

    def call(self, mel):
        return super().call(mel)["reconstruction"]


def test_dvae_keeps_the_promises_of_all_layers():
    mel = RANDOM.standard_normal((2, 12, 6)).astype("float32")
    # The quantizer passes the gradient straight through, so the encoder is reached.
    check_layer(lambda: Reconstruction(6, 8, 4, 8, 1), mel)


def test_dvae_announces_the_shapes_and_dtypes_of_its_outputs():
    dvae = DVAE(6, 8, 4, 8, 1, dtype="mixed_bfloat16")
    dtypes = {"reconstruction": "bfloat16", "vectors": "float32", "quantized": "float32", "codes": "int32"}
    shapes = {"reconstruction": (2, 12, 6), "vectors": (2, 3, 4), "quantized": (2, 3, 4), "codes": (2, 3)}
    for mel in (keras.KerasTensor((2, 12, 6)), RANDOM.standard_normal((2, 12, 6)).astype("float32")):
        outputs = dvae(mel)
        assert {name: tuple(output.shape) for name, output in outputs.items()} == shapes
        assert {name: keras.backend.standardize_dtype(output.dtype) for name, output in outputs.items()} == dtypes


def test_attention_equals_numpy():
    query, key, value = (RANDOM.standard_normal((2, 3, length, 4)).astype("float32") for length in (5, 6, 6))
    key_mask = RANDOM.random((2, 6)) < 0.6
    key_mask[:, 0] = True
    actual = to_numpy(attention(query, key, value, key_mask))
    causal = to_numpy(attention(query, key[:, :, :5], value[:, :, :5], key_mask[:, :5], causal=True))
    for row in range(2):
        np.testing.assert_allclose(
            actual[row], numpy_attention(query[row], key[row], value[row], key_mask[row]), atol=1e-6
        )
        expected = numpy_attention(query[row], key[row, :, :5], value[row, :, :5], CAUSAL & key_mask[row, :5])
        np.testing.assert_allclose(causal[row], expected, atol=1e-6)


def test_heads_are_split_in_order_and_merged_back():
    split = to_numpy(split_heads(X, 4))
    np.testing.assert_array_equal(split[:, 1], X[..., 4:8])
    np.testing.assert_array_equal(to_numpy(merge_heads(split)), X)


def test_causal_self_attention_lays_its_projection_out_in_thirds():
    layer = CausalSelfAttention(2)
    layer.build(X.shape)
    weights = weights_by_name(random_weights(layer))
    actual = to_numpy(layer(X))
    for row in range(2):
        query, key, value = np.split(X[row] @ weights["qkv/kernel"] + weights["qkv/bias"], 3, axis=-1)
        attended = numpy_attention(heads_of(query, 2), heads_of(key, 2), heads_of(value, 2), CAUSAL)
        expected = (
            np.concatenate(list(attended), axis=-1) @ weights["output_projection/kernel"]
            + weights["output_projection/bias"]
        )
        np.testing.assert_allclose(actual[row], expected, atol=1e-5)


def normalized(x, gamma, beta):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta


def test_transformer_block_equals_numpy():
    block = TransformerBlock(2)
    block.build(X.shape)
    weights = weights_by_name(random_weights(block))
    attended = to_numpy(block.attention(normalized(X, weights["attention_norm/gamma"], weights["attention_norm/beta"])))
    x = X + attended
    hidden = normalized(x, weights["mlp_norm/gamma"], weights["mlp_norm/beta"])
    hidden = hidden @ weights["mlp_in/kernel"] + weights["mlp_in/bias"]
    gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    expected = x + gelu @ weights["mlp_out/kernel"] + weights["mlp_out/bias"]
    np.testing.assert_allclose(to_numpy(block(X)), expected, atol=1e-4)


def test_conditioning_block_adds_the_normalized_input():
    block = ConditioningBlock(2)
    block.build(X.shape)
    # The output projection starts at zero: what is left is the group norm.
    groups = X.reshape(2, 5, 8, 2)
    mean = groups.mean((1, 3), keepdims=True)
    expected = ((groups - mean) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)).reshape(X.shape)
    np.testing.assert_allclose(to_numpy(block(X)), expected, atol=1e-5)
    weights = weights_by_name(random_weights(block))
    x = expected * weights["norm/gamma"] + weights["norm/beta"]
    actual = to_numpy(block(X))
    for row in range(2):
        # Channels are laid out head by head, and in each head as query, key, value.
        qkv = heads_of(x[row] @ weights["qkv/kernel"] + weights["qkv/bias"], 2)
        attended = numpy_attention(*np.split(qkv, 3, axis=-1))
        expected_row = (
            x[row]
            + np.concatenate(list(attended), -1) @ weights["output_projection/kernel"]
            + weights["output_projection/bias"]
        )
        np.testing.assert_allclose(actual[row], expected_row, atol=1e-4)


@pytest.mark.parametrize("width, groups", [(8, 8), (16, 8), (64, 16), (128, 32), (1024, 32)])
def test_number_of_groups_is_the_reference_s(width, groups):
    assert num_groups(width) == groups


def test_perceiver_layer_equals_numpy():
    latents, context = X[:, :3], X + 0.5
    layer = PerceiverLayer(2, 4)
    layer.build(latents.shape, context.shape)
    weights = weights_by_name(random_weights(layer))
    actual = to_numpy(layer(latents, context))
    for row in range(2):
        query = latents[row] @ weights["query/kernel"]
        key, value = np.split(np.concatenate([latents[row], context[row]]) @ weights["key_value/kernel"], 2, axis=-1)
        attended = numpy_attention(heads_of(query, 2), heads_of(key, 2), heads_of(value, 2))
        z = latents[row] + np.concatenate(list(attended), -1) @ weights["output_projection/kernel"]
        update, gate = np.split(z @ weights["mlp_in/kernel"] + weights["mlp_in/bias"], 2, axis=-1)
        gelu = 0.5 * gate * (1 + erf(gate / np.sqrt(2)))
        expected = z + (update * gelu) @ weights["mlp_out/kernel"] + weights["mlp_out/bias"]
        np.testing.assert_allclose(actual[row], expected, atol=1e-4)


def test_perceiver_mlp_has_the_reference_s_width():
    layer = PerceiverLayer(8, 64)
    layer.build((None, 32, 1024), (None, None, 1024))
    shapes = {name: array.shape for name, array in weights_by_name(layer).items()}
    assert shapes["mlp_in/kernel"] == (1024, 5460) and shapes["mlp_out/kernel"] == (2730, 1024)


def test_perceiver_output_is_rms_normalized():
    resampler = PerceiverResampler(3, 1, 2, 4)
    out = to_numpy(resampler(X))
    assert out.shape == (2, 3, 16)
    np.testing.assert_allclose((out**2).mean(-1), 1.0, atol=1e-5)
    resampler.gamma.assign(np.arange(16, dtype="float32"))
    np.testing.assert_allclose(to_numpy(resampler(X)), out * np.arange(16), atol=1e-5)


def test_dropout_drops_its_share_and_keeps_the_mean():
    ones = np.ones((200, 200), "float32")
    dropped = to_numpy(Dropout(0.2)(ones, seed=SEED))
    assert np.mean(dropped == 0) == pytest.approx(0.2, abs=0.02)
    assert dropped.mean() == pytest.approx(1.0, abs=0.02)


def test_dropout_without_a_seed_changes_nothing():
    np.testing.assert_array_equal(to_numpy(Dropout(0.5)(X)), X)
    np.testing.assert_array_equal(to_numpy(Dropout(0.0)(X, seed=SEED)), X)


def test_dropout_mask_is_a_function_of_seed_and_site():
    def mask(site, *seed):
        return to_numpy(Dropout(0.5, site)(np.ones(256, "float32"), seed=np.array(seed, "int32"))) > 0

    np.testing.assert_array_equal(mask(3, 1, 2), mask(3, 1, 2))
    # Neighboring steps, sites and replicas draw their own numbers, in every combination.
    masks = {tuple(mask(site, replica, step)) for site in range(4) for replica in range(3) for step in range(4)}
    assert len(masks) == 4 * 3 * 4


def test_torch_linear_starts_uniform_within_one_over_root_fan_in():
    layer = torch_linear(300, 16, "x")
    for weight in layer.get_weights():
        assert 0.23 < np.abs(weight).max() <= 0.25
        assert abs(weight.std() - 0.25 / np.sqrt(3)) < 0.02
    layer = torch_linear(3, 16, "x", zero=True)
    assert not any(weight.any() for weight in layer.get_weights())


@pytest.mark.parametrize("parts", [("dvae",), ("gpt",), ("dvae", "gpt", "speaker", "decoder")])
def test_every_weight_of_a_model_has_a_name_of_its_own(parts):
    model = XTTS(tiny_model_config(), parts=parts)
    named = {id(variable): name for part in parts for name, variable in model.part_weights(part).items()}
    assert len(named) == len(set(named.values()))
    missing = [v.path for v in model.weights if id(v) not in named and v is not model.mel_stats]
    assert missing == []


def test_weight_names_do_not_depend_on_where_the_layer_was_made():
    apart, together = XTTS(tiny_model_config(), parts=("gpt",)), XTTS(tiny_model_config())
    assert list(apart.part_weights("gpt")) == list(together.part_weights("gpt"))


@pytest.mark.parametrize("made", [("dvae", "gpt"), ("gpt", "dvae", "speaker"), ("decoder", "gpt"), ("dvae",)])
def test_assembled_model_shares_the_weights_of_all_parts(made):
    config = tiny_model_config()
    models = {part: XTTS(config, parts=(part,)) for part in made}
    model = XTTS.assemble(config, *models.values())
    assert set(model.parts) == set(made)
    for part in made:
        theirs = models[part].part_weights(part)
        assert {name: id(v) for name, v in model.part_weights(part).items()} == {n: id(v) for n, v in theirs.items()}
    owner = models.get("dvae", models[made[-1]])
    assert model.mel_stats is owner.mel_stats


def test_assembled_model_takes_a_part_from_the_last_model_that_has_it():
    config = tiny_model_config()
    frozen, trained = XTTS(config), XTTS(config, parts=("gpt",))
    model = XTTS.assemble(config, frozen, trained)
    assert (model.parts, model.dvae, model.gpt) == (("dvae", "gpt"), frozen.dvae, trained.gpt)
    assert model.mel_stats is frozen.mel_stats


def test_model_with_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match="vocoder"):
        XTTS(tiny_model_config(), parts=("vocoder",))

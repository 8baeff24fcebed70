"""Attention, layers, dropout and assembled models; `test_seeded_parity` compares whole models with the reference."""

import numpy as np
import pytest
from keras.ops import convert_to_numpy as to_numpy
from layer_check import check_layer
from test_waveform_decoders import normal
from tiny import tiny_model_config

from myxtts.models.attention import TransformerBlock
from myxtts.models.conditioning import ConditioningBlock, ConditioningEncoder, PerceiverLayer, PerceiverResampler
from myxtts.models.dvae import DVAE, DVAEResidualBlock, VectorQuantizer
from myxtts.models.gpt import GPT
from myxtts.models.layers import Conv1D, Conv2D, Dropout, conv_transpose
from myxtts.models.speaker_encoder import AttentiveStatisticsPooling as Pooling
from myxtts.models.speaker_encoder import BatchNormalization, ResidualBlock, SpeakerEncoder, SqueezeExcitation
from myxtts.models.waveform_decoders import ConvNextBlock, HifiganGenerator, IstftGenerator, ResidualStack
from myxtts.models.xtts import PARTS, XTTS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 5, 16)).astype("float32")
TEXT, AUDIO = np.array([[3, 7, 9, 0], [3, 8, 0, 0]], "int32"), np.array([[16, 1, 17], [16, 5, 17]], "int32")
KEY_MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
SEED = np.array([1, 2], "int32")
TINY_HIFIGAN = dict(width=6, speaker_width=3, channels=16, upsampling=((4, 8), (2, 4)))
TINY_HIFIGAN |= dict(kernel_sizes=(3, 5), dilations=(1, 3))
FLOAT32 = {"mixed_output_dtype": "float32"}
FROZEN = {"trainable": False, **FLOAT32}
WAVES = {"dynamic_axes": ((0, 1), (0,)), **FLOAT32}


class Reconstruction(DVAE):
    """Returns the output of a DVAE that has the compute dtype."""

    def call(self, mel):
        return super().call(mel)["reconstruction"]


LAYERS = {
    "transformer_block": (lambda: TransformerBlock(16, 2, 0.1, site=3), X, {"key_mask": KEY_MASK}, {}),
    "transformer_block_with_dropout": (lambda: TransformerBlock(16, 2, 0.5), X, {"seed": SEED}, {}),
    "perceiver_layer": (lambda: PerceiverLayer(16, 2, 4), (X, X[:, :3] + 1), {}, {}),
    "perceiver_resampler": (lambda: PerceiverResampler(16, 3, 2, 2, 4), X, {}, {}),
    "conditioning_block": (lambda: ConditioningBlock(16, 2), X, {}, {}),
    "conditioning_encoder": (lambda: ConditioningEncoder(6, 16, 2, 2), X[..., :6], {}, {}),
    "squeeze_excitation": (lambda: SqueezeExcitation(32), normal(2, 3, 5, 32), {}, {}),
    "residual_block": (lambda: ResidualBlock(32, 32), normal(2, 6, 5, 32), {}, {}),
    "residual_block_with_stride": (lambda: ResidualBlock(8, 32, stride=2), normal(2, 6, 5, 8), {}, {}),
    "batch_normalization": (lambda: BatchNormalization(5), normal(2, 7, 5), {}, {}),
    "attentive_pooling": (lambda: Pooling(5, 4), normal(2, 7, 5), {}, FLOAT32),
    "speaker_encoder": (
        lambda: SpeakerEncoder(num_mels=64, widths=(32, 32), num_blocks=(1, 1), embedding_width=12),
        normal(2, 21, 64),
        {},
        {"dynamic_axes": ((0, 1),), **FLOAT32},
    ),
    "hifigan_residual_stack": (lambda: ResidualStack(4, 3, (1, 3)), normal(2, 12, 4), {}, {}),
    "hifigan": (lambda: HifiganGenerator(**TINY_HIFIGAN), (normal(2, 5, 6), normal(2, 3)), {}, WAVES),
    "convnext_block": (lambda: ConvNextBlock(8, 24, causal=True, scale=0.25), (normal(2, 9, 8), normal(2, 8)), {}, {}),
    "istft": (lambda: IstftGenerator(6, 5, 3, 12, 16), (normal(2, 5, 6), normal(2, 5)), {}, WAVES),
    "gpt": (
        lambda: GPT(tiny_model_config()),
        (normal(2, 4, 16), TEXT, AUDIO),
        {},
        # The latents come from outside, so the layers that make them are not reached.
        {"unreached": ("conditioning_encoder/", "perceiver/"), "dynamic_axes": ((0,), (0, 1), (0, 1)), **FLOAT32},
    ),
    # The quantizer passes the gradient straight through, so the encoder is reached.
    "dvae": (lambda: Reconstruction(6, 8, 4, 8, 1), normal(2, 12, 6), {}, {}),
    "conv1d_with_stride": (lambda: Conv1D(3, 4, 3, stride=2), normal(2, 9, 3), {}, {}),
    "conv1d_with_dilation": (lambda: Conv1D(3, 4, 3, dilation=3, use_bias=False), normal(2, 9, 3), {}, {}),
    "conv1d_of_one_tap": (lambda: Conv1D(3, 4, 1), normal(2, 9, 3), {}, {}),
    "conv2d": (lambda: Conv2D(3, 4, 3, stride=2), normal(2, 6, 9, 3), {}, {}),
    "conv_transpose": (lambda: conv_transpose(3, 4, 4, 2), normal(2, 9, 3), {}, {}),
    "dvae_residual_block": (lambda: DVAEResidualBlock(16), X, {}, {}),
    "dropout": (lambda: Dropout(0.5, site=4), X, {"seed": SEED}, FROZEN),
    "vector_quantizer": (lambda: VectorQuantizer(7, 4), np.array([[0, 3], [6, 3]], "int32"), {}, FROZEN),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_keeps_the_promises_of_all_layers(name):
    make_layer, inputs, call_kwargs, checks = LAYERS[name]
    check_layer(make_layer, inputs, call_kwargs=call_kwargs, **checks)


def test_dropout_drops_its_share_and_keeps_the_mean():
    dropped = to_numpy(Dropout(0.2)(np.ones((200, 200), "float32"), seed=SEED))
    assert np.mean(dropped == 0) == pytest.approx(0.2, abs=0.02)
    assert dropped.mean() == pytest.approx(1.0, abs=0.02)


def test_dropout_mask_is_a_function_of_seed_and_site():
    def mask(site, *seed):
        return to_numpy(Dropout(0.5, site)(np.ones(256, "float32"), seed=np.array(seed, "int32"))) > 0

    np.testing.assert_array_equal(mask(3, 1, 2), mask(3, 1, 2))
    masks = {tuple(mask(site, replica, step)) for site in range(4) for replica in range(3) for step in range(4)}
    assert len(masks) == 4 * 3 * 4


def test_every_weight_of_a_model_has_a_name_of_its_own():
    model = XTTS(tiny_model_config(), PARTS)
    named = {id(variable): name for part in PARTS for name, variable in model.part_weights(part).items()}
    assert len(named) == len(set(named.values()))
    assert [v.path for v in model.weights if id(v) not in named and v is not model.mel_stats] == []


@pytest.mark.parametrize("made", [("dvae", "gpt"), ("gpt", "dvae", "speaker"), ("decoder", "gpt"), ("dvae",)])
def test_assembled_model_shares_the_weights_of_all_parts(made, small_speaker_encoders):
    config = tiny_model_config()
    models = {part: XTTS(config, parts=(part,)) for part in made}
    model = XTTS.assemble(config, *models.values())
    assert set(model.parts) == set(made)
    for part in made:
        theirs = models[part].part_weights(part)
        assert {name: id(v) for name, v in model.part_weights(part).items()} == {n: id(v) for n, v in theirs.items()}
    assert model.mel_stats is models.get("dvae", models[made[-1]]).mel_stats


def test_assembled_model_takes_a_part_from_the_last_model_that_has_it():
    config = tiny_model_config()
    frozen, trained = XTTS(config), XTTS(config, parts=("gpt",))
    model = XTTS.assemble(config, frozen, trained)
    assert (model.parts, model.dvae, model.gpt) == (("dvae", "gpt"), frozen.dvae, trained.gpt)
    assert model.mel_stats is frozen.mel_stats

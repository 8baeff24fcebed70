"""Speaker encoder: parts against NumPy, the whole against the reference's recorded embeddings."""

from pathlib import Path

import keras
import numpy as np
import pytest
from layer_check import check_layer

from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.config.model import SPEAKER_NUM_MELS
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint
from myxtts.models.speaker_encoder import AttentiveStatisticsPooling, ResidualBlock, SpeakerEncoder, SqueezeExcitation

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
TINY = {"widths": (32, 32), "num_blocks": (1, 2), "embedding_width": 12, "attention_width": 4}
WAV_TO_MEL = MelSpectrogram(SPEAKER_MEL)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def relu(x):
    return np.maximum(x, 0)


def test_squeeze_excitation_equals_numpy():
    layer = SqueezeExcitation(reduction=2)
    x = normal(2, 3, 5, 4)
    actual = layer(x)
    squeeze, squeeze_bias, excite, excite_bias = layer.get_weights()
    hidden = relu(x.mean(axis=(1, 2)) @ squeeze + squeeze_bias)
    gate = 1 / (1 + np.exp(-(hidden @ excite + excite_bias)))
    np.testing.assert_allclose(actual, x * gate[:, None, None, :], atol=1e-5)


def test_pooling_equals_numpy():
    layer = AttentiveStatisticsPooling(attention_width=3)
    x = normal(2, 7, 5)
    actual = layer(x)
    # A fresh batch normalization only divides by sqrt(1 + epsilon).
    score = layer.score(relu(layer.hidden(x)) / np.sqrt(1 + 1e-5))
    weight = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
    mean = (weight * x).sum(axis=1)
    deviation = np.sqrt((weight * (x - mean[:, None]) ** 2).sum(axis=1))
    np.testing.assert_allclose(actual, np.concatenate([mean, deviation], axis=1), atol=1e-4)


@pytest.mark.parametrize(
    "make_layer, shape, mixed_output_dtype",
    [
        (lambda: SqueezeExcitation(reduction=2), (2, 3, 5, 8), None),
        (lambda: ResidualBlock(32), (2, 6, 5, 32), None),
        (lambda: ResidualBlock(32, stride=2), (2, 6, 5, 8), None),
        (lambda: AttentiveStatisticsPooling(4), (2, 7, 5), "float32"),
    ],
)
def test_parts_pass_the_layer_check(make_layer, shape, mixed_output_dtype):
    check_layer(make_layer, normal(*shape), mixed_output_dtype=mixed_output_dtype)


def test_speaker_encoder_passes_the_layer_check():
    check_layer(lambda: SpeakerEncoder(**TINY), normal(2, 21, 64), dynamic_axes=((0, 1),), mixed_output_dtype="float32")


def test_embedding_is_a_unit_vector_that_loudness_hardly_moves():
    encoder = SpeakerEncoder(**TINY)
    wav = normal(1, 8000)
    loud, quiet = (keras.ops.convert_to_numpy(encoder(WAV_TO_MEL(gain * wav)))[0] for gain in (0.5, 0.05))
    np.testing.assert_allclose([np.linalg.norm(loud), np.linalg.norm(quiet)], 1.0, rtol=1e-5)
    assert loud @ quiet > 0.999


def test_encoder_is_built_for_the_bands_of_its_front_end():
    assert SPEAKER_MEL.num_mels == SPEAKER_NUM_MELS


def test_features_have_zero_mean_and_unit_variance_over_time():
    features = keras.ops.convert_to_numpy(SpeakerEncoder(**TINY).normalize(3 + 2 * normal(2, 51, 64)))
    assert features.shape == (2, 51, 64)
    np.testing.assert_allclose(features.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(features.std(axis=1), 1, atol=1e-3)


def test_clip_alone_and_in_a_batch_gives_the_same_embedding():
    encoder = SpeakerEncoder(**TINY)
    mel = np.stack([normal(26, 64, seed=seed) for seed in range(2)])
    np.testing.assert_allclose(encoder(mel)[1:], encoder(mel[1:]), atol=1e-5)


def test_training_uses_the_statistics_of_the_batch():
    encoder = SpeakerEncoder(**TINY)
    mel = normal(3, 26, 64)
    before = keras.ops.convert_to_numpy(encoder(mel))
    encoder(mel, training=True)
    assert np.abs(keras.ops.convert_to_numpy(encoder(mel)) - before).max() > 1e-4


def test_groups_without_block_counts_are_refused():
    with pytest.raises(ValueError, match="one value per group"):
        SpeakerEncoder(widths=(8, 16), num_blocks=(1,))


def load_reference_weights(encoder, state):
    def set_weights(layer, name):
        if f"{name}.running_mean" in state:
            parts = ("weight", "bias", "running_mean", "running_var")
        else:
            parts = ("weight", "bias") if f"{name}.bias" in state else ("weight",)
        weight, *others = (state[f"{name}.{part}"] for part in parts)
        layer.set_weights([weight[..., 0].T if weight.ndim == 3 else weight.T, *others])

    set_weights(encoder.stem, "conv1")
    set_weights(encoder.stem_norm, "bn1")
    names = [f"layer{group + 1}.{i}" for group, count in enumerate(encoder.num_blocks) for i in range(count)]
    for name, block in zip(names, encoder.blocks, strict=True):
        for part, theirs in (("conv1", "conv1"), ("norm1", "bn1"), ("conv2", "conv2"), ("norm2", "bn2")):
            set_weights(getattr(block, part), f"{name}.{theirs}")
        set_weights(block.gate.squeeze, f"{name}.se.fc.0")
        set_weights(block.gate.excite, f"{name}.se.fc.2")
        if block.shortcut_conv is not None:
            set_weights(block.shortcut_conv, f"{name}.downsample.0")
            set_weights(block.shortcut_norm, f"{name}.downsample.1")
    set_weights(encoder.pooling.hidden, "attention.0")
    set_weights(encoder.pooling.norm, "attention.2")
    set_weights(encoder.pooling.score, "attention.3")
    set_weights(encoder.project, "fc")


@pytest.mark.skipif(not PARITY.is_dir(), reason="the reference arrays are not next to the repository")
def test_embedding_equals_the_reference():
    prefix = "hifigan_decoder.speaker_encoder."
    model = read_torch_checkpoint(PARITY / "model.pth")["model"]
    state = {name.removeprefix(prefix): array for name, array in model.items() if name.startswith(prefix)}
    with np.load(PARITY / "reference.npz") as arrays:
        wav, features, embedding = arrays["spk/audio16k"], arrays["spk/log_inorm"], arrays["spk/embedding_l2"]
    encoder = SpeakerEncoder()
    mel = WAV_TO_MEL(wav)
    encoder.build(mel.shape)
    load_reference_weights(encoder, state)
    np.testing.assert_allclose(encoder.normalize(mel), features.transpose(0, 2, 1), atol=1e-4)
    np.testing.assert_allclose(encoder(mel), embedding, atol=1e-4)

"""Speaker encoder: layer checks, features, batches. `test_seeded_parity` compares it with the reference."""

import keras
import numpy as np
import pytest
from layer_check import check_layer

from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.models.speaker_encoder import AttentiveStatisticsPooling, ResidualBlock, SpeakerEncoder, SqueezeExcitation

TINY = {"widths": (32, 32), "num_blocks": (1, 2), "embedding_width": 12, "attention_width": 4}
WAV_TO_MEL = MelSpectrogram(SPEAKER_MEL)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


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

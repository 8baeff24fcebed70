"""Requirements on both waveform decoders: windows with context equal the whole, and lengths are known."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from myxtts.config.model import ModelConfig
from myxtts.models.waveform_decoders import HifiganGenerator, IstftGenerator, make_decoder

WIDTH, SPEAKER = 6, 5
DECODERS = {
    "hifigan": lambda: HifiganGenerator(WIDTH, SPEAKER, 16, ((8, 16), (2, 4)), (3, 7), (1, 3)),
    "istft": lambda: IstftGenerator(WIDTH, SPEAKER, 4, 12, 16),
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request):
    """A decoder whose weights are all random, so that speaker and biases matter, and its frames and speakers."""
    layer = DECODERS[request.param]()
    layer.code_stride = 64
    for index, variable in enumerate(layer.trainable_variables):
        scale = 0.3 if len(variable.shape) == 1 else np.prod(variable.shape[:-1]) ** -0.5
        variable.assign(scale * normal(*variable.shape, seed=index))
    return layer


def test_window_with_its_context_gives_the_samples_of_the_whole(decoder):
    frames, speaker = normal(1, 90, WIDTH), normal(1, SPEAKER, seed=1)
    before, after, hop = decoder.history_frames, decoder.lookahead_frames, decoder.hop_length
    whole = decoder.frames_to_samples(frames, speaker).numpy()
    assert np.abs(whole).max() > 0.05
    for first, last in ((0, 8), (40, 52), (82, 90)):
        start, end = max(0, first - before), min(90, last + after)
        window = decoder.frames_to_samples(frames[:, start:end], speaker).numpy()
        inner = window[:, (first - start) * hop : (last - start) * hop]
        np.testing.assert_allclose(inner, whole[:, first * hop : last * hop], atol=1e-5)


def test_frames_that_are_not_present_count_as_cut_off(decoder):
    frames, speaker = normal(2, 50, WIDTH), normal(2, SPEAKER, seed=1)
    present = np.zeros((2, 50), bool)
    present[0, 11:37], present[1, :] = True, True
    hop = decoder.hop_length
    masked = decoder.frames_to_samples(frames, speaker, present).numpy()
    cut = decoder.frames_to_samples(frames[:1, 11:37], speaker[:1]).numpy()
    np.testing.assert_allclose(masked[:1, 11 * hop : 37 * hop], cut, atol=1e-5)
    np.testing.assert_allclose(masked[1:], decoder.frames_to_samples(frames[1:], speaker[1:]), atol=1e-5)


def test_inverse_transform_equals_numpy():
    layer = IstftGenerator(WIDTH, SPEAKER, 1, 8, 16)
    spectra = normal(12, 33) + 1j * normal(12, 33, seed=1)
    window = np.hanning(65)[:64]
    parts = np.fft.irfft(spectra) * window
    sound, envelope = np.zeros(12 * 16 + 48), np.zeros(12 * 16 + 48)
    for index, part in enumerate(parts):
        sound[index * 16 :][:64] += part
        envelope[index * 16 :][:64] += window**2
    expected = np.clip((sound / np.maximum(envelope, 1e-3))[24 : 24 + 12 * 16], -1, 1)
    np.testing.assert_allclose(layer._overlap(tf.constant(parts[None], tf.float32), None)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "size, kind, count, lookahead",
    [
        ("nano", "istft", 0.8e6, 11),
        ("tiny", "istft", 4.4e6, 11),
        ("small", "istft", 11e6, 11),
        ("big", "hifigan", 0, 13),
    ],
)
def test_sizes(size, kind, count, lookahead):
    decoder = make_decoder(ModelConfig(size), name="decoder")
    assert type(decoder) is {"istft": IstftGenerator, "hifigan": HifiganGenerator}[kind]
    assert decoder.lookahead_frames == lookahead and decoder.hop_length == 256
    if count:
        assert decoder.count_params() == pytest.approx(count, rel=0.25)


def test_stored_model_without_a_decoder_type_has_hifigan():
    assert ModelConfig("nano", decoder_channels=64).decoder_type == "hifigan"
    assert ModelConfig("nano").decoder_type == "istft"


def test_both_decoders_share_lengths_and_frames():
    one, other = (make() for make in DECODERS.values())
    latents = normal(1, 9, WIDTH)
    np.testing.assert_array_equal(one.latents_to_frames(latents), other.latents_to_frames(latents))
    assert one.num_frames(9) == one.latents_to_frames(latents).shape[1]
    assert one.num_frames(9) == other.num_frames(9) and one.hop_length == other.hop_length
    assert keras.ops.shape(other(latents, normal(1, SPEAKER)))[1] == other.num_frames(9) * other.hop_length
    assert [HifiganGenerator(8, 8).num_frames(n) * 256 for n in (40, 32)] == [44544, 35584]  # those of the reference

"""Losses of the decoder stage: updates of both sides equal PyTorch's; effects of silence and of sample rates."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.discriminators import Discriminators
from myxtts.models.waveform_decoders import HifiganGenerator
from myxtts.models.xtts import named_weights
from myxtts.training.stages.decoder import feature_distance, log_mel_distance, score_loss, stft_distance
from utilities.parity.seeded_weights import sampled, seeded_values

CLIPS, FRAMES, WIDTH, SPEAKER = 2, 8, 6, 5
SOURCE_RATES = tf.constant([24000, 8000])


def to_torch(array):
    """Converts a weight to PyTorch's layout: axes reversed, except the two spatial axes of a kernel of rank 4."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def to_ours(array):
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def seed(layer, prefix):
    """Returns weights seeded by name in PyTorch's layout, like the script of the fixture (in git until 202e875)."""
    for name, variable in named_weights(layer).items():
        shape = to_torch(np.zeros(variable.shape)).shape
        fan_in = 25 if name.endswith("bias") else np.prod(shape[1:])
        variable.assign(to_ours(seeded_values(f"{prefix}/{name}", shape) / np.float32(np.sqrt(fan_in))))
    return layer


@pytest.fixture(scope="module")
def reference():
    return np.load(Path(__file__).parent / "data" / "adversarial_small.npz")


@pytest.fixture(scope="module")
def generator():
    return seed(HifiganGenerator(WIDTH, SPEAKER, 16, ((8, 16), (8, 16), (2, 4), (2, 4)), (3, 7), (1, 3)), "generator")


@pytest.fixture(scope="module")
def discriminators():
    return seed(Discriminators(64, (2, 3), (512,)), "discriminator")


@pytest.fixture(scope="module")
def sounds(generator):
    frames = tf.constant(seeded_values("frames", (CLIPS, FRAMES, WIDTH)))
    speaker = tf.constant(seeded_values("speaker", (CLIPS, SPEAKER)))
    real = tf.constant(0.1 * seeded_values("real", (CLIPS, FRAMES * 256)))
    return real, lambda: generator.frames_to_samples(frames, speaker)


def check_gradients(loss_of, layer, expected):
    named = named_weights(layer)
    names = sorted(named)
    with tf.GradientTape() as tape:
        loss = loss_of()
    gradients = tape.gradient(loss, [named[name].value for name in names])
    assert len(expected) == len(names)
    for name, gradient, row in zip(names, gradients, expected):
        ours = to_torch(np.asarray(gradient)).reshape(-1)
        assert np.abs(ours).max() == pytest.approx(row[0], rel=1e-4), name
        np.testing.assert_allclose(sampled(ours), row[1:], atol=1e-4 * row[0], err_msg=name)


def mel_loss(*arguments):
    return tf.reduce_mean(log_mel_distance(*arguments), axis=-1)


def adversarial_losses(decoder_type, discriminators, *waves):
    pairs = zip(waves, (True, False))
    return [tf.reduce_mean(score_loss(decoder_type, discriminators(wav), real)) for wav, real in pairs]


def test_discriminator_turn_equals_torch(reference, discriminators, sounds):
    real, make = sounds
    made = tf.stop_gradient(make())
    np.testing.assert_allclose(made[:, ::16], reference["made"], atol=1e-5)

    def losses():
        return adversarial_losses("hifigan", discriminators, real, made)

    for name, value in zip(("real", "made"), losses()):
        assert float(value) == pytest.approx(float(reference[f"discriminator/{name}"]), rel=1e-5)
    check_gradients(lambda: tf.add_n(losses()), discriminators, reference["discriminator/gradients"])


def test_generator_turn_equals_torch(reference, generator, discriminators, sounds):
    real, make = sounds
    of_real = discriminators(real)

    def losses():
        made = make()
        of_made = discriminators(made)
        terms = dict(adversarial=score_loss("hifigan", of_made, True), features=feature_distance(of_real, of_made))
        terms |= dict(mel=mel_loss(real, made, SOURCE_RATES), stft=stft_distance(real, made, SOURCE_RATES))
        return {name: tf.reduce_mean(term) for name, term in terms.items()}

    weights = dict(adversarial=1.0, features=2.0, mel=45.0, stft=1.0)
    for name, value in losses().items():
        assert float(value) == pytest.approx(float(reference[f"generator/{name}"]), rel=1e-5), name
    loss_of = lambda: tf.add_n([weights[name] * value for name, value in losses().items()])
    check_gradients(loss_of, generator, reference["generator/gradients"])


def test_hinge_losses_equal_torch(reference, discriminators, sounds):
    real, make = sounds
    losses = adversarial_losses("istft", discriminators, real, make())
    np.testing.assert_allclose([float(loss) for loss in losses], reference["hinge"], rtol=1e-5)


def test_each_clip_has_its_own_losses(discriminators, sounds):
    def losses(real, made, rates):
        of_made = discriminators(made)
        spectral = mel_loss(real, made, rates), stft_distance(real, made, rates)
        return [score_loss("hifigan", of_made, True), feature_distance(discriminators(real), of_made), *spectral]

    real, make = sounds
    made = make()
    for row in range(CLIPS):
        alone = losses(*(array[row : row + 1] for array in (real, made, SOURCE_RATES)))
        for whole, part in zip(losses(real, made, SOURCE_RATES), alone):
            assert float(whole[row]) == pytest.approx(float(part[0]), rel=1e-4)


def tone(hz, level, samples=4096):
    return level * np.sin(2 * np.pi * hz * np.arange(samples) / 24000)


def test_bands_above_the_recording_s_own_rate_only_have_to_be_quiet():
    speech, faint, loud = tone(500, 0.3), tone(9000, 1e-4), tone(9000, 1e-2)
    real = tf.constant(speech[None], tf.float32)

    def of(rate, addition):
        made = tf.constant((speech + addition)[None], tf.float32)
        return [float(loss(real, made, tf.constant([rate]))[0]) for loss in (mel_loss, stft_distance)]

    assert max(of(24000, 0 * faint)) < 1e-5
    # Below the recording's own limit, audio 80 dB down differs from digital silence; above it, it counts as silence.
    assert min(of(24000, faint)) > 1e-3 and max(of(8000, faint)) < 1e-3
    assert min(of(8000, loud)) > 1e-2


def test_silence_and_equal_sounds_have_finite_gradients():
    silence = tf.zeros((1, 2048))
    rates = tf.constant([24000])
    for made in (silence, tf.constant(tone(300, 0.1, 2048)[None], tf.float32)):
        for real in (silence, made):
            with tf.GradientTape() as tape:
                tape.watch(made)
                loss = mel_loss(real, made, rates) + stft_distance(real, made, rates)
            assert np.isfinite(loss).all() and np.isfinite(tape.gradient(loss, made)).all()

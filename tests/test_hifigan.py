"""Waveform decoder: parts against NumPy, the whole against the reference's recorded waveforms."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_check import check_layer

from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint
from myxtts.interchange.coqui.weights import fold_weight_norm
from myxtts.models.hifigan import HifiganGenerator, ResidualStack
from myxtts.models.waveform_decoder import interpolate_linearly

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
TINY = {"channels": 16, "upsampling": ((4, 8), (2, 4)), "kernel_sizes": (3, 5), "dilations": (1, 3), "code_stride": 32}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("factor", [4.0, 24000 / 22050, 0.8, 1.0])
def test_interpolation_equals_numpy(factor):
    x = normal(2, 11, 3)
    length = int(np.floor(11 * factor))
    position = np.clip((np.arange(length) + 0.5) / factor - 0.5, 0, 10)
    expected = np.stack([[np.interp(position, np.arange(11), row) for row in item.T] for item in x]).swapaxes(1, 2)
    np.testing.assert_allclose(interpolate_linearly(tf.constant(x), factor), expected, atol=1e-5)


def test_residual_stack_equals_numpy():
    def conv(x, kernel, bias, dilation):
        reach = dilation * (len(kernel) - 1) // 2
        x = np.pad(x, [(reach, reach), (0, 0)])
        length = len(x) - 2 * reach
        return bias + sum(x[k * dilation : k * dilation + length] @ kernel[k] for k in range(len(kernel)))

    layer = ResidualStack(3, (1, 3))
    x = normal(1, 20, 4)
    actual = layer(x)[0]
    expected = x[0]
    for dilated, plain, dilation in zip(layer.dilated, layer.plain, (1, 3), strict=True):
        hidden = conv(np.where(expected > 0, expected, 0.1 * expected), *dilated.get_weights(), dilation)
        expected = expected + conv(np.where(hidden > 0, hidden, 0.1 * hidden), *plain.get_weights(), 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_folded_weight_has_the_gain_as_its_norm():
    direction, gain = normal(6, 4, 3), np.abs(normal(6, 1, 1, seed=1))
    weight = fold_weight_norm(gain, direction)
    np.testing.assert_allclose(np.linalg.norm(weight.reshape(6, -1), axis=1), gain[:, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(weight[2] * direction[2, 0, 0] / weight[2, 0, 0], direction[2], rtol=1e-4)


def test_residual_stack_passes_the_layer_check():
    check_layer(lambda: ResidualStack(3, (1, 3)), normal(2, 12, 4))


def test_generator_passes_the_layer_check():
    check_layer(
        lambda: HifiganGenerator(**TINY),
        (normal(2, 5, 6), normal(2, 3)),
        dynamic_axes=((0, 1), (0,)),
        mixed_output_dtype="float32",
    )


def test_graph_with_unknown_lengths_gives_the_eager_wav_of_the_announced_length():
    generator = HifiganGenerator(**TINY)
    speaker = normal(1, 3)
    generator(normal(1, 2, 6), speaker)
    in_graph = tf.function(
        generator, input_signature=[tf.TensorSpec((None, None, 6), tf.float32), tf.TensorSpec((None, 3), tf.float32)]
    )
    for num_latents in (1, 7, 40):
        latents = normal(1, num_latents, 6)
        wav = in_graph(latents, speaker)
        assert wav.shape == (1, generator.num_samples(num_latents))
        np.testing.assert_allclose(wav, generator(latents, speaker), atol=1e-5)


def test_each_clip_of_a_batch_is_spoken_with_its_own_speaker():
    generator = HifiganGenerator(**TINY)
    latents, speakers = np.repeat(normal(1, 5, 6), 2, axis=0), normal(2, 3)
    batch = keras.ops.convert_to_numpy(generator(latents, speakers))
    assert np.abs(batch[0] - batch[1]).max() > 1e-4
    np.testing.assert_allclose(batch[1:], generator(latents[1:], speakers[1:]), atol=1e-6)


def test_full_size_lengths_follow_the_reference():
    generator = HifiganGenerator()
    assert [generator.num_samples(n) for n in (40, 32)] == [44544, 35584]


def test_width_that_cannot_be_halved_per_stage_is_refused():
    with pytest.raises(ValueError, match="multiple of 16.*Received: 100"):
        HifiganGenerator(channels=100)


def load_reference_weights(generator, state):
    def weights(name):
        if f"{name}.weight" in state:
            weight = state[f"{name}.weight"]
        else:
            parts = (state[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
            weight = fold_weight_norm(*parts)
        bias = [state[f"{name}.bias"]] if f"{name}.bias" in state else []
        return [weight.T, *bias]

    def dense_weights(name):
        kernel, bias = weights(name)
        return [kernel[0], bias]

    generator.conv_pre.set_weights(weights("conv_pre"))
    generator.condition_pre.set_weights(dense_weights("cond_layer"))
    generator.conv_post.set_weights(weights("conv_post"))
    for i, (upsample, condition, stage) in enumerate(
        zip(generator.upsamples, generator.conditions, generator.stacks, strict=True)
    ):
        upsample.set_weights(weights(f"ups.{i}"))
        condition.set_weights(dense_weights(f"conds.{i}"))
        for j, stack in enumerate(stage):
            for k, (dilated, plain) in enumerate(zip(stack.dilated, stack.plain, strict=True)):
                dilated.set_weights(weights(f"resblocks.{3 * i + j}.convs1.{k}"))
                plain.set_weights(weights(f"resblocks.{3 * i + j}.convs2.{k}"))


@pytest.mark.skipif(not PARITY.is_dir(), reason="the reference arrays are not next to the repository")
def test_wav_equals_the_reference():
    prefix = "hifigan_decoder.waveform_decoder."
    model = read_torch_checkpoint(PARITY / "model.pth")["model"]
    state = {name.removeprefix(prefix): array for name, array in model.items() if name.startswith(prefix)}
    with np.load(PARITY / "reference.npz") as arrays:
        latents, fast_latents, speaker = arrays["lat/latents"], arrays["voc/speed1.25_latents"], arrays["voc/g"][..., 0]
        frames, wav = arrays["voc/interp_sr"], arrays["voc/wav"][0]
    generator = HifiganGenerator()
    generator.build(latents.shape, speaker.shape)
    load_reference_weights(generator, state)
    np.testing.assert_allclose(generator.latents_to_frames(latents), frames.transpose(0, 2, 1), atol=1e-4)
    np.testing.assert_allclose(generator(latents, speaker), wav, atol=1e-3)
    np.testing.assert_allclose(interpolate_linearly(tf.constant(latents), 1 / 1.25), fast_latents, atol=1e-5)

"""HiFi-GAN: lengths and batches. `test_layers` checks its layers, `test_seeded_parity` compares whole models."""

import keras
import numpy as np
import tensorflow as tf

from myxtts.models.waveform_decoders import HifiganGenerator

TINY = {"channels": 16, "upsampling": ((4, 8), (2, 4)), "kernel_sizes": (3, 5), "dilations": (1, 3), "code_stride": 32}
TINY |= {"width": 6, "speaker_width": 3}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


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
    generator = HifiganGenerator(8, 8)
    assert [generator.num_samples(n) for n in (40, 32)] == [44544, 35584]

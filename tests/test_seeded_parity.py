"""The model against the reference, with weights seeded by name; needs only the repository.

`tests/data/parity_small.npz` was written by `utilities/parity/make_reference.py`. Figures are maximum absolute
differences in float32, unless a comment says otherwise.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from parity_helpers import ReferenceObjective, channels_last, difference, greedy_codes, recipe_optimizer

from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.config.config import ModelConfig, SamplingConfig, XTTSConfig, config_from_dict
from myxtts.data.batch import DVAEBatch, GPTBatch
from myxtts.interchange.coqui import weights as coqui
from myxtts.models.gpt import filter_logits, penalize_repetition
from myxtts.training.stages.dvae import DVAEObjective
from utilities.parity.seeded_model import seeded_model
from utilities.parity.seeded_weights import STOP_BIAS, sampled, seeded_integers, seeded_values

RELEASED = dict(conditioning_blocks=6, perceiver_heads=8, decoder_channels=512, speaker_channels=(32, 64, 128, 256))
SMALL = dict(num_text_tokens=60, max_text_tokens=30, max_audio_tokens=120, layers=2, width=64, heads=2)
SMALL |= dict(conditioning_heads=2, num_codes=64, dvae_hidden=32, codebook_width=32) | RELEASED
FULL = ModelConfig("big", num_text_tokens=6681, start_text_token=261)


@pytest.fixture(scope="module")
def arrays():
    return np.load(Path(__file__).parent / "data" / "parity_small.npz")


@pytest.fixture(scope="module")
def small_config():
    return config_from_dict({"model": SMALL, "data": {"max_text_length": 30, "max_seconds": 5.0}})


@pytest.fixture(scope="module")
def small(small_config):
    return seeded_model(small_config.model, ("dvae", "gpt"))


def gpt_batch(prefix, text_lengths, wav_lengths, num_text, num_codes, frames):
    """Returns the batch that `make_reference.py` creates from the same names."""
    rows = len(text_lengths)
    mel = seeded_values(f"{prefix}/conditioning_mel", (rows, 1, 80, frames))[:, 0]
    code_lengths = [-(-length // 1024) for length in wav_lengths]
    return GPTBatch(
        tf.range(rows),
        tf.constant(seeded_integers(f"{prefix}/text", (rows, max(text_lengths)), num_text - 4) + 4, tf.int32),
        tf.constant(text_lengths),
        channels_last(mel),
        tf.constant(seeded_integers(f"{prefix}/codes", (rows, max(code_lengths)), num_codes), tf.int32),
        tf.constant(code_lengths),
        tf.zeros((rows, 2), tf.int32),
    )


@pytest.fixture(scope="module")
def batch():
    return gpt_batch("small", (9, 6), (14 * 1024 - 300, 9 * 1024), 60, 64, 50)


@pytest.fixture(scope="module")
def objective(small, small_config):
    return ReferenceObjective(small, small_config)


def logits_of(objective, batch):
    streams, _ = objective._streams(batch)
    latents = objective.gpt.mel_to_latents(batch.conditioning_mel)
    return latents, *objective.gpt(latents, streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask)


def text_inputs(batch, config):
    """Returns the first row with `[START]` and `[STOP]`."""
    return tf.constant([[config.start_text_token, *batch.text.numpy()[0], config.stop_text_token]])


def in_order_of_names(tensors, ours):
    """`(our name, values in the released layout)` of single tensors, in the order of their released names."""
    by_weight = {tensor.weight.partition("/")[2]: tensor for tensor in tensors}
    known = [
        (by_weight[name].names[0], name, coqui.to_coqui(value, by_weight[name].layout)[0])
        for name, value in ours.items()
    ]
    return [(name, value) for _, name, value in sorted(known)]


def test_small_logits_and_losses_equal_the_reference(arrays, objective, batch):
    latents, text_logits, audio_logits = logits_of(objective, batch)
    assert difference(latents, arrays["small/latents"]) < 1e-4
    assert difference(text_logits, arrays["small/text_logits"]) < 1e-3
    assert difference(audio_logits, arrays["small/mel_logits"]) < 1e-3
    losses, _ = objective.losses(batch)
    assert difference([losses["text"], losses["codes"]], arrays["small/losses"]) < 1e-5


def test_small_gradients_and_adamw_steps_equal_the_reference(arrays, objective, batch, small_config):
    variables = objective.trainable()
    before = {name: variable.numpy() for name, variable in variables.items()}
    tensors = coqui.model_tensors(small_config.model)
    _, gradients = objective.gradients(batch)
    recipe_optimizer(variables).apply([tf.constant(gradients[name]) for name in variables], list(variables.values()))
    after = {name: variable.numpy() for name, variable in variables.items()}
    for name, value in before.items():
        variables[name].assign(value)
    found = in_order_of_names(tensors, gradients)
    assert len(found) == len(arrays["small/gradients"])
    for (name, value), (largest, *expected) in zip(found, arrays["small/gradients"]):
        assert difference(sampled(value), expected) < 1e-4 * largest, name  # relative
        assert np.abs(value).max() == pytest.approx(largest, rel=1e-4), name
    updated = in_order_of_names(tensors, after)
    for (name, value), expected, (_, *gradient) in zip(updated, arrays["small/adamw"], arrays["small/gradients"]):
        counts = np.abs(gradient) > 1e-7  # a gradient below rounding noise has an arbitrary sign
        assert np.abs(sampled(value) - expected)[counts].max(initial=0.0) < 1e-5, name


def test_small_second_pass_and_greedy_codes_equal_the_reference(arrays, small, batch, small_config):
    config = small_config.model
    latents = small.gpt.mel_to_latents(batch.conditioning_mel[:1])
    text = text_inputs(batch, config)
    assert difference(small.gpt.codes_to_latents(latents, text, batch.codes[:1]), arrays["small/second_pass"]) < 1e-3
    bias = small.gpt.audio_head.bias
    bias.assign_add(tf.one_hot(config.stop_audio_token, config.num_audio_tokens) * STOP_BIAS)
    codes = greedy_codes(small.gpt, latents, text, SamplingConfig(temperature=0.0, repetition_penalty=5.0), config, 117)
    bias.assign_sub(tf.one_hot(config.stop_audio_token, config.num_audio_tokens) * STOP_BIAS)
    np.testing.assert_array_equal([codes], arrays["small/greedy_codes"])


def test_sampling_distributions_equal_the_reference(arrays):
    logits = tf.constant(seeded_values("small/sampling_logits", (3, 1026)) * np.float32(4.0))
    seen = np.zeros((3, 1026), bool)
    np.put_along_axis(seen, seeded_integers("small/sampling_seen", (3, 12), 1026), True, axis=1)
    processed = filter_logits(penalize_repetition(logits, tf.constant(seen), 5.0), 0.75, 50, 0.85).numpy()
    kept = np.isfinite(arrays["small/sampling"])
    assert 3 < kept.sum() < 150
    np.testing.assert_array_equal(processed > -1e29, kept)
    assert difference(processed[kept], arrays["small/sampling"][kept]) < 1e-5


def check_dvae(dvae, arrays, prefix, rows, frames, step):
    mel = channels_last(seeded_values(f"{prefix}/mel", (rows, 80, frames)))
    sure = arrays[f"{prefix}/dvae_margin"] > 1e-3
    codes = dvae.encode(mel).numpy()
    np.testing.assert_array_equal(codes[sure], arrays[f"{prefix}/dvae_codes"][sure])
    assert len(np.unique(codes)) > 3
    decoded = dvae.decode(tf.constant(arrays[f"{prefix}/dvae_codes"], tf.int32)).numpy().transpose(0, 2, 1)
    assert difference(decoded[..., ::step], arrays[f"{prefix}/dvae_decoded"]) < 1e-4


def test_small_dvae_and_its_training_step_equal_the_reference(arrays, small, small_config):
    check_dvae(small.dvae, arrays, "small", 2, 32, 1)
    objective = DVAEObjective(small)
    batch = DVAEBatch(tf.range(2), channels_last(seeded_values("small/mel", (2, 80, 32))), tf.fill((2,), 32))
    variables = objective.trainable()
    counts = objective.counts(batch)
    with tf.GradientTape() as tape:
        sums, statistics = objective.loss_sums(batch)
        means = [sums[name] / counts[name] for name in ("reconstruction", "commitment")]
        loss = tf.add_n(means)
    np.testing.assert_allclose(means, arrays["small/dvae_losses"], rtol=1e-5)
    values = tape.gradient(loss, [variable.value for variable in variables.values()])
    tensors = coqui.dvae_tensors(small_config.model)
    gradients = in_order_of_names(tensors, {name: value.numpy() for name, value in zip(variables, values)})
    assert len(gradients) == len(arrays["small/dvae_gradients"])
    for (name, value), (largest, *expected) in zip(gradients, arrays["small/dvae_gradients"]):
        assert difference(sampled(value), expected) < 1e-4 * largest, name  # relative
    quantizer = small.dvae.quantizer
    objective.apply_statistics(statistics)
    buffers = [quantizer.codebook.numpy().T, quantizer.codebook_sum.numpy().T, quantizer.cluster_size.numpy()]
    assert difference([sampled(buffer) for buffer in buffers], arrays["small/dvae_codebook"]) < 1e-5


def check_decoder(model, arrays, prefix):
    wav = tf.constant(seeded_values(f"{prefix}/wav_16k", (1, 16000)) * np.float32(0.1))
    assert difference(model.speaker_encoder(MelSpectrogram(SPEAKER_MEL)(wav)), arrays[f"{prefix}/speaker"]) < 1e-4
    latents = tf.constant(seeded_values(f"{prefix}/latents", (1, 6, model.config.width)))
    waveform = model.decoder(latents, tf.constant(arrays[f"{prefix}/speaker"]))
    assert difference(waveform[0], arrays[f"{prefix}/waveform"]) < 1e-3


def test_small_speaker_vector_and_waveform_equal_the_reference(arrays, small_config):
    check_decoder(seeded_model(small_config.model, ("speaker", "decoder")), arrays, "small")


def test_released_shape_has_the_reference_s_numbers_of_values(arrays):
    names_and_shapes = {
        name: shape for tensor in coqui.model_tensors(FULL) for name, shape in zip(tensor.names, tensor.shapes)
    }
    constants, dvae_constants = coqui.constant_tensors(FULL)
    names_and_shapes |= {name: value.shape for name, value in constants.items()}
    assert len(names_and_shapes) == 963

    def count(prefix):
        return sum(math.prod(shape) for name, shape in names_and_shapes.items() if name.startswith(prefix))

    prefixes = ("", "gpt.", "hifigan_decoder.waveform_decoder.", "hifigan_decoder.speaker_encoder.")
    np.testing.assert_array_equal([count(prefix) for prefix in prefixes], arrays["full/values"])
    dvae = sum(math.prod(shape) for tensor in coqui.dvae_tensors(FULL) for shape in tensor.shapes)
    assert dvae + sum(value.size for value in dvae_constants.values()) == arrays["full/dvae_values"]


@pytest.mark.slow
def test_gpt_of_the_released_shape_equals_the_reference(arrays):
    model = seeded_model(FULL, ("gpt",))
    assert sum(math.prod(variable.shape) for variable in model.gpt.variables) == arrays["full/values"][1]
    objective = ReferenceObjective(model, XTTSConfig(model=FULL))
    batch = gpt_batch("full", (12,), (16 * 1024,), 6681, 1024, 100)
    latents, text_logits, audio_logits = logits_of(objective, batch)
    assert difference(latents[..., ::32], arrays["full/latents"]) < 1e-4
    assert difference(text_logits[..., ::167], arrays["full/text_logits"]) < 1e-3
    assert difference(audio_logits[..., ::41], arrays["full/mel_logits"]) < 1e-3
    losses, _ = objective.losses(batch)
    assert difference([losses["text"], losses["codes"]], arrays["full/losses"]) < 1e-5
    states = model.gpt.codes_to_latents(latents, text_inputs(batch, FULL), batch.codes)
    assert difference(states[..., ::32], arrays["full/second_pass"]) < 1e-3


@pytest.mark.slow
def test_dvae_and_decoder_of_the_released_shape_equal_the_reference(arrays):
    check_dvae(seeded_model(FULL, ("dvae",)).dvae, arrays, "full", 1, 48, 4)
    check_decoder(seeded_model(FULL, ("speaker", "decoder")), arrays, "full")

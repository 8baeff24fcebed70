"""Losses and objectives: masks, units, and sums over batches that give one mean over all tokens."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax
from tiny import tiny_run_config, voiced

from myxtts.config.config import StageConfig
from myxtts.data.batch import DVAEBatch, GPTBatch, WaveBatch, zero_batch
from myxtts.models.xtts import XTTS
from myxtts.training.loop.updates import learning_rate
from myxtts.training.stages.base import masked_cross_entropy, masked_squared_error
from myxtts.training.stages.dvae import DVAEObjective, DVAEPreparation, DVAEStage, measure_mel_stats
from myxtts.training.stages.gpt import GPTObjective, GPTPreparation, conditioning_target_mask

CONFIG = tiny_run_config()
PREPARATIONS = {"dvae": DVAEPreparation, "gpt": GPTPreparation}
RANDOM = np.random.default_rng(0)


def gpt_batch(rows=4, spans=None):
    random = np.random.default_rng(5)
    return GPTBatch(
        index=tf.range(rows),
        text=tf.constant(random.integers(4, 24, (rows, 6)), tf.int32),
        text_lengths=tf.constant(random.integers(2, 7, rows), tf.int32),
        conditioning_mel=tf.constant(random.standard_normal((rows, 10, 80)), tf.float32),
        codes=tf.constant(random.integers(0, 16, (rows, 12)), tf.int32),
        code_lengths=tf.constant(random.integers(3, 13, rows), tf.int32),
        conditioning_codes=tf.constant(np.zeros((rows, 2)) if spans is None else spans, tf.int32),
    )


def dvae_batch(rows=4):
    random = np.random.default_rng(6)
    return DVAEBatch(
        index=tf.range(rows),
        mel=tf.constant(random.standard_normal((rows, 24, 80)), tf.float32),
        mel_lengths=tf.constant(random.integers(5, 25, rows), tf.int32),
    )


@pytest.fixture(scope="module")
def gpt_objective():
    keras.utils.set_random_seed(0)
    return GPTObjective(XTTS(CONFIG.model, parts=("gpt",)), CONFIG)


@pytest.fixture(scope="module")
def dvae_model():
    keras.utils.set_random_seed(1)
    return XTTS(CONFIG.model, parts=("dvae",))


@pytest.fixture(scope="module")
def dvae_objective(dvae_model):
    return DVAEObjective(dvae_model)


@pytest.fixture
def dvae_stage():
    stage = DVAEStage(CONFIG, {})
    keras.utils.set_random_seed(0)
    stage.model = XTTS(CONFIG.model, parts=("dvae",))
    return stage


def losses_of(objective, batch):
    sums, _ = objective.loss_sums(batch)
    counts = objective.counts(batch)
    return {name: float(sums[name] / counts[name]) for name in sums}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_masked_cross_entropy_equals_numpy(smoothing):
    logits = RANDOM.standard_normal((2, 3, 5)).astype("float32")
    targets, mask = np.array([[0, 4, 2], [1, 1, 3]]), np.array([[1, 0, 1], [1, 1, 0]], bool)
    expected = -(((1 - smoothing) * np.eye(5)[targets] + smoothing / 5) * log_softmax(logits, -1)).sum(-1)[mask].sum()
    actual = masked_cross_entropy(logits, tf.constant(targets), mask, smoothing)
    assert float(actual) == pytest.approx(expected, rel=1e-5)


def test_padding_that_is_not_finite_does_not_reach_the_loss():
    logits, mask = np.full((1, 2, 3), np.nan, "float32"), np.array([[True, False]])
    logits[0, 0] = 0
    assert float(masked_cross_entropy(logits, tf.constant([[0, 0]]), mask)) == pytest.approx(np.log(3))
    assert float(masked_squared_error(logits, tf.zeros((1, 2, 3)), mask)) == 0.0


def test_conditioning_clip_is_masked_from_the_loss_in_every_row():
    mask = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool)
    spans = np.array([[1, 3], [0, 2], [0, 0]], "int32")
    expected = [[1, 0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(conditioning_target_mask(mask, tf.constant(spans)), np.array(expected, bool))


def wave_batch(spans):
    """Waveforms of 12 strides (the second of 8) with conditioning slices at `spans`, in samples."""
    rows = len(spans)
    wav = np.stack([np.resize(voiced(0.4, 110 + 40 * row, row), 12 * 1024) for row in range(rows)])
    lengths = np.full(rows, 12 * 1024)
    lengths[1] = 8 * 1024 - 100
    wav[1, lengths[1] :] = 0
    batch = zero_batch(rows, 12 * 1024, 3, 6000)
    batch.index[:], batch.text[:], batch.text_lengths[:] = np.arange(rows), 5, 3
    batch.wav[:], batch.wav_lengths[:], batch.conditioning[:] = wav, lengths, wav[:, :6000]
    batch.conditioning_span[:] = spans
    return tf.nest.map_structure(tf.constant, batch)


def test_conditioning_span_is_counted_in_codes_of_1024_samples(dvae_model, gpt_objective):
    spans = [(0, 1024), (1024, 3072), (1023, 2049), (0, 0)]
    batch = GPTPreparation(dvae_model, "/CPU:0", augment=False, seed=0)(wave_batch(spans))
    np.testing.assert_array_equal(batch.conditioning_codes, [[0, 1], [1, 3], [0, 3], [0, 0]])
    np.testing.assert_array_equal(batch.code_lengths, [12, 8, 12, 12])
    assert batch.codes.shape == (4, 12)
    counts = gpt_objective.counts(batch)
    # Codes and four stop codes per row, minus the codes that the conditioning slices contain.
    assert float(counts["codes"]) == (12 + 4 - 1) + (8 + 4 - 2) + (12 + 4 - 3) + (12 + 4)
    assert float(counts["text"]) == 4 * (3 + 1)


def test_targets_left_out_do_not_change_the_loss(gpt_objective):
    batch = gpt_batch(spans=[[2, 5], [0, 0], [0, 3], [1, 2]])
    streams, mask = gpt_objective._streams(batch)
    latents = gpt_objective.gpt.mel_to_latents(batch.conditioning_mel)
    logits = gpt_objective.gpt(latents, streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask)[1].numpy()
    shares = log_softmax(logits, -1)
    total, count = 0.0, 0
    for row in range(4):
        start, end = batch.conditioning_codes[row].numpy()
        for position in range(int(batch.code_lengths[row]) + 4):
            if not start <= position < end:
                total -= shares[row, position, streams.audio_targets[row, position]]
                count += 1
    assert losses_of(gpt_objective, batch)["codes"] == pytest.approx(total / count, rel=1e-5)
    assert float(gpt_objective.counts(batch)["codes"]) == count


def test_dvae_padding_gets_no_gradient_and_no_codes(dvae_objective):
    batch = dvae_batch()
    with tf.GradientTape() as tape:
        tape.watch(batch.mel)
        sums, statistics = dvae_objective.loss_sums(batch)
        loss = sums["reconstruction"]
    gradient = tape.gradient(loss, batch.mel).numpy()
    assert float(tf.reduce_sum(statistics["count"])) == int(sum(np.ceil(batch.mel_lengths.numpy() / 4)))
    for row, length in enumerate(batch.mel_lengths.numpy()):
        # Convolutions of encoder and decoder reach a few frames beyond the end.
        assert np.abs(gradient[row, :length]).max() > 0 and not gradient[row, length + 28 :].any()


def test_dvae_starts_with_a_codebook_of_real_vectors(dvae_stage):
    batch = dvae_batch()
    dvae_stage.prepare_step(batch, 0, (1, 2))
    vectors = dvae_stage.model.dvae.mel_to_vectors(batch.mel).numpy()
    real = np.concatenate([vectors[row, : -(-length // 4)] for row, length in enumerate(batch.mel_lengths.numpy())])
    codebook = dvae_stage.model.dvae.quantizer.codebook.numpy()
    for code in codebook:
        assert np.abs(real - code).sum(-1).min() < 1e-5
    assert len(np.unique(codebook.round(5), axis=0)) > 4


def test_non_finite_batch_does_not_change_the_codebook(dvae_stage):
    batch = dvae_batch()
    dvae_stage.prepare_step(batch._replace(mel=batch.mel * np.nan), 50, (1, 2))
    assert np.isfinite(dvae_stage.model.dvae.quantizer.codebook.numpy()).all()


def test_codebook_report_worked_example(dvae_stage):
    sizes = np.zeros(16, "float32")
    sizes[:4] = 2.0
    dvae_stage.model.dvae.quantizer.cluster_size.assign(sizes)
    report = dvae_stage.report()
    assert report["codebook_use"] == pytest.approx(4 / 16)
    assert report["codebook_perplexity"] == pytest.approx(4.0)


@pytest.mark.parametrize("stage", ["dvae", "gpt"])
def test_augmentation_depends_on_position_and_spares_validation(dvae_model, stage):
    wave = wave_batch([(0, 0)] * 3)
    plain = PREPARATIONS[stage](dvae_model, "/CPU:0", augment=False, seed=0)(wave, 5)
    augmented = PREPARATIONS[stage](dvae_model, "/CPU:0", augment=True, seed=0)
    first = augmented(wave, 5)
    field = "mel" if stage == "dvae" else "conditioning_mel"
    for name, one, same, other, validation in zip(
        plain._fields, first, augmented(wave, 5), augmented(wave, 6), augmented(wave)
    ):
        np.testing.assert_array_equal(one, same, err_msg=name)
        np.testing.assert_allclose(validation, getattr(plain, name), atol=1e-5, err_msg=name)
        assert name != field or not np.allclose(one, other)
    assert not np.allclose(getattr(first, field), getattr(plain, field))


def test_augmented_lengths_fit_their_batch(dvae_model):
    wave = wave_batch([(0, 3000)] * 3)
    prepare = {stage: PREPARATIONS[stage](dvae_model, "/CPU:0", augment=True, seed=0) for stage in ("dvae", "gpt")}
    lengths = set()
    for position in range(8):
        dvae, gpt = prepare["dvae"](wave, position), prepare["gpt"](wave, position)
        assert dvae.mel.shape == (3, 48, 80) and gpt.codes.shape == (3, 12)
        assert (dvae.mel_lengths.numpy() <= 48).all() and (gpt.code_lengths.numpy() <= 12).all()
        np.testing.assert_array_equal(gpt.code_lengths, -(-dvae.mel_lengths.numpy() // 4))
        # The conditioning slice changes speed together with its clip.
        start, end = gpt.conditioning_codes.numpy().T
        assert (start == 0).all() and ((2 <= end) & (end <= 4)).all()
        lengths.update(dvae.mel_lengths.numpy().tolist())
    assert len(lengths) > 4


def test_mel_scale_is_the_spread_of_each_band(dvae_model):
    wave = wave_batch([(0, 0)] * 3)
    arrays = WaveBatch(*(np.asarray(field) for field in wave))
    scale, mean = measure_mel_stats(lambda position: arrays, 2)
    mel = DVAEPreparation(dvae_model, "/CPU:0", augment=False, seed=0)(wave)
    frames = np.concatenate([row[:length] for row, length in zip(mel.mel.numpy(), arrays.wav_lengths // 256)])
    np.testing.assert_allclose(scale, np.maximum(frames.std(0), 1.0), rtol=1e-4)
    np.testing.assert_allclose(mean, frames.mean(0) / scale, rtol=1e-4, atol=1e-4)


def test_learning_rate_rises_then_follows_half_a_cosine():
    def rate(step, peak, total, warmup, final_share):
        settings = StageConfig(learning_rate=peak, warmup_steps=warmup, final_learning_rate=final_share)
        return learning_rate(settings, step, total)

    rates = [rate(step, 2.0, 100, 10, 0.1) for step in range(111)]
    np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
    assert max(rates) == 2.0 and rates[10] == 2.0
    assert rates[55] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[100:] == pytest.approx([0.2] * 11)
    assert (np.diff(rates[10:101]) < 0).all()
    assert rate(9, 1.0, 100, 1000, 0.1) == 1.0  # warm-up takes at most a tenth of a stage; a few steps have none
    assert rate(0, 1.0, 1, 200, 0.1) == 1.0

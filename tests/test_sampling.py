"""Sampling of codes, compared with a simple NumPy implementation that works code by code, like the reference."""

import keras
import numpy as np
import tensorflow as tf
from scipy.special import softmax

from myxtts.config.config import SamplingConfig
from myxtts.inference.windows import gumbel_noise
from myxtts.models.gpt import HIDDEN, SamplingValues, filter_logits, sample


def kept_by_numpy(row, temperature, top_k, top_p):
    """Returns the codes that can be sampled from one row, found by sorting and cumulative sums."""
    row = row / temperature
    kept = set(range(len(row)))
    if 0 < top_k < len(row):
        kept = {code for code in kept if row[code] >= sorted(row)[-top_k]}
    if top_p < 1:
        codes = sorted(kept, key=lambda code: row[code])
        share = softmax(row[codes])
        for i, code in enumerate(codes[:-1]):
            if share[: i + 1].sum() <= 1 - top_p:
                kept.remove(code)
    return kept


def kept_by_filter(logits, temperature=1.0, top_k=0, top_p=1.0):
    filtered = keras.ops.convert_to_numpy(filter_logits(np.asarray(logits, "float32"), temperature, top_k, top_p))
    return [set(np.flatnonzero(row > HIDDEN / 2)) for row in filtered]


def draw(logits, sampling, seed, sentence):
    """Samples one code from each row; the rows count as consecutive codes of one sentence."""
    nothing_seen, noise = np.zeros(logits.shape, bool), gumbel_noise(seed, sentence, 0, *logits.shape)
    return keras.ops.convert_to_numpy(sample(logits, sampling, nothing_seen, noise))


def test_top_p_boundaries():
    logits = np.log([[0.5, 0.25, 0.125, 0.125]])
    # A code is removed if its probability and all lower ones sum to at most 1 - p.
    for top_p, kept in ((0.5, {0}), (0.501, {0, 1}), (0.75, {0, 1}), (1e-6, {0})):
        assert kept_by_filter(logits, top_p=top_p) == [kept], top_p


def test_samples_follow_the_probabilities():
    logits = np.tile(np.log([0.1, 0.2, 0.3, 0.4]).astype("float32"), (40_000, 1))
    codes = draw(logits, SamplingConfig(temperature=1.0, top_k=0, top_p=1.0), 3, 4)
    np.testing.assert_allclose(np.bincount(codes, minlength=4) / len(codes), [0.1, 0.2, 0.3, 0.4], atol=0.01)
    assert codes.dtype == np.int32


def test_noise_is_a_function_of_seed_sentence_and_code_number_however_it_is_cut():
    whole = gumbel_noise(5, 2, 0, 12, 30)
    assert whole.shape == (12, 30) and whole.dtype == np.float32 and np.isfinite(whole).all()
    parts = [gumbel_noise(5, 2, first, count, 30) for first, count in ((0, 1), (1, 7), (8, 4))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    others = [gumbel_noise(*place, 12, 30) for place in ((6, 2, 0), (5, 3, 0), (2, 5, 0), (-5, 2, 0), (2**70, 2, 0))]
    for other in (*others, whole[1:]):
        assert not np.isin(other, whole[0]).any(axis=1).any()
    # Mean and variance of the Gumbel distribution, in every column.
    many = gumbel_noise(0, 0, 0, 40_000, 3)
    np.testing.assert_allclose(many.mean(axis=0), np.euler_gamma, atol=0.03)
    np.testing.assert_allclose(many.var(axis=0), np.pi**2 / 6, rtol=0.05)


SETTINGS = [
    SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty)
    for temperature in (0.0, 1.3e-38, 0.4, 1.0, 1.7)
    for top_k in (0, 1, 7, 30, 100)
    for top_p in (0.3, 0.9, 1.0)
    for penalty in (1.0, 1.5)
]


def scores_with_ties():
    """Logits `(16, 30)` with nine different values, so that there are ties at the best, k-th and last kept code."""
    random = np.random.default_rng(5)
    return random.integers(-4, 5, (16, 30)).astype("float32") * 2, random.random((16, 30)) < 0.3


def codes_by_numpy(logits, sampling, seen, noise):
    """Returns the codes for one setting, row by row."""
    filtered = np.full_like(logits, HIDDEN)
    best = []
    for row, values in enumerate(logits):
        penalty = np.where(seen[row] & (values < 0), sampling.repetition_penalty, 1.0)
        penalty = np.where(seen[row] & (values >= 0), 1.0 / sampling.repetition_penalty, penalty)
        values = (values * penalty).astype("float32")
        best.append(int(values.argmax()))
        if sampling.temperature > 1e-6:
            values = values / np.float32(sampling.temperature)
            kept = list(kept_by_numpy(values.astype("float64"), 1.0, sampling.top_k, sampling.top_p))
            filtered[row] = np.where(values >= min(values[kept]), values, HIDDEN)
    return best if sampling.temperature < 1e-6 else (filtered + noise).argmax(axis=1).tolist()


def test_codes_equal_numpy_for_numbers_tensors_and_values_by_row():
    logits, seen = scores_with_ties()
    noise = gumbel_noise(3, 11, 0, *logits.shape)
    traces = []

    @tf.function
    def traced(sampling):
        traces.append(sampling)
        return sample(logits, sampling, seen, noise)

    for sampling in SETTINGS:
        expected = codes_by_numpy(logits, sampling, seen, noise)
        codes = sample(logits, sampling, seen, noise)
        assert keras.ops.convert_to_numpy(codes).tolist() == expected, sampling
        values = [getattr(sampling, name) for name in SamplingValues._fields]
        assert traced(SamplingValues(*(tf.constant(value) for value in values))).numpy().tolist() == expected, sampling
    assert len(traces) == 1

    chosen = [SETTINGS[i * 7 % len(SETTINGS)] for i in range(len(logits))]
    columns = ([[getattr(one, name)] for one in chosen] for name in SamplingValues._fields)
    codes = traced(SamplingValues(*(tf.constant(column) for column in columns))).numpy()
    for row, sampling in enumerate(chosen):
        assert codes[row] == codes_by_numpy(logits, sampling, seen, noise)[row], sampling

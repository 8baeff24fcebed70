"""The DVAE and its codebook: moving averages against NumPy, revival, straight-through gradient, lengths."""

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy as to_numpy

from myxtts.models.dvae import DVAE, VectorQuantizer

DECAY, EPSILON = 0.99, 1e-5


@pytest.fixture
def quantizer():
    """Returns a codebook of five codes of width 3, with averages as after some steps."""
    quantizer = VectorQuantizer(5, 3)
    random = np.random.default_rng(0)
    sizes = np.array([4.0, 2.0, 1.0, 0.5, 3.0], "float32")
    codebook = random.standard_normal((5, 3)).astype("float32")
    quantizer.codebook.assign(codebook)
    quantizer.cluster_size.assign(sizes)
    quantizer.codebook_sum.assign(codebook * sizes[:, None])
    return quantizer


@pytest.fixture
def vectors():
    return np.random.default_rng(1).standard_normal((2, 7, 3)).astype("float32")


def statistics_of(quantizer, vectors, mask=None):
    mask = np.ones(vectors.shape[:2], bool) if mask is None else mask
    statistics = quantizer.statistics(vectors, quantizer.nearest(vectors), mask)
    return {name: to_numpy(value) for name, value in statistics.items()}


def test_nearest_code_is_the_nearest(quantizer, vectors):
    codebook = to_numpy(quantizer.codebook)
    expected = ((vectors[..., None, :] - codebook) ** 2).sum(-1).argmin(-1)
    codes = quantizer.nearest(vectors)
    np.testing.assert_array_equal(to_numpy(codes), expected)
    np.testing.assert_array_equal(to_numpy(quantizer(codes)), codebook[expected])


def test_moving_averages_worked_example(quantizer, vectors):
    flat = vectors.reshape(-1, 3).astype("float64")
    sizes, sums = (to_numpy(v).astype("float64") for v in (quantizer.cluster_size, quantizer.codebook_sum))
    codes = to_numpy(quantizer.nearest(vectors)).reshape(-1)
    for code in range(5):
        chosen = flat[codes == code]
        sizes[code] = DECAY * sizes[code] + (1 - DECAY) * len(chosen)
        sums[code] = DECAY * sums[code] + (1 - DECAY) * chosen.sum(0)
    total = sizes.sum()
    smoothed = (sizes + EPSILON) / (total + 5 * EPSILON) * total
    statistics = statistics_of(quantizer, vectors)
    quantizer.update(statistics["count"], statistics["sum"])
    np.testing.assert_allclose(to_numpy(quantizer.cluster_size), sizes, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(quantizer.codebook_sum), sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(to_numpy(quantizer.codebook), sums / smoothed[:, None], rtol=1e-5, atol=1e-6)


def test_padding_adds_nothing_to_the_statistics(quantizer, vectors):
    mask = np.arange(7)[None] < np.array([[7], [3]])
    masked = statistics_of(quantizer, np.where(mask[..., None], vectors, 100.0).astype("float32"), mask)
    rows = [statistics_of(quantizer, vectors[:1]), statistics_of(quantizer, vectors[1:, :3])]
    assert masked["count"].sum() == 10
    for name in masked:
        np.testing.assert_allclose(masked[name], rows[0][name] + rows[1][name], rtol=1e-5, atol=1e-5)


def test_dead_codes_move_and_living_ones_stay(quantizer):
    before = to_numpy(quantizer.codebook).copy()
    candidates = np.arange(15, dtype="float32").reshape(5, 3)
    quantizer.revive(candidates, 1.5)
    after, sizes = to_numpy(quantizer.codebook), to_numpy(quantizer.cluster_size)
    np.testing.assert_array_equal(after[[0, 1, 4]], before[[0, 1, 4]])
    np.testing.assert_array_equal(after[[2, 3]], candidates[[2, 3]])
    np.testing.assert_array_equal(sizes[[0, 1, 4]], [4.0, 2.0, 3.0])
    assert (sizes[[2, 3]] > 1.5).all()  # in use at first, with a sum and size that agree with its vector
    np.testing.assert_allclose(to_numpy(quantizer.codebook_sum)[2], after[2] * sizes[2])


def test_revived_code_keeps_its_place_through_an_update_without_it(quantizer):
    quantizer.revive(np.full((5, 3), 9.0, "float32"), 0.6)
    count = np.array([5, 5, 5, 0, 5], "float32")
    quantizer.update(count, to_numpy(quantizer.codebook) * count[:, None])
    np.testing.assert_allclose(to_numpy(quantizer.codebook)[3], 9.0, rtol=1e-4)


@pytest.fixture(scope="module")
def dvae():
    keras.utils.set_random_seed(0)
    dvae = DVAE(num_mels=6, num_codes=8, codebook_width=4, hidden=8, residual_blocks=1)
    mel = np.random.default_rng(0).standard_normal((1, 32, 6)).astype("float32")
    # A codebook from encoder outputs, so that several codes are in use.
    dvae.quantizer.codebook.assign(to_numpy(dvae.mel_to_vectors(mel))[0, :8])
    return dvae


@pytest.mark.parametrize("frames", range(1, 14))
def test_number_of_codes_is_the_reference_s(dvae, frames):
    mel = np.zeros((1, frames, 6), "float32")
    expected = int(np.ceil(np.ceil(frames / 2) / 2))
    codes = dvae.encode(mel)
    assert codes.shape == (1, expected) and keras.backend.standardize_dtype(codes.dtype) == "int32"
    assert dvae.decode(codes).shape == (1, 4 * expected, 6)
    assert dvae(keras.KerasTensor((1, frames, 6)))["codes"].shape == (1, expected)

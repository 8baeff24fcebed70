"""The order of batches: coverage of an epoch, dependence on the position alone, and share of padding."""

import itertools

import numpy as np
import pytest

from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.data.batch import BatchOrder, SequentialOrder, bucket_bounds


def ljspeech_like_lengths(count, seed=0):
    """Returns lengths in samples, distributed as in LJSpeech: 1.1 to 10.1 s, mean 6.6 s, more long clips than short."""
    return ((1.1 + 9.0 * np.random.default_rng(seed).beta(2.6, 1.65, count)) * 22050).astype(int)


def make_order(lengths, **arguments):
    settings = {"num_tokens": np.arange(len(lengths)) % 7 + 1, "batch_size": 4, "num_buckets": 3, "seed": 5}
    return BatchOrder(lengths, **{**settings, **arguments})


def padding(units, bounds):
    bounds = np.asarray(bounds)
    return int((bounds[np.searchsorted(bounds, units)] - units).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_buckets", [1, 2, 3, 4])
def test_bucket_bounds_are_the_best_there_are(seed, num_buckets):
    random = np.random.default_rng(seed)
    units = random.integers(1, 12, random.integers(1, 40))
    bounds = bucket_bounds(units, num_buckets)
    lengths = np.unique(units)
    chosen = min(num_buckets, len(lengths))
    least = min(padding(units, (*inner, lengths[-1])) for inner in itertools.combinations(lengths[:-1], chosen - 1))
    assert len(bounds) == chosen
    assert (np.diff(bounds) > 0).all() and bounds[-1] == units.max()
    assert padding(units, bounds) == least


@pytest.mark.parametrize("count, batch_size", [(23, 4), (24, 4), (4, 4), (7, 7), (9, 8)])
def test_epoch_covers_every_clip_but_fewer_than_a_batch(count, batch_size):
    order = make_order(ljspeech_like_lengths(count), batch_size=batch_size)
    assert order.batches_per_epoch == count // batch_size
    for epoch in range(3):
        positions = range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch)
        batches = [order.batch(position) for position in positions]
        assert [batch.epoch for batch in batches] == [epoch] * len(batches)
        seen = np.concatenate([batch.indices for batch in batches])
        assert len(np.unique(seen)) == len(seen) == count - count % batch_size


def test_clips_left_out_differ_between_epochs():
    order = make_order(ljspeech_like_lengths(11))
    left = set()
    for epoch in range(12):
        seen = np.concatenate([order.batch(epoch * order.batches_per_epoch + i).indices for i in range(2)])
        left |= set(range(11)) - set(seen)
    assert len(left) > 6


def test_rare_long_clips_take_part_as_often_as_others():
    order = make_order([5000] * 60 + [200_000] * 3, batch_size=16, num_buckets=2)
    seen = np.bincount(np.concatenate([order.batch(position).indices for position in range(3 * 60)]), minlength=63)
    assert seen[60:].mean() == pytest.approx(seen.mean(), rel=0.15)


def test_batch_depends_on_position_alone():
    lengths = ljspeech_like_lengths(30)
    order, other = make_order(lengths), make_order(lengths)
    expected = {position: order.batch(position) for position in range(30)}
    for position in (29, 3, 17, 3, 0, 28):
        batch = other.batch(position)
        np.testing.assert_array_equal(batch.indices, expected[position].indices)
        assert batch[:2] + batch[3:] == expected[position][:2] + expected[position][3:]
    for other in (make_order(lengths, seed=1).batch(0), order.batch(order.batches_per_epoch)):
        assert not np.array_equal(other.indices, expected[0].indices), "seed and epoch change the order"


def test_batch_is_long_enough_for_its_clips_and_their_shift():
    lengths, tokens = ljspeech_like_lengths(50), np.random.default_rng(0).integers(1, 99, 50)
    order = make_order(lengths, num_tokens=tokens, extra_samples=1023)
    shapes = {order.batch(position)[3:] for position in range(3 * order.batches_per_epoch)}
    assert len(shapes) <= len(order.shapes) <= 3
    for position in range(2 * order.batches_per_epoch):
        batch = order.batch(position)
        assert batch.num_samples % CODE_STRIDE_SAMPLES == 0
        assert batch.num_samples >= lengths[batch.indices].max() + 1023
        assert batch.num_tokens >= tokens[batch.indices].max()


def test_static_shapes_have_one_shape():
    order = make_order(ljspeech_like_lengths(40), fixed_samples=300 * 1024, fixed_tokens=77)
    assert {order.batch(position)[3:] for position in range(20)} == {(300 * 1024, 77)}


def test_set_smaller_than_a_batch_is_repeated():
    assert sorted(np.bincount(make_order([5000, 6000, 7000], batch_size=8).batch(0).indices)) == [2, 3, 3]


def test_padding_is_under_15_percent_on_ljspeech_like_lengths():
    lengths = ljspeech_like_lengths(2000)
    shares = {
        buckets: make_order(lengths, num_buckets=buckets, batch_size=16, extra_samples=1023).padding_share()
        for buckets in (1, 8)
    }
    assert shares[8] < 0.15 < shares[1]


def test_padding_share_counts_the_padding():
    order = make_order([1000, 1024, 3000, 2048], batch_size=2, num_buckets=2)
    # One batch of a stride for the first two, one of three strides for the others.
    assert order.padding_share() == pytest.approx(1 - (1000 + 1024 + 3000 + 2048) / (2 * 1024 + 2 * 3072))


def test_validation_order_holds_every_clip_once():
    lengths = ljspeech_like_lengths(11)
    order = SequentialOrder(lengths, np.arange(1, 12), batch_size=4)
    batches = [order.batch(position) for position in range(order.batches_per_epoch)]
    assert [len(batch.indices) for batch in batches] == [4, 4, 3]
    assert sorted(np.concatenate([batch.indices for batch in batches])) == list(range(11))
    assert all(batch.num_samples >= lengths[batch.indices].max() for batch in batches)
    assert all(batch.num_samples % CODE_STRIDE_SAMPLES == 0 for batch in batches)

"""Which clips share a batch: a pure function of lengths, seed, epoch and position, so that a run resumes exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES


class OrderedBatch(NamedTuple):
    """Batch `offset` of an epoch: which clips, `(B,)`, and to what length their waveforms and texts are padded."""

    epoch: int
    offset: int
    indices: np.ndarray
    num_samples: int
    num_tokens: int


def bucket_bounds(units: np.ndarray, num_buckets: int) -> np.ndarray:
    """Upper bounds of at most `num_buckets` buckets that split lengths with the least padding in sum.

    `units` is `(N,)`, in whole units, at least 1. The bounds rise, and the last one is the longest length.
    """
    lengths, counts = np.unique(units, return_counts=True)
    if len(lengths) <= num_buckets:
        return lengths
    total = np.concatenate([[0], np.cumsum(counts)])
    weighted = np.concatenate([[0], np.cumsum(counts * lengths)])
    # cost[i, j]: padding when lengths i..j share a bucket as long as length j.
    size = len(lengths)
    cost = lengths[None, :] * (total[None, 1:] - total[:size, None]) - (weighted[None, 1:] - weighted[:size, None])
    cost = np.where(np.arange(size)[:, None] <= np.arange(size)[None, :], cost.astype(np.float64), np.inf)
    best, cuts = cost[0], []
    for _ in range(num_buckets - 1):
        # Everything up to i - 1 in the buckets before, i..j in this one.
        options = best[:-1, None] + cost[1:]
        cuts.append(np.argmin(options, axis=0) + 1)
        best = np.min(options, axis=0)
    bounds, last = [size - 1], size - 1
    for cut in reversed(cuts):
        last = cut[last] - 1
        bounds.append(last)
    return lengths[sorted(bounds)]


@dataclass(eq=False)
class BatchOrder:
    """The order of batches over all epochs.

    Clips are shuffled, put into length buckets and cut into batches of one size; what a bucket has left over joins the
    next longer one, so an epoch uses every clip but fewer than one batch's worth, other ones each time.
    """

    num_samples: Sequence[int]
    num_tokens: Sequence[int]
    """`(N,)` lengths of the clips at 22 050 Hz, and of their texts."""
    batch_size: int
    """Clips per batch; a smaller set is repeated to fill one."""
    num_buckets: int
    """Most length buckets."""
    seed: int
    fixed_samples: int | None = None
    fixed_tokens: int | None = None
    """Pad every batch to these (static shapes), instead of to its bucket."""
    extra_samples: int = 0
    """Room added to every clip, for a random shift in time."""

    def __post_init__(self):
        self.num_samples, tokens = (np.asarray(row, np.int64) for row in (self.num_samples, self.num_tokens))
        if not len(tokens):
            raise ValueError("A batch order needs at least one clip.")
        units = -(-(self.num_samples + self.extra_samples) // CODE_STRIDE_SAMPLES)
        bounds = bucket_bounds(units, self.num_buckets if self.fixed_samples is None else 1)
        self._bucket = np.searchsorted(bounds, units)
        self.shapes: list[tuple[int, int]] = []
        """Padded lengths of waveforms and texts of each bucket."""
        for bucket, bound in enumerate(bounds):
            longest_text = int(tokens[self._bucket <= bucket].max())
            samples = self.fixed_samples or int(bound) * CODE_STRIDE_SAMPLES
            self.shapes.append((samples, self.fixed_tokens or longest_text))
        self.batches_per_epoch = max(1, len(tokens) // self.batch_size)
        self._epoch_batches = lru_cache(maxsize=2)(self._order_epoch)

    def _order_epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch, 0])
        order = rng.permutation(len(self.num_samples))
        # What makes no full batch goes before the clips are put into buckets: afterwards it would always be long ones.
        order = np.resize(order, self.batches_per_epoch * self.batch_size)
        batches, left = [], order[:0]
        for bucket in range(len(self.shapes)):
            members = np.concatenate([left, order[self._bucket[order] == bucket]])
            full = len(members) // self.batch_size * self.batch_size
            batches += [(rows, bucket) for rows in members[:full].reshape(-1, self.batch_size)]
            left = members[full:]
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, position: int) -> OrderedBatch:
        """The batch at `position`, counted from the start of training."""
        epoch, offset = divmod(int(position), self.batches_per_epoch)
        indices, bucket = self._epoch_batches(epoch)[offset]
        return OrderedBatch(epoch, offset, indices, *self.shapes[bucket])

    def padding_share(self) -> float:
        """Share of the first epoch's padded samples that are padding."""
        batches = [self.batch(position) for position in range(self.batches_per_epoch)]
        real = sum(self.num_samples[batch.indices].sum() for batch in batches)
        return 1.0 - real / sum(len(batch.indices) * batch.num_samples for batch in batches)


class SequentialOrder:
    """Every clip once, shortest first: the order of validation. The last batch may be smaller."""

    def __init__(self, num_samples: Sequence[int], num_tokens: Sequence[int], batch_size: int):
        self.num_samples = np.asarray(num_samples, np.int64)
        self.batch_size = batch_size
        self._most_tokens = max(num_tokens)
        self._clips = np.argsort(self.num_samples, kind="stable")
        self.batches_per_epoch = -(-len(self._clips) // batch_size)

    def batch(self, position: int) -> OrderedBatch:
        """The batch at `position` of the only epoch."""
        indices = self._clips[position * self.batch_size : (position + 1) * self.batch_size]
        samples = int(-(-self.num_samples[indices].max() // CODE_STRIDE_SAMPLES) * CODE_STRIDE_SAMPLES)
        return OrderedBatch(0, position, indices, samples, int(self._most_tokens))

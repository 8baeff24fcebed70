"""Which clips share a batch: a pure function of lengths, seed, epoch and position, so that a run resumes exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.storage.files import new_hasher


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


@dataclass(frozen=True, eq=False)
class EpochStart:
    """Where an order of batches begins: before everything, or within an epoch that another order began."""

    position: int = 0
    """Of its first batch."""
    epoch: int = 0
    """That goes on there."""
    offset: int = 0
    """Batches that the epoch has had by then."""
    heard: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """`(H,)` indices of the clips that the epoch has had by then."""


@dataclass(eq=False)
class BatchOrder:
    """The order of batches over all epochs.

    Clips are shuffled, put into length buckets and cut into batches of one size; what a bucket has left over joins the
    next longer one, so an epoch uses every clip but fewer than one batch's worth, other ones each time. An epoch that
    another order began goes on with the clips that it has not had.
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
    start: EpochStart = field(default_factory=EpochStart)
    """Where it begins; there is no batch before."""

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
        self._in_first_epoch = self.batches_per_epoch
        if len(self.start.heard):
            self._in_first_epoch = (len(tokens) - len(np.unique(self.start.heard))) // self.batch_size
        self._epoch_batches = lru_cache(maxsize=2)(self._order_epoch)

    def _order_epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch, 0])
        order, num_batches = rng.permutation(len(self.num_samples)), self.batches_per_epoch
        if epoch == self.start.epoch:
            order, num_batches = order[~np.isin(order, self.start.heard)], self._in_first_epoch
        # What makes no full batch goes before the clips are put into buckets: afterwards it would always be long ones.
        order = np.resize(order, num_batches * self.batch_size)
        batches, left = [], order[:0]
        for bucket in range(len(self.shapes)):
            members = np.concatenate([left, order[self._bucket[order] == bucket]])
            full = len(members) // self.batch_size * self.batch_size
            batches += [(rows, bucket) for rows in members[:full].reshape(-1, self.batch_size)]
            left = members[full:]
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, position: int) -> OrderedBatch:
        """The batch at `position`, counted from the start of training."""
        epoch, row = self._place(position)
        indices, bucket = self._epoch_batches(epoch)[row]
        offset = row + self.start.offset if epoch == self.start.epoch else row
        return OrderedBatch(epoch, offset, indices, *self.shapes[bucket])

    def _place(self, position):
        """The epoch of a batch, and its number among those that this order has of it."""
        row = int(position) - self.start.position
        if row < 0:
            raise IndexError(f"This order begins at position {self.start.position}, after {position}.")
        if row < self._in_first_epoch:
            return self.start.epoch, row
        epochs, row = divmod(row - self._in_first_epoch, self.batches_per_epoch)
        return self.start.epoch + 1 + epochs, row

    def cut(self, position: int) -> EpochStart:
        """What an order of other clips or batches has to begin with to go on where this one is at `position`."""
        epoch, row = self._place(position)
        is_first = epoch == self.start.epoch
        heard = [indices for indices, _ in self._epoch_batches(epoch)[:row]] + [self.start.heard] * is_first
        heard = np.concatenate(heard) if heard else np.zeros(0, np.int64)
        return EpochStart(int(position), epoch, row + self.start.offset * is_first, heard)

    def start_at(self, position: int) -> EpochStart:
        """What this very order has to begin with to give the same batches from `position` on."""
        epoch, row = self._place(position)
        return self.start if epoch == self.start.epoch else EpochStart(int(position) - row, epoch)

    def digest(self) -> str:
        """Identifies all that the batches follow from but the start and which clips the indices mean."""
        hasher = new_hasher()
        for rows in (self.num_samples, self._bucket, np.asarray(self.shapes), [self.batch_size, self.seed]):
            hasher.update(np.ascontiguousarray(rows, np.int64).tobytes() + b"|")
        return hasher.hexdigest()

    def padding_share(self) -> float:
        """Share of padded samples that are padding, in as many batches as an epoch has."""
        first = self.start.position
        batches = [self.batch(position) for position in range(first, first + self.batches_per_epoch)]
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

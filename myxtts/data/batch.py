"""The batch contract and the order of batches.

The contract is the names, shapes, dtypes and units of the data between recordings and the training step. The order is a
pure function of lengths, seed, epoch and position, so that a run resumes exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.storage.files import new_hasher


class WaveBatch(NamedTuple):
    """Padded waveforms and token ids, made on the host. B clips, S and R samples at 22 050 Hz, L tokens.

    The last five fields are for stages whose `StageEntry` asks for `targets`, `speakers` or `codes`; for others they
    are zeros or have width 0.
    """

    index: object  # `(B,)` int32, positions of the clips in the set
    wav: object  # `(B, S)` float32 in [-1, 1], zero-padded; S is a multiple of 1024
    wav_lengths: object  # `(B,)` int32, in samples
    text: object  # `(B, L)` int32 token ids, language tag first, zero-padded, without `[START]` and `[STOP]`
    text_lengths: object  # `(B,)` int32
    conditioning: object  # `(B, R)` float32, conditioning clip; R is 0 in the DVAE stage
    conditioning_span: object  # `(B, 2)` int32, its start and end in `wav`; 0, 0 if it is another clip
    target_wav: object  # `(B, target_width(S))` float32, the same audio at 24 000 Hz, resampled from the file
    target_lengths: object  # `(B,)` int32, in samples at 24 000 Hz
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz
    speaker: object  # `(B,)` int32, index into the sorted speakers of the training set; -1 if unknown
    # `(B, S / 1024)` int32, zero-padded, of prepared clips, whose `wav` is empty; width 0: codes are computed
    codes: object = np.zeros((0, 0), np.int32)


WAVE_DTYPES = WaveBatch(*map(np.dtype, "i4 f4 i4 i4 i4 f4 i4 f4 i4 i4 i4 i4".split()))
WAVE_RANKS = WaveBatch(1, 2, 1, 2, 1, 2, 2, 2, 1, 1, 1, 2)
TARGET_GRID = (147, 160)
"""Numbers of samples at 22 050 and at 24 000 Hz of equal duration; slices start on multiples of them."""


def target_width(num_samples: int) -> int:
    """Returns the samples at 24 000 Hz, in whole decoder frames, that hold `num_samples` at 22 050 Hz."""
    frames = -(-num_samples * DECODER_SAMPLE_RATE // (MODEL_SAMPLE_RATE * MEL_HOP_SAMPLES))
    return frames * MEL_HOP_SAMPLES


def zero_batch(
    rows: int, num_samples: int, num_tokens: int, voice_samples: int = 0, targets: bool = False, prepared: bool = False
) -> WaveBatch:
    """Makes a `WaveBatch` of zeros; a `prepared` one has space for the codes of `num_samples` instead of samples."""
    wav, codes = (0, num_samples // CODE_STRIDE_SAMPLES) if prepared else (num_samples, 0)
    target = target_width(num_samples) if targets else 0
    widths = (), (wav,), (), (num_tokens,), (), (voice_samples,), (2,), (target,), (), (), (), (codes,)
    return WaveBatch(*(np.zeros((rows, *width), dtype) for width, dtype in zip(widths, WAVE_DTYPES)))


def noise_batch(
    num_clips: int, num_samples: int, num_tokens: int, voice_samples: int, num_text_tokens: int, targets: bool = False
) -> WaveBatch:
    """Makes a `WaveBatch` of noise and random text without padding, for measurements."""
    rng, num_targets = np.random.default_rng(0), target_width(num_samples) if targets else 0
    noise = lambda size: 0.1 * rng.standard_normal((num_clips, size), np.float32)
    full = lambda value: np.full(num_clips, value, np.int32)
    wav, text = noise(num_samples), rng.integers(0, num_text_tokens, (num_clips, num_tokens), np.int32)
    batch = zero_batch(num_clips, 0, 0)._replace(wav=wav, wav_lengths=full(num_samples))
    batch = batch._replace(text=text, text_lengths=full(num_tokens), conditioning=noise(voice_samples))
    rate = full(DECODER_SAMPLE_RATE * targets)
    return batch._replace(target_wav=noise(num_targets), target_lengths=full(num_targets), source_rate=rate)


class DVAEBatch(NamedTuple):
    """Training batch of the DVAE, made on the data device. T mel frames, a multiple of 4."""

    index: object  # `(B,)` int32
    mel: object  # `(B, T, num_mels)` float32, normalized log-mel
    mel_lengths: object  # `(B,)` int32, in frames


class GPTBatch(NamedTuple):
    """Training batch of the GPT, made on the data device. C codes, F conditioning frames."""

    index: object  # `(B,)` int32
    text: object  # `(B, L)` int32
    text_lengths: object  # `(B,)` int32
    conditioning_mel: object  # `(B, F, num_mels)` float32, normalized log-mel
    codes: object  # `(B, C)` int32
    code_lengths: object  # `(B,)` int32, `ceil(samples / 1024)`
    conditioning_codes: object  # `(B, 2)` int32, start and end of the codes that it contains, which the loss skips


class SpeakerBatch(NamedTuple):
    """Training batch of the speaker encoder, made on the data device. F frames, 100 per second."""

    index: object  # `(B,)` int32
    mel: object  # `(B, F, 64)` float32, log-mel of audio at 16 000 Hz; short clips are repeated
    speaker: object  # `(B,)` int32, class: a speaker of the training set at one speed; -1 if unknown


class DecoderBatch(NamedTuple):
    """Training batch of the waveform decoder, made on the data device. F frames of a slice and its context, S samples.

    The target starts after `history_frames` of the decoder and ends before `lookahead_frames`; in validation the slice
    is the whole clip.
    """

    index: object  # `(B,)` int32
    frames: object  # `(B, F, width)` float32, GPT latents on the decoder's grid
    present: object  # `(B, F)` bool, False where the clip has no frame
    speaker: object  # `(B, speaker_width)` float32, speaker vector
    target: object  # `(B, S)` float32, audio at 24 000 Hz; zeros where the clip has no frame
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz


class BatchError(ValueError):
    """A batch that breaks the contract."""


def check_wave_batch(batch: WaveBatch) -> WaveBatch:
    """Returns `batch` (NumPy arrays); raises `BatchError` if it breaks the contract. Called where batches are made."""

    def require(holds, name, rule, received):
        if not holds:
            raise BatchError(f"WaveBatch.{name} must {rule}. Received: {received}.")

    rows = len(batch.index)
    for name, value, dtype, rank in zip(WaveBatch._fields, batch, WAVE_DTYPES, WAVE_RANKS):
        holds = value.dtype == dtype and value.ndim == rank and len(value) == rows
        require(holds, name, f"be {dtype.name} of rank {rank} with {rows} rows", f"{value.dtype} {value.shape}")
    num_samples, num_targets, num_codes = (value.shape[1] for value in (batch.wav, batch.target_wav, batch.codes))
    is_whole, width = num_samples % CODE_STRIDE_SAMPLES == 0, target_width(num_samples)
    require(is_whole, "wav", f"have a multiple of {CODE_STRIDE_SAMPLES} samples", num_samples)
    require(not (num_samples and num_codes), "wav", "be empty if there are codes", num_samples)
    require(num_targets in (0, width), "target_wav", f"have {width} samples or none", num_targets)
    sizes = {"wav_lengths": num_samples or num_codes * CODE_STRIDE_SAMPLES, "text_lengths": batch.text.shape[1]}
    sizes |= {"target_lengths": num_targets} if num_targets else {}
    for name, size in sizes.items():
        lengths = getattr(batch, name)
        require(np.all((lengths >= 1) & (lengths <= size)), name, f"be within 1 and {size}", lengths)
    return batch


class OrderedBatch(NamedTuple):
    """Batch `offset` of an epoch: its clips, `(B,)`, and the lengths that waveforms and texts are padded to."""

    epoch: int
    offset: int
    indices: np.ndarray
    num_samples: int
    num_tokens: int


def bucket_bounds(units: np.ndarray, num_buckets: int) -> np.ndarray:
    """Returns the upper bounds of at most `num_buckets` length buckets with the least total padding, ascending.

    `units` are lengths, `(N,)` int, at least 1.
    """
    lengths, counts = np.unique(units, return_counts=True)
    if len(lengths) <= num_buckets:
        return lengths
    total = np.concatenate([[0], np.cumsum(counts)])
    weighted = np.concatenate([[0], np.cumsum(counts * lengths)])
    # cost[i, j]: padding if lengths i..j share a bucket of length j.
    size = len(lengths)
    cost = lengths[None, :] * (total[None, 1:] - total[:size, None]) - (weighted[None, 1:] - weighted[:size, None])
    cost = np.where(np.arange(size)[:, None] <= np.arange(size)[None, :], cost.astype(np.float64), np.inf)
    best, cuts = cost[0], []
    for _ in range(num_buckets - 1):
        # Lengths up to i - 1 in earlier buckets, i..j in this one.
        options = best[:-1, None] + cost[1:]
        cuts.append(np.argmin(options, axis=0) + 1)
        best = np.min(options, axis=0)
    bounds = [size - 1]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]] - 1)
    return lengths[bounds[::-1]]


@dataclass(frozen=True, eq=False)
class EpochStart:
    """Start of a batch order: `position` of its first batch, and the state of the epoch that it continues there."""

    position: int = 0
    epoch: int = 0
    offset: int = 0
    """Number of batches of the epoch that are already used."""
    heard: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """`(H,)` indices of the clips of the epoch that are already used."""


@dataclass(eq=False)
class BatchOrder:
    """Order of the training batches over all epochs.

    Clips are shuffled, sorted into length buckets and cut into batches of one size; the remainder of a bucket joins the
    next longer one. Each epoch leaves out the clips that would not fill a batch, different ones each time. An epoch
    that another order started continues with its remaining clips.
    """

    num_samples: Sequence[int]
    """`(N,)` lengths of the clips at 22 050 Hz."""
    num_tokens: Sequence[int]
    """`(N,)` lengths of their texts."""
    batch_size: int
    """Clips per batch; a smaller set is repeated to fill one."""
    num_buckets: int
    """Maximum number of length buckets."""
    seed: int
    fixed_samples: int | None = None
    fixed_tokens: int | None = None
    """Padded lengths of every batch (static shapes), instead of those of its bucket."""
    extra_samples: int = 0
    """Space added to every clip for a random shift."""
    start: EpochStart = field(default_factory=EpochStart)
    """First batch; there is none before."""

    def __post_init__(self):
        self.num_samples, tokens = (np.asarray(row, np.int64) for row in (self.num_samples, self.num_tokens))
        units = -(-(self.num_samples + self.extra_samples) // CODE_STRIDE_SAMPLES)
        bounds = bucket_bounds(units, self.num_buckets if self.fixed_samples is None else 1)
        self._bucket = np.searchsorted(bounds, units)
        self.shapes: list[tuple[int, int]] = []
        """Padded lengths of waveforms and texts of each bucket."""
        for bucket, bound in enumerate(bounds):
            longest_text = int(tokens[self._bucket <= bucket].max())
            samples = self.fixed_samples or int(bound) * CODE_STRIDE_SAMPLES
            self.shapes.append((samples, self.fixed_tokens or longest_text))
        self.batches_per_epoch = self._in_first_epoch = max(1, len(tokens) // self.batch_size)
        if len(self.start.heard):
            self._in_first_epoch = (len(tokens) - len(np.unique(self.start.heard))) // self.batch_size
        self._epoch_batches = lru_cache(maxsize=2)(self._order_epoch)

    def _order_epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch, 0])
        order, num_batches = rng.permutation(len(self.num_samples)), self.batches_per_epoch
        if epoch == self.start.epoch:
            order, num_batches = order[~np.isin(order, self.start.heard)], self._in_first_epoch
        # The remainder is dropped before the clips go into buckets: afterwards it would always be long clips.
        order = np.resize(order, num_batches * self.batch_size)
        batches, left = [], order[:0]
        for bucket in range(len(self.shapes)):
            members = np.concatenate([left, order[self._bucket[order] == bucket]])
            full = len(members) // self.batch_size * self.batch_size
            batches += [(rows, bucket) for rows in members[:full].reshape(-1, self.batch_size)]
            left = members[full:]
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, position: int) -> OrderedBatch:
        """Returns the batch at `position`, counted from the start of training."""
        epoch, row = self._place(position)
        indices, bucket = self._epoch_batches(epoch)[row]
        offset = row + self.start.offset if epoch == self.start.epoch else row
        return OrderedBatch(epoch, offset, indices, *self.shapes[bucket])

    def _place(self, position):
        """Returns the epoch of a batch, and its number among the batches of this order in it."""
        row = int(position) - self.start.position
        if row < 0:
            raise IndexError(f"position must be at least {self.start.position}. Received: {position}.")
        if row < self._in_first_epoch:
            return self.start.epoch, row
        epochs, row = divmod(row - self._in_first_epoch, self.batches_per_epoch)
        return self.start.epoch + 1 + epochs, row

    def cut(self, position: int) -> EpochStart:
        """Returns the start of a batch order over other clips or batches that continues this one at `position`."""
        epoch, row = self._place(position)
        is_first = epoch == self.start.epoch
        heard = [indices for indices, _ in self._epoch_batches(epoch)[:row]] + [self.start.heard] * is_first
        heard = np.concatenate(heard) if heard else np.zeros(0, np.int64)
        return EpochStart(int(position), epoch, row + self.start.offset * is_first, heard)

    def start_at(self, position: int) -> EpochStart:
        """Returns the start of the epoch that contains `position`; from there this order yields the same batches."""
        epoch, row = self._place(position)
        return self.start if epoch == self.start.epoch else EpochStart(int(position) - row, epoch)

    def digest(self) -> str:
        """Returns a digest of everything that determines the batches, except the start and the clip ids."""
        hasher = new_hasher()
        for rows in (self.num_samples, self._bucket, np.asarray(self.shapes), [self.batch_size, self.seed]):
            hasher.update(np.ascontiguousarray(rows, np.int64).tobytes() + b"|")
        return hasher.hexdigest()

    def padding_share(self) -> float:
        """Returns the share of padding in the samples of one epoch's batches."""
        first = self.start.position
        batches = [self.batch(position) for position in range(first, first + self.batches_per_epoch)]
        real = sum(self.num_samples[batch.indices].sum() for batch in batches)
        return 1.0 - real / sum(len(batch.indices) * batch.num_samples for batch in batches)


class SequentialOrder:
    """Order of validation: every clip once, shortest first. The last batch may be smaller."""

    def __init__(self, num_samples: Sequence[int], num_tokens: Sequence[int], batch_size: int):
        self.num_samples = np.asarray(num_samples, np.int64)
        self.batch_size = batch_size
        self._max_tokens = max(num_tokens)
        self._clips = np.argsort(self.num_samples, kind="stable")
        self.batches_per_epoch = -(-len(self._clips) // batch_size)

    def batch(self, position: int) -> OrderedBatch:
        """Returns the batch at `position` of the only epoch."""
        indices = self._clips[position * self.batch_size : (position + 1) * self.batch_size]
        samples = int(-(-self.num_samples[indices].max() // CODE_STRIDE_SAMPLES) * CODE_STRIDE_SAMPLES)
        return OrderedBatch(0, position, indices, samples, int(self._max_tokens))

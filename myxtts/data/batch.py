"""Batches that the data pipeline passes to the training step, and the order of the clips in them.

The order depends only on clip lengths, seed, epoch and position, so that a resumed run reads the same batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.storage.files import new_hasher


class WaveBatch(NamedTuple):
    """Padded batch of B clips, loaded on the host: S audio samples, L text tokens and R conditioning samples per clip.

    Audio is at 22 050 Hz, except `target_wav`. The fields from `target_wav` to `codes` are empty or 0 if unused.
    """

    index: object  # `(B,)` int32, positions of the clips in the data set
    wav: object  # `(B, S)` float32 in [-1, 1], zero-padded; S is a multiple of 1024
    wav_lengths: object  # `(B,)` int32, in samples
    text: object  # `(B, L)` int32 token ids, language tag first, zero-padded, without `[START]` and `[STOP]`
    text_lengths: object  # `(B,)` int32
    conditioning: object  # `(B, R)` float32, conditioning clip; R is 0 in the DVAE stage
    conditioning_span: object  # `(B, 2)` int32, start and end of `conditioning` in `wav`; 0, 0 if from another clip
    target_wav: object  # `(B, target_width(S))` float32, the same audio at 24 000 Hz, resampled from the file
    target_lengths: object  # `(B,)` int32, in samples at 24 000 Hz
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz
    speaker: object  # `(B,)` int32, index into the sorted speakers of the training set; -1 if unknown
    # `(B, S / 1024)` int32, zero-padded, in batches of prepared clips, whose `wav` is empty; `(B, 0)` in other batches
    codes: object = np.zeros((0, 0), np.int32)


WAVE_DTYPES = WaveBatch(*map(np.dtype, "i4 f4 i4 i4 i4 f4 i4 f4 i4 i4 i4 i4".split()))
WAVE_RANKS = WaveBatch(1, 2, 1, 2, 1, 2, 2, 2, 1, 1, 1, 2)
TARGET_GRID = (147, 160)
"""Number of samples in 1/150 s at 22 050 and at 24 000 Hz. At multiples of 1/150 s, both rates have a sample."""


def target_width(num_samples: int) -> int:
    """Converts a length in samples at 22 050 Hz to samples at 24 000 Hz, rounded up to whole decoder frames."""
    return -(-num_samples * DECODER_SAMPLE_RATE // (MODEL_SAMPLE_RATE * MEL_HOP_SAMPLES)) * MEL_HOP_SAMPLES


def zero_batch(
    rows: int, num_samples: int, num_tokens: int, voice_samples: int = 0, targets: bool = False, prepared: bool = False
) -> WaveBatch:
    """Creates a `WaveBatch` of zeros. Conditioning clips have `voice_samples` samples. If `targets` is true, the batch
    has a `target_wav`. If `prepared` is true, the batch has `codes` instead of `wav`."""
    wav, codes = (0, num_samples // CODE_STRIDE_SAMPLES) if prepared else (num_samples, 0)
    target = target_width(num_samples) if targets else 0
    widths = (), (wav,), (), (num_tokens,), (), (voice_samples,), (2,), (target,), (), (), (), (codes,)
    return WaveBatch(*(np.zeros((rows, *width), dtype) for width, dtype in zip(widths, WAVE_DTYPES)))


def noise_batch(
    num_clips: int, num_samples: int, num_tokens: int, voice_samples: int, num_text_tokens: int, targets: bool = False
) -> WaveBatch:
    """Creates a `WaveBatch` of noise and of random token ids below `num_text_tokens`, to measure speed and memory.
    No clip is padded. `voice_samples` and `targets` have the same meaning as in `zero_batch`."""
    rng, batch = np.random.default_rng(0), zero_batch(num_clips, num_samples, num_tokens, voice_samples, targets)
    for waves in (batch.wav, batch.conditioning, batch.target_wav):
        waves[:] = 0.1 * rng.standard_normal(waves.shape, np.float32)
    batch.text[:] = rng.integers(0, num_text_tokens, batch.text.shape)
    batch.wav_lengths[:], batch.text_lengths[:] = num_samples, num_tokens
    batch.target_lengths[:], batch.source_rate[:] = batch.target_wav.shape[1], DECODER_SAMPLE_RATE * targets
    return batch


class DVAEBatch(NamedTuple):
    """Training batch of the DVAE, computed on the data device: T mel frames per clip, where T is a multiple of 4."""

    index: object  # `(B,)` int32
    mel: object  # `(B, T, num_mels)` float32, normalized log-mel
    mel_lengths: object  # `(B,)` int32, in frames


class GPTBatch(NamedTuple):
    """Training batch of the GPT, computed on the data device: C codes and F conditioning frames per clip."""

    index: object  # `(B,)` int32
    text: object  # `(B, L)` int32
    text_lengths: object  # `(B,)` int32
    conditioning_mel: object  # `(B, F, num_mels)` float32, normalized log-mel
    codes: object  # `(B, C)` int32
    code_lengths: object  # `(B,)` int32, `ceil(samples / 1024)`
    conditioning_codes: object  # `(B, 2)` int32, start and end of the conditioning clip in `codes`; not in the loss


class SpeakerBatch(NamedTuple):
    """Training batch of the speaker encoder, computed on the data device: F frames per clip, 100 frames per second."""

    index: object  # `(B,)` int32
    mel: object  # `(B, F, 64)` float32, log-mel of audio at 16 000 Hz; short clips are repeated
    speaker: object  # `(B,)` int32, class: one for each training speaker at each playback speed; -1 if unknown


class DecoderBatch(NamedTuple):
    """Training batch of the waveform decoder: slices of clips, or whole clips in validation. A slice has S samples.
    The F frames cover the slice, the decoder's `history_frames` before it, and its `lookahead_frames` after it."""

    index: object  # `(B,)` int32
    frames: object  # `(B, F, width)` float32, GPT latents on the decoder's grid
    present: object  # `(B, F)` bool, False before the start and after the end of the clip
    speaker: object  # `(B, speaker_width)` float32, speaker vector
    target: object  # `(B, S)` float32, audio at 24 000 Hz, zero-padded
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz


def check_wave_batch(batch: WaveBatch) -> WaveBatch:
    """Checks shapes, dtypes and lengths of a batch of NumPy arrays. Returns the batch, or raises `ValueError`."""

    def require(holds, name, rule, received):
        if not holds:
            raise ValueError(f"WaveBatch.{name} must {rule}. Received: {received}.")

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
        require(np.all((lengths >= 1) & (lengths <= size)), name, f"be from 1 to {size}", lengths)
    return batch


class OrderedBatch(NamedTuple):
    """Clips and padded lengths of a batch. `BatchLoader` loads the clips into a `WaveBatch`."""

    epoch: int
    offset: int  # number of earlier batches in the epoch
    indices: np.ndarray  # `(B,)`, positions of the clips in the data set
    num_samples: int  # padded length of the audio
    num_tokens: int  # padded length of the texts


def bucket_bounds(units: np.ndarray, num_buckets: int) -> np.ndarray:
    """Divides clip lengths `units`, `(N,)`, into buckets with minimal padding. Returns their sorted upper bounds."""
    lengths, counts = np.unique(units, return_counts=True)
    if len(lengths) <= num_buckets:
        return lengths
    total = np.concatenate([[0], np.cumsum(counts)])
    weighted = np.concatenate([[0], np.cumsum(counts * lengths)])
    # cost[i, j]: total padding of a bucket that contains the distinct lengths with indices i to j.
    size = len(lengths)
    cost = lengths[None, :] * (total[None, 1:] - total[:size, None]) - (weighted[None, 1:] - weighted[:size, None])
    cost = np.where(np.arange(size)[:, None] <= np.arange(size)[None, :], cost.astype(np.float64), np.inf)
    best, cuts = cost[0], []
    for _ in range(num_buckets - 1):
        # options[i - 1, j]: least padding if the lengths up to i - 1 are in earlier buckets, and i to j in this bucket.
        options = best[:-1, None] + cost[1:]
        cuts.append(np.argmin(options, axis=0) + 1)
        best = np.min(options, axis=0)
    bounds = [size - 1]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]] - 1)
    return lengths[bounds[::-1]]


@dataclass(frozen=True, eq=False)
class EpochStart:
    """Where a `BatchOrder` begins: position and epoch of its first batch, and clips already used in that epoch."""

    position: int = 0
    epoch: int = 0
    offset: int = 0
    """Number of batches of the epoch that were already used."""
    heard: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Indices of the clips that were already used in the epoch, `(H,)`."""


@dataclass(eq=False)
class BatchOrder:
    """Order of the training batches over all epochs.

    In each epoch, clips are shuffled, and the last clips are skipped if they do not fill a batch. The other clips are
    sorted into length buckets, which are divided into batches of `batch_size`. Leftover clips of a bucket move to the
    next longer bucket. If `start` is inside an epoch, this epoch uses only clips that are not in `start.heard`.
    """

    num_samples: Sequence[int]
    """Lengths of the clips in samples at 22 050 Hz, `(N,)`."""
    num_tokens: Sequence[int]
    """Lengths of the texts in tokens, `(N,)`."""
    batch_size: int
    """Clips per batch. A data set with fewer clips is repeated to fill one batch."""
    num_buckets: int
    seed: int
    fixed_samples: int | None = None
    fixed_tokens: int | None = None
    """`fixed_samples` and `fixed_tokens` are the padded lengths in all batches; None means one length per bucket."""
    extra_samples: int = 0
    """Samples added to the padded length of every clip, to make room for random silence before the clip."""
    start: EpochStart = field(default_factory=EpochStart)
    """Point where this order starts. Earlier positions are invalid."""

    def __post_init__(self):
        self.num_samples, tokens = (np.asarray(row, np.int64) for row in (self.num_samples, self.num_tokens))
        units = -(-(self.num_samples + self.extra_samples) // CODE_STRIDE_SAMPLES)
        bounds = bucket_bounds(units, self.num_buckets if self.fixed_samples is None else 1)
        self._bucket = np.searchsorted(bounds, units)
        self.shapes: list[tuple[int, int]] = []
        """For each bucket, the padded lengths of the audio in samples and of the texts in tokens."""
        for bucket, bound in enumerate(bounds):
            samples = self.fixed_samples or int(bound) * CODE_STRIDE_SAMPLES
            self.shapes.append((samples, self.fixed_tokens or int(tokens[self._bucket <= bucket].max())))
        self.batches_per_epoch = self._in_first_epoch = max(1, len(tokens) // self.batch_size)
        if len(self.start.heard):
            self._in_first_epoch = (len(tokens) - len(np.unique(self.start.heard))) // self.batch_size
        self._epoch_batches = lru_cache(maxsize=2)(self._order_epoch)

    def _order_epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch, 0])
        order, num_batches = rng.permutation(len(self.num_samples)), self.batches_per_epoch
        if epoch == self.start.epoch:
            order, num_batches = order[~np.isin(order, self.start.heard)], self._in_first_epoch
        # The remainder is dropped before bucketing; afterwards, it would always consist of long clips.
        order = np.resize(order, num_batches * self.batch_size)
        batches, left = [], order[:0]
        for bucket in range(len(self.shapes)):
            members = np.concatenate([left, order[self._bucket[order] == bucket]])
            full = len(members) // self.batch_size * self.batch_size
            batches += [(rows, bucket) for rows in members[:full].reshape(-1, self.batch_size)]
            left = members[full:]
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, position: int) -> OrderedBatch:
        """Returns the clips and the padded lengths of the batch at `position`, counted from the start of training."""
        epoch, row, before = self._place(position)
        indices, bucket = self._epoch_batches(epoch)[row]
        return OrderedBatch(epoch, row + before.offset, indices, *self.shapes[bucket])

    def _place(self, position):
        """Returns the epoch of a batch, the batch's index in `_epoch_batches(epoch)`, and the epoch's `EpochStart`."""
        row = int(position) - self.start.position
        if row < self._in_first_epoch:
            return self.start.epoch, row, self.start
        epochs, row = divmod(row - self._in_first_epoch, self.batches_per_epoch)
        return self.start.epoch + 1 + epochs, row, EpochStart()

    def cut(self, position: int) -> EpochStart:
        """Returns an `EpochStart` at `position`, to continue there with other clips or another batch size."""
        epoch, row, before = self._place(position)
        heard = [*(indices for indices, _ in self._epoch_batches(epoch)[:row]), before.heard]
        return EpochStart(int(position), epoch, row + before.offset, np.concatenate(heard))

    def start_at(self, position: int) -> EpochStart:
        """Returns the point where `self` begins the epoch that contains `position`. A `BatchOrder` with this `start`,
        but otherwise equal to `self`, has the same batches from that epoch on."""
        epoch, row, before = self._place(position)
        return self.start if before is self.start else EpochStart(int(position) - row, epoch)

    def digest(self) -> str:
        """Returns a digest of lengths, buckets, batch size and seed, which determine the batches of a resumed run."""
        hasher = new_hasher()
        for rows in (self.num_samples, self._bucket, np.asarray(self.shapes), [self.batch_size, self.seed]):
            hasher.update(np.ascontiguousarray(rows, np.int64).tobytes() + b"|")
        return hasher.hexdigest()

    def padding_share(self) -> float:
        """Returns the fraction of padding in the audio of the first epoch's batches, from 0 to 1."""
        first = self.start.position
        batches = [self.batch(position) for position in range(first, first + self.batches_per_epoch)]
        real = sum(self.num_samples[batch.indices].sum() for batch in batches)
        return 1.0 - real / sum(len(batch.indices) * batch.num_samples for batch in batches)


class SequentialOrder:
    """Order of the validation batches: every clip once, shortest first. The last batch may be smaller."""

    def __init__(self, num_samples: Sequence[int], num_tokens: Sequence[int], batch_size: int):
        self.num_samples = np.asarray(num_samples, np.int64)
        self.batch_size = batch_size
        self._max_tokens = max(num_tokens)
        self._clips = np.argsort(self.num_samples, kind="stable")
        self.batches_per_epoch = -(-len(self._clips) // batch_size)

    def batch(self, position: int) -> OrderedBatch:
        """Returns the clips and the padded lengths of the batch at `position`, counted from 0."""
        indices = self._clips[position * self.batch_size : (position + 1) * self.batch_size]
        samples = int(-(-self.num_samples[indices].max() // CODE_STRIDE_SAMPLES) * CODE_STRIDE_SAMPLES)
        return OrderedBatch(0, position, indices, samples, int(self._max_tokens))

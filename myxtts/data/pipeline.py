"""Loads batches of clips (`WaveBatch`) with tf.data, and copies them to the device that prepares training data."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from myxtts.audio.files import load_with_rate, to_int16
from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.config.settings import Default
from myxtts.data.batch import TARGET_GRID, BatchOrder, SequentialOrder, WaveBatch, check_wave_batch, zero_batch
from myxtts.data.corpora import Utterance
from myxtts.data.shards import PreparedClip
from myxtts.devices.tensorflow_start import AbandonedThread


class SampleCache:
    """Cache of about `budget_mb` MB for recordings (as 16-bit samples) and DVAE codes. `prepared` has the form
    `{path of a recording: prepared clip}`; these clips are read from the shards that `myxtts prepare` has written."""

    def __init__(self, budget_mb: float, prepared: Mapping[str, PreparedClip] | None = None):
        self.prepared = prepared or {}
        self._room = budget_mb * 2**20
        self._arrays: dict[tuple[str, int], tuple[np.ndarray, int]] = {}

    def load(self, path: str, sample_rate: int = MODEL_SAMPLE_RATE) -> tuple[np.ndarray, int]:
        """Returns float32 samples `(S,)` at `sample_rate` Hz, and the sample rate of the source file or shard."""

        def read():
            if sample_rate == MODEL_SAMPLE_RATE and path in self.prepared:
                return self.prepared[path].read_samples(), sample_rate
            samples, source_rate = load_with_rate(path, sample_rate)
            return to_int16(samples), source_rate

        samples, source_rate = self._kept((path, sample_rate), read)
        return samples.astype(np.float32) * (1.0 / 32767.0), source_rate

    def codes(self, path: str) -> np.ndarray:
        """Returns the DVAE codes of the recording `path`, `(C,)` int32. `self.prepared` must contain `path`."""
        return self._kept((path, 0), lambda: (self.prepared[path].read_codes(), 0))[0]

    def _kept(self, key, read):
        if (entry := self._arrays.get(key)) is None:
            entry = read()
            # Threads need no lock: only one of them adds an array, and the room for a few more does not matter.
            if entry[0].nbytes <= self._room and self._arrays.setdefault(key, entry) is entry:
                self._room -= entry[0].nbytes
        return entry


@dataclass(eq=False)
class BatchLoader:
    """Callable that loads batch `position` of `order`. Random choices depend only on seed, epoch, batch and row."""

    clips: Sequence[Utterance]
    order: BatchOrder | SequentialOrder
    cache: SampleCache
    seed: int
    conditioning: DataConfig | None = None
    """Settings of the conditioning clips: lengths, source and padding. None if there are no conditioning clips."""
    conditioning_grid: int = 1
    """Grid step in samples. A conditioning clip starts at a multiple of the step. Its length is rounded down to a
    multiple of the step, unless the length is the maximum or shorter than one step."""
    crop_samples: int | None = None
    """Maximum length in samples of the slice to load from each clip; None loads whole clips."""
    max_shift: int = 0
    """Maximum length of the random silence before a training clip, in samples."""
    training: bool = True
    """Whether slices, conditioning clips and shifts are random. If False, all of them are fixed, and shifts are 0."""
    targets: bool = False
    """Whether batches contain the audio at 24 000 Hz; slices then start at multiples of `TARGET_GRID`."""
    speakers: Sequence[str] | None = None
    """Speaker names in the order of their indices in `WaveBatch.speaker`; None if that field is not used."""
    prepared: bool = False
    """Whether batches contain codes instead of samples; the clips are then whole and not shifted."""
    share: tuple[int, int] = (0, 1)
    """`(part, parts)`: this worker loads part number `part`, counted from 0, of the `parts` equal parts of a batch."""

    def __post_init__(self):
        self._by_speaker: dict[tuple[str, str], list[int]] = {}
        for index, clip in enumerate(self.clips):
            self._by_speaker.setdefault((clip.speaker, clip.language), []).append(index)
        self._speaker_index = {name: index for index, name in enumerate(self.speakers or ())}
        seconds = self.conditioning.conditioning_seconds if self.conditioning else (0, 0)
        self._min_conditioning, self.conditioning_samples = (int(one * MODEL_SAMPLE_RATE) for one in seconds)

    def __call__(self, position: int) -> WaveBatch:
        ordered = self.order.batch(position)
        part, parts = self.share
        first, end = (number * len(ordered.indices) // parts for number in (part, part + 1))
        indices = ordered.indices[first:end]
        shape = len(indices), ordered.num_samples, ordered.num_tokens, self.conditioning_samples
        batch = zero_batch(*shape, self.targets, self.prepared)
        batch.index[:] = indices
        for row, index in enumerate(indices):
            clip = self.clips[index]
            # One generator per row, because another worker may read the other rows.
            rng = np.random.default_rng([self.seed, ordered.epoch, ordered.offset, 1, first + row])
            batch.text[row, : len(clip.tokens)] = clip.tokens
            batch.text_lengths[row] = len(clip.tokens)
            if self.speakers is not None:
                batch.speaker[row] = self._speaker_index.get(clip.speaker, -1)
            if self.prepared:
                codes = self.cache.codes(clip.wav_path)[: batch.codes.shape[1]]
                batch.codes[row, : len(codes)] = codes
                batch.wav_lengths[row] = min(clip.num_samples, batch.codes.shape[1] * CODE_STRIDE_SAMPLES)
                samples, shift = None, 0
            else:
                samples, shift = self._fill_wav(batch, row, clip, rng)
            if self.conditioning is not None:
                self._fill_conditioning(batch, row, clip, rng, samples, shift)
        return check_wave_batch(batch)

    def _fill_wav(self, batch, row, clip, rng):
        """Writes `clip` to row `row` of `batch.wav`. If `self.targets` is true, also writes it to `batch.target_wav`.
        Returns the samples written to `batch.wav`, and the index in the row at which they start."""
        samples, _ = self.cache.load(clip.wav_path)
        start, room = 0, batch.wav.shape[1]
        if self.crop_samples is not None:
            start = self._start(len(samples), self.crop_samples, rng, TARGET_GRID[0] if self.targets else 1)
            samples = samples[start : start + self.crop_samples]
        samples = samples[:room]
        shift = int(rng.integers(min(self.max_shift, room - len(samples)) + 1)) if self.training else 0
        if self.targets:
            shift -= shift % TARGET_GRID[0]
            target, batch.source_rate[row] = self.cache.load(clip.wav_path, DECODER_SAMPLE_RATE)
            first, before = (place // TARGET_GRID[0] * TARGET_GRID[1] for place in (start, shift))
            length = -(-len(samples) * TARGET_GRID[1] // TARGET_GRID[0])
            target = target[first : first + min(length, batch.target_wav.shape[1] - before)]
            batch.target_wav[row, before : before + len(target)] = target
            batch.target_lengths[row] = before + len(target)
        batch.wav[row, shift : shift + len(samples)] = samples
        batch.wav_lengths[row] = shift + len(samples)
        return samples, shift

    def _fill_conditioning(self, batch, row, clip, rng, samples, shift):
        """Fills `batch.conditioning[row]` from `clip` or another clip by the same speaker. If `clip` is used, also sets
        `conditioning_span[row]`. `samples, shift` come from `_fill_wav`; they are `None, 0` if the batch has codes."""
        longest, grid = self.conditioning_samples, self.conditioning_grid
        length = int(rng.integers(self._min_conditioning, longest + 1)) if self.training else longest
        same_voice = self._by_speaker[clip.speaker, clip.language]
        other = None
        if self.conditioning.conditioning_source == "speaker" and len(same_voice) > 1:
            steps = int(rng.integers(1, len(same_voice))) if self.training else 1
            other = self.clips[same_voice[(bisect_left(same_voice, batch.index[row]) + steps) % len(same_voice)]]
            samples, _ = self.cache.load(other.wav_path)
        elif samples is None:
            samples = self.cache.load(clip.wav_path)[0][: batch.wav_lengths[row]]
        if other is None and len(samples) < length:
            length = max(1, len(samples) // 2)
        start = self._start(len(samples), length, rng, grid)
        length = min(length, len(samples))
        if grid <= length < longest:
            length -= length % grid
        filled = longest if self.conditioning.conditioning_padding == "repeat" else length
        batch.conditioning[row, :filled] = np.resize(samples[start : start + length], filled)
        if other is None:
            batch.conditioning_span[row] = shift + start, shift + start + length

    def _start(self, num_samples, length, rng, grid):
        start = int(rng.integers(num_samples - length + 1)) if self.training and num_samples > length else 0
        return start - start % grid


def wave_dataset(loader: Callable[[int], WaveBatch], start: int, stop: int | None, num_workers: int) -> tf.data.Dataset:
    """Returns a dataset of the batches from position `start` up to, but not including, `stop`. Without a `stop`, the
    dataset is endless. The batches are in order, although several batches are loaded in parallel."""
    empty = zero_batch(0, 0, 0)

    def read(position):
        # With op determinism, TensorFlow would run a stateful function one call at a time.
        dtypes = [tf.as_dtype(like.dtype) for like in empty]
        batch = WaveBatch(*tf.numpy_function(loader, [position], dtypes, stateful=False))
        for value, like in zip(batch, empty):
            value.set_shape([None] * like.ndim)
        return batch

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.map_fusion = True
    options.experimental_optimization.map_parallelization = True
    options.autotune.enabled = True
    # The shared pool has only one thread per core. By default, tf.data chooses how many private threads are used.
    adapts = isinstance(num_workers, Default)
    options.threading.private_threadpool_size = 2 * num_workers if adapts else num_workers
    positions = tf.data.Dataset.range(start, sys.maxsize if stop is None else stop)
    return positions.map(read, tf.data.AUTOTUNE if adapts else num_workers).with_options(options)


def stream_batches(
    loader: BatchLoader, device: str, start: int, stop: int | None, num_workers: int, buffer_size: int
) -> Iterator[WaveBatch]:
    """Yields the batches of `wave_dataset` on `device`. If `loader` raises an exception, raises the same exception.
    Handles exceptions and the end of the data in Python, because a failing TensorFlow operation would also abort the
    eager operations of other threads, such as the training step."""
    failures = {}

    def read(position):
        try:
            return tuple(loader(position))
        except Exception as error:
            failures[int(position)] = error
            return tuple(zero_batch(0, 0, 0))

    batches = iter(prefetch_to(wave_dataset(read, start, stop, num_workers), device, buffer_size))
    try:
        for position in range(start, sys.maxsize if stop is None else stop):
            batch = next(batches)
            if position in failures:
                raise failures[position]
            yield batch
    finally:
        # Deleted in a thread, because the destructor may wait a minute for the iterator's autotune thread.
        last_reference = [batches]
        del batches
        if not sys.is_finalizing():  # at exit, threads cannot start
            AbandonedThread(target=last_reference.clear, name="myxtts-ended-reader", daemon=False).start()


def prefetch_to(dataset: tf.data.Dataset, device: str, buffer_size: int) -> tf.data.Dataset:
    """Returns the dataset with `buffer_size` elements prefetched to `device`. No other transformation may follow."""
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, buffer_size))

"""From a list of clips to a tf.data stream of `WaveBatch`es on the data device."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError, load_with_rate
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.data.batch import TARGET_GRID, WAVE_DTYPES, WAVE_RANKS, WaveBatch, check_wave_batch, target_width
from myxtts.data.buckets import BatchOrder, SequentialOrder
from myxtts.data.conditioning import ConditioningRule, fill, known_frames
from myxtts.data.shards import PreparedClips, PreparedSound
from myxtts.utils.process_end import AbandonedThread

_FULL_SCALE = 32767.0


@dataclass(frozen=True)
class Clip:
    """A checked recording, ready to be trained on."""

    id: str
    wav_path: str
    tokens: tuple[int, ...]
    speaker: str
    language: str
    num_samples: int
    """Length at 22 050 Hz."""


class SampleCache:
    """Decoded recordings kept as 16-bit samples until a memory budget is full; from shards what is `prepared`."""

    def __init__(self, budget_mb: float, prepared: PreparedClips | None = None):
        self._room, self._prepared = budget_mb * 2**20, prepared
        self._samples: dict[tuple[str, int], tuple[np.ndarray, int, PreparedSound | None]] = {}
        self._lock = threading.Lock()

    def load(self, path: str, sample_rate: int = MODEL_SAMPLE_RATE) -> np.ndarray:
        """Samples of `path`, `(S,)` float32, rounded to 16 bit whether they were kept or not."""
        return self.load_with_rate(path, sample_rate)[0]

    def load_with_rate(self, path: str, sample_rate: int) -> tuple[np.ndarray, int]:
        """Samples of `path` at `sample_rate` Hz, decoded and resampled once, and the rate that the file has.

        The rate of a prepared clip is the one it is kept at.
        """
        samples, source_rate, _ = self._entry(path, sample_rate)
        return samples.astype(np.float32) * (1.0 / _FULL_SCALE), source_rate

    def load_prepared(self, path: str) -> tuple[np.ndarray, PreparedSound | None]:
        """Samples of `path` at 22 050 Hz, and what was computed of them, where it is prepared."""
        samples, _, prepared = self._entry(path, MODEL_SAMPLE_RATE)
        return samples.astype(np.float32) * (1.0 / _FULL_SCALE), prepared

    def _entry(self, path, sample_rate):
        key = path, sample_rate
        kept = self._samples.get(key)
        if kept is None:
            if self._prepared is not None and sample_rate == MODEL_SAMPLE_RATE and path in self._prepared:
                prepared = self._prepared.read(path)
                kept = prepared.samples, sample_rate, prepared
                size = sum(array.nbytes for array in prepared)
            else:
                samples, source_rate = load_with_rate(path, sample_rate)
                kept = to_int16(samples), source_rate, None
                size = kept[0].nbytes
            with self._lock:
                if key not in self._samples and size <= self._room:
                    self._room -= size
                    self._samples[key] = kept
        return kept


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples as they are kept and trained on; what lies beyond [-1, 1] is clipped."""
    return np.round(np.clip(samples, -1.0, 1.0) * _FULL_SCALE).astype(np.int16)


@dataclass(eq=False)
class BatchLoader:
    """Reads the batch at a position. A pure function of position: choices are seeded by (seed, epoch, offset, row)."""

    clips: Sequence[Clip]
    order: BatchOrder | SequentialOrder
    cache: SampleCache
    seed: int
    conditioning: ConditioningRule | None = None
    crop_samples: int | None = None
    """Longest slice of a clip, or None for whole clips."""
    max_shift: int = 0
    """Most samples of silence put before a training clip, at random."""
    training: bool = True
    """False takes fixed choices: no shift, first slices, the same conditioning clip every time."""
    targets: bool = False
    """Whether batches bring the sound at 24 000 Hz; clips then begin on `TARGET_GRID`."""
    speakers: Sequence[str] | None = None
    """Speakers by index, where batches say whose clips they are."""
    prepared: bool = False
    """Whether batches bring codes and conditioning mels of the clips, which are all prepared, whole and not put off."""
    share: tuple[int, int] = (0, 1)
    """Which of how many equal parts of each batch is read: a worker's own rows."""
    failure: Exception | None = None
    """What a reading thread could not read; see `stream_batches`."""

    def __post_init__(self):
        self._by_speaker: dict[tuple[str, str], list[int]] = {}
        for index, clip in enumerate(self.clips):
            self._by_speaker.setdefault((clip.speaker, clip.language), []).append(index)
        self._speaker_index = {name: index for index, name in enumerate(self.speakers or ())}

    def __call__(self, position: int) -> WaveBatch:
        ordered = self.order.batch(position)
        part, parts = self.share
        first = part * len(ordered.indices) // parts
        indices = ordered.indices[first : (part + 1) * len(ordered.indices) // parts]
        batch = self._empty(len(indices), ordered)
        batch.index[:] = indices
        missing = []
        for row, index in enumerate(indices):
            clip = self.clips[index]
            # A generator for each row: what is drawn for one depends on no other, which another worker reads.
            rng = np.random.default_rng([self.seed, ordered.epoch, ordered.offset, 1, first + row])
            (samples, prepared), start = self.cache.load_prepared(clip.wav_path), 0
            if self.prepared:
                codes = prepared.codes[: batch.codes.shape[1]]
                batch.codes[row, : len(codes)] = codes
            if self.crop_samples is not None:
                samples, start = self._slice(samples, self.crop_samples, rng, TARGET_GRID[0] if self.targets else 1)
            samples = samples[: ordered.num_samples]
            room = min(self.max_shift, ordered.num_samples - len(samples)) if self.training else 0
            shift = int(rng.integers(room + 1))
            if self.targets:
                shift -= shift % TARGET_GRID[0]
                self._fill_target(batch, row, clip, start, len(samples), shift)
            if self.speakers is not None:
                batch.speaker[row] = self._speaker_index.get(clip.speaker, -1)
            batch.wav[row, shift : shift + len(samples)] = samples
            batch.text[row, : len(clip.tokens)] = clip.tokens
            batch.wav_lengths[row], batch.text_lengths[row] = shift + len(samples), len(clip.tokens)
            if self.conditioning is not None:
                missing.append(self._fill_conditioning(batch, row, samples, prepared, shift, rng))
        if self.prepared and self.conditioning is not None:
            width = max(map(len, missing))
            missing = np.array([np.pad(frames, (0, width - len(frames)), "edge") for frames in missing], np.int32)
            batch = batch._replace(missing_frames=missing)
        return check_wave_batch(batch)

    def _empty(self, rows, ordered):
        """A batch of zeros."""
        voice, frames, num_codes = 0, 0, ordered.num_samples // CODE_STRIDE_SAMPLES * self.prepared
        if self.conditioning is not None:
            voice, frames = self.conditioning.max_samples, self.conditioning.num_frames * self.prepared
        target = target_width(ordered.num_samples) * self.targets
        widths = (), (ordered.num_samples,), (), (ordered.num_tokens,), (), (voice,), (2,), (target,), (), (), ()
        widths = *widths, (num_codes,), (frames, NUM_MELS), (0,)
        return WaveBatch(*(np.zeros((rows, *width), dtype) for width, dtype in zip(widths, WAVE_DTYPES)))

    def _fill_target(self, batch, row, clip, start, length, shift):
        """Puts what `wav` shows, `length` samples from `start` on, put off by `shift`, into the row at 24 000 Hz."""
        samples, batch.source_rate[row] = self.cache.load_with_rate(clip.wav_path, DECODER_SAMPLE_RATE)
        start, shift = (place // TARGET_GRID[0] * TARGET_GRID[1] for place in (start, shift))
        room = min(-(-length * TARGET_GRID[1] // TARGET_GRID[0]), batch.target_wav.shape[1] - shift)
        samples = samples[start : start + room]
        batch.target_wav[row, shift : shift + len(samples)] = samples
        batch.target_lengths[row] = shift + len(samples)

    def _slice(self, samples, length, rng, grid=1):
        start = int(rng.integers(len(samples) - length + 1)) if self.training and len(samples) > length else 0
        start -= start % grid
        return samples[start : start + length], start

    def _fill_conditioning(self, batch, row, samples, prepared, shift, rng):
        """Puts the clip that the voice is taken from into the row; returns which frames of its mel are missing."""
        rule, index = self.conditioning, batch.index[row]
        length = int(rng.integers(rule.min_samples, rule.max_samples + 1)) if self.training else rule.max_samples
        clip = self.clips[index]
        same_voice = self._by_speaker[clip.speaker, clip.language]
        is_other = rule.source == "speaker" and len(same_voice) > 1
        if is_other:
            steps = int(rng.integers(1, len(same_voice))) if self.training else 1
            other = self.clips[same_voice[(same_voice.index(index) + steps) % len(same_voice)]]
            samples, prepared = self.cache.load_prepared(other.wav_path)
        elif len(samples) < length:
            length = max(1, len(samples) // 2)
        voice, start = self._slice(samples, length, rng, rule.grid)
        voice = rule.whole(voice)
        batch.conditioning[row] = fill(voice, rule.max_samples, rule.padding)
        if not is_other:
            batch.conditioning_span[row] = shift + start, shift + start + len(voice)
        if not self.prepared:
            return None
        known = known_frames(start, len(voice), rule)
        np.take(prepared.conditioning_mel, known, axis=0, mode="clip", out=batch.conditioning_mel[row])
        return np.flatnonzero(known < 0)


def wave_dataset(
    loader: Callable[[int], WaveBatch], start: int = 0, stop: int | None = None, num_workers: int = 8
) -> tf.data.Dataset:
    """Batches `start` to `stop` of `loader` (without end for None), read in parallel, in order."""

    def load(position):
        try:
            return tuple(loader(position))
        except (AudioError, OSError) as error:
            loader.failure = error
            raise

    def read(position):
        # Stateless, as it follows from the position: where determinism is asked for, others are not read in parallel.
        dtypes = [tf.as_dtype(dtype) for dtype in WAVE_DTYPES]
        batch = WaveBatch(*tf.numpy_function(load, [position], dtypes, stateful=False))
        for value, rank in zip(batch, WAVE_RANKS):
            value.set_shape([None] * rank)
        return batch

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.map_fusion = True
    options.experimental_optimization.map_parallelization = True
    options.autotune.enabled = True
    last = np.iinfo(np.int64).max if stop is None else stop
    return tf.data.Dataset.range(start, last).map(read, num_parallel_calls=num_workers).with_options(options)


def stream_batches(
    loader: BatchLoader, device: str, start: int, stop: int | None, num_workers: int, buffer_size: int
) -> Iterator[WaveBatch]:
    """Iterates over `wave_dataset` on `device`; what `loader` raised comes as it was, not as TensorFlow's text."""
    batches = iter(prefetch_to(wave_dataset(loader, start, stop, num_workers), device, buffer_size))
    try:
        yield from batches
    except tf.errors.OpError as error:
        if loader.failure is None:
            raise
        raise loader.failure from error
    finally:
        # Taking an iterator apart waits for its thread that tunes buffers, which may sleep for up to a minute.
        last_reference = [batches]
        del batches
        if not sys.is_finalizing():  # when Python ends, a new thread would never get to run, and be waited for
            AbandonedThread(last_reference.clear, "myxtts-ended-reader").start()


def prefetch_to(dataset: tf.data.Dataset, device: str, buffer_size: int) -> tf.data.Dataset:
    """Ends a dataset in a buffer on `device`. Its elements live there, so nothing may be mapped after it."""
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, buffer_size))

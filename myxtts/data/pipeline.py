"""From a list of clips to a tf.data stream of `WaveBatch`es on the data device."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError, load_with_rate
from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.data.batch import TARGET_GRID, WAVE_DTYPES, WAVE_RANKS, WaveBatch, check_wave_batch, target_width
from myxtts.data.buckets import BatchOrder, SequentialOrder
from myxtts.data.shards import PreparedClips
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
        self._samples: dict[tuple[str, int], tuple[np.ndarray, int, np.ndarray | None]] = {}
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

    def load_with_codes(self, path: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Samples of `path` at 22 050 Hz, and its codes, `(C,)` int32, where it is prepared."""
        samples, _, codes = self._entry(path, MODEL_SAMPLE_RATE)
        return samples.astype(np.float32) * (1.0 / _FULL_SCALE), codes

    def _entry(self, path, sample_rate):
        key = path, sample_rate
        kept = self._samples.get(key)
        if kept is None:
            if self._prepared is not None and sample_rate == MODEL_SAMPLE_RATE and path in self._prepared:
                samples, codes = self._prepared.read(path)
                kept = samples, sample_rate, codes
            else:
                samples, source_rate = load_with_rate(path, sample_rate)
                kept = to_int16(samples), source_rate, None
            with self._lock:
                if key not in self._samples and kept[0].nbytes <= self._room:
                    self._room -= kept[0].nbytes
                    self._samples[key] = kept
        return kept


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples as they are kept and trained on; what lies beyond [-1, 1] is clipped."""
    return np.round(np.clip(samples, -1.0, 1.0) * _FULL_SCALE).astype(np.int16)


@dataclass(frozen=True)
class ConditioningRule:
    """How the clip that a voice is taken from is chosen, and filled up to `max_samples`."""

    min_samples: int
    max_samples: int
    source: str
    """`speaker` or `clip`, see `DataConfig.conditioning_source`."""
    padding: str
    """`repeat` or `zeros`."""


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
    codes: bool = False
    """Whether batches bring the codes of the clips, which are all prepared, whole and not put off."""
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
        voice_samples = self.conditioning.max_samples if self.conditioning else 0
        voice, target = (voice_samples,), (target_width(ordered.num_samples) * self.targets,)
        num_codes = (ordered.num_samples // CODE_STRIDE_SAMPLES * self.codes,)
        widths = (), (ordered.num_samples,), (), (ordered.num_tokens,), (), voice, (2,), target, (), (), (), num_codes
        batch = WaveBatch(*(np.zeros((len(indices), *w), dtype) for w, dtype in zip(widths, WAVE_DTYPES)))
        batch.index[:] = indices
        for row, index in enumerate(indices):
            clip = self.clips[index]
            # A generator for each row: what is drawn for one depends on no other, which another worker reads.
            rng = np.random.default_rng([self.seed, ordered.epoch, ordered.offset, 1, first + row])
            (samples, codes), start = self.cache.load_with_codes(clip.wav_path), 0
            if self.codes:
                codes = codes[: num_codes[0]]
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
                voice, batch.conditioning_span[row] = self._conditioning(index, samples, shift, rng)
                batch.conditioning[row] = fill(voice, self.conditioning.max_samples, self.conditioning.padding)
        return check_wave_batch(batch)

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

    def _conditioning(self, index, samples, shift, rng):
        """The sound that the voice is taken from, and where in the row it lies: 0, 0 where it is of another clip."""
        rule = self.conditioning
        length = int(rng.integers(rule.min_samples, rule.max_samples + 1)) if self.training else rule.max_samples
        clip = self.clips[index]
        same_voice = self._by_speaker[clip.speaker, clip.language]
        if rule.source == "speaker" and len(same_voice) > 1:
            steps = int(rng.integers(1, len(same_voice))) if self.training else 1
            other = self.clips[same_voice[(same_voice.index(index) + steps) % len(same_voice)]]
            return self._slice(self.cache.load(other.wav_path), length, rng)[0], (0, 0)
        if len(samples) < length:
            length = max(1, len(samples) // 2)
        voice, start = self._slice(samples, length, rng)
        return voice, (shift + start, shift + start + len(voice))


def fill(samples: np.ndarray, length: int, padding: str) -> np.ndarray:
    """Brings `samples` to `length` by repeating them or by zeros at the end."""
    return np.resize(samples, length) if padding == "repeat" else np.pad(samples, (0, length - len(samples)))


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


def conditioning_seconds(config: DataConfig, clips: Sequence[Clip]) -> tuple[float, float]:
    """`DataConfig.conditioning_seconds`, shortened where the clips are shorter and would only be repeated."""
    # A corpus of half-second clips would otherwise spend most of the conditioning encoder's work on repetitions.
    if config.conditioning_padding != "repeat":
        return config.conditioning_seconds
    longest = np.percentile([clip.num_samples for clip in clips], 95) / MODEL_SAMPLE_RATE
    low, high = config.conditioning_seconds
    high = max(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, min(high, float(longest)))
    return min(low, high), high

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
from myxtts.data.conditioning import ConditioningRule, fill, known_frames, windows
from myxtts.data.shards import PreparedClips, PreparedSound
from myxtts.devices.process_end import AbandonedThread

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
        return to_float(samples), source_rate

    def sound(self, path: str) -> PreparedSound:
        """Samples and conditioning mel of a prepared recording, as they are kept."""
        return self._entry(path, MODEL_SAMPLE_RATE)[2]

    def codes(self, path: str) -> np.ndarray:
        """Codes of a prepared recording, `(C,)` int32."""
        key = path, 0
        kept = self._samples.get(key)
        return self._keep(key, (self._prepared.read_codes(path), 0, None))[0] if kept is None else kept[0]

    def _entry(self, path, sample_rate):
        key = path, sample_rate
        kept = self._samples.get(key)
        if kept is not None:
            return kept
        if self._prepared is not None and sample_rate == MODEL_SAMPLE_RATE and path in self._prepared:
            sound = self._prepared.read_sound(path)
            return self._keep(key, (sound.samples, sample_rate, sound))
        samples, source_rate = load_with_rate(path, sample_rate)
        return self._keep(key, (to_int16(samples), source_rate, None))

    def _keep(self, key, entry):
        array, _, sound = entry
        size = array.nbytes + (sound.conditioning_mel.nbytes if sound else 0)
        with self._lock:
            if key not in self._samples and size <= self._room:
                self._room -= size
                self._samples[key] = entry
        return entry


def to_float(samples: np.ndarray) -> np.ndarray:
    """Samples that are kept, as they are trained on: float32 in [-1, 1]."""
    return samples.astype(np.float32) * (1.0 / _FULL_SCALE)


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
        voices = []
        for row, index in enumerate(indices):
            clip = self.clips[index]
            # A generator for each row: what is drawn for one depends on no other, which another worker reads.
            rng = np.random.default_rng([self.seed, ordered.epoch, ordered.offset, 1, first + row])
            batch.text[row, : len(clip.tokens)] = clip.tokens
            batch.text_lengths[row] = len(clip.tokens)
            if self.speakers is not None:
                batch.speaker[row] = self._speaker_index.get(clip.speaker, -1)
            if self.prepared:
                voices.append(self._fill_prepared(batch, row, clip, rng))
            else:
                self._fill_recorded(batch, row, clip, rng)
        return check_wave_batch(self._with_windows(batch, voices) if self.prepared else batch)

    def _fill_recorded(self, batch, row, clip, rng):
        """Puts sound into a row: the clip's, and that which the voice is taken from."""
        samples, start, room = self.cache.load(clip.wav_path), 0, batch.wav.shape[1]
        if self.crop_samples is not None:
            samples, start = self._slice(samples, self.crop_samples, rng, TARGET_GRID[0] if self.targets else 1)
        samples = samples[:room]
        shift = int(rng.integers(min(self.max_shift, room - len(samples)) + 1)) if self.training else 0
        if self.targets:
            shift -= shift % TARGET_GRID[0]
            self._fill_target(batch, row, clip, start, len(samples), shift)
        batch.wav[row, shift : shift + len(samples)] = samples
        batch.wav_lengths[row] = shift + len(samples)
        if (rule := self.conditioning) is None:
            return
        length, other = self._voice(batch.index[row], rng)
        if other is not None:
            samples = self.cache.load(other.wav_path)
        start, length = self._stretch(len(samples), length, rng, other is None)
        batch.conditioning[row] = fill(samples[start : start + length], rule.max_samples, rule.padding)
        if other is None:
            batch.conditioning_span[row] = shift + start, shift + start + length

    def _fill_prepared(self, batch, row, clip, rng):
        """Puts codes and most of a conditioning mel into a row; returns what the frames that lack are made of."""
        codes = self.cache.codes(clip.wav_path)[: batch.codes.shape[1]]
        batch.codes[row, : len(codes)] = codes
        num_samples = min(clip.num_samples, batch.codes.shape[1] * CODE_STRIDE_SAMPLES)
        batch.wav_lengths[row] = num_samples
        length, other = self._voice(batch.index[row], rng)
        sound = self.cache.sound((other or clip).wav_path)
        start, length = self._stretch(len(sound.samples) if other else num_samples, length, rng, other is None)
        if other is None:
            batch.conditioning_span[row] = start, start + length
        known = known_frames(start, length, self.conditioning)
        np.take(sound.conditioning_mel, known, axis=0, mode="clip", out=batch.conditioning_mel[row])
        return sound.samples, start, length, np.flatnonzero(known < 0)

    def _with_windows(self, batch, voices):
        """A prepared batch with the numbers of frames that its conditioning mels lack, and with their samples."""
        most, rows = max(len(missing) for *_, missing in voices), len(voices)
        frames = np.array([np.pad(missing, (0, most - len(missing)), "edge") for *_, missing in voices], np.int32)
        samples = [windows(*voice[:3], self.conditioning, row) for voice, row in zip(voices, frames)]
        return batch._replace(conditioning=to_float(np.reshape(samples, (rows, -1))), missing_frames=frames)

    def _empty(self, rows, ordered):
        """A batch of zeros; of a prepared one, which needs no sound, without samples."""
        wav, voice, frames, codes = ordered.num_samples, 0, 0, 0
        if self.conditioning is not None:
            voice = self.conditioning.max_samples
        if self.prepared:
            wav, voice, frames, codes = 0, 0, self.conditioning.num_frames, wav // CODE_STRIDE_SAMPLES
        target = target_width(ordered.num_samples) * self.targets
        widths = (), (wav,), (), (ordered.num_tokens,), (), (voice,), (2,), (target,), (), (), ()
        widths = *widths, (codes,), (frames, NUM_MELS), (0,)
        return WaveBatch(*(np.zeros((rows, *width), dtype) for width, dtype in zip(widths, WAVE_DTYPES)))

    def _fill_target(self, batch, row, clip, start, length, shift):
        """Puts what `wav` shows, `length` samples from `start` on, put off by `shift`, into the row at 24 000 Hz."""
        samples, batch.source_rate[row] = self.cache.load_with_rate(clip.wav_path, DECODER_SAMPLE_RATE)
        start, shift = (place // TARGET_GRID[0] * TARGET_GRID[1] for place in (start, shift))
        room = min(-(-length * TARGET_GRID[1] // TARGET_GRID[0]), batch.target_wav.shape[1] - shift)
        samples = samples[start : start + room]
        batch.target_wav[row, shift : shift + len(samples)] = samples
        batch.target_lengths[row] = shift + len(samples)

    def _slice(self, samples, length, rng, grid):
        start = self._start(len(samples), length, rng, grid)
        return samples[start : start + length], start

    def _start(self, num_samples, length, rng, grid):
        start = int(rng.integers(num_samples - length + 1)) if self.training and num_samples > length else 0
        return start - start % grid

    def _voice(self, index, rng):
        """How many samples the voice is taken from, and of which other clip; None for the clip itself."""
        rule, clip = self.conditioning, self.clips[index]
        length = int(rng.integers(rule.min_samples, rule.max_samples + 1)) if self.training else rule.max_samples
        same_voice = self._by_speaker[clip.speaker, clip.language]
        if rule.source != "speaker" or len(same_voice) == 1:
            return length, None
        steps = int(rng.integers(1, len(same_voice))) if self.training else 1
        return length, self.clips[same_voice[(same_voice.index(index) + steps) % len(same_voice)]]

    def _stretch(self, num_samples, length, rng, of_itself):
        """First sample and number of samples of so many that a voice is taken from."""
        if of_itself and num_samples < length:
            length = max(1, num_samples // 2)
        start = self._start(num_samples, length, rng, self.conditioning.grid)
        return start, self.conditioning.whole(min(length, num_samples))


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

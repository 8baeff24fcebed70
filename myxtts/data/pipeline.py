"""From a list of clips to a tf.data stream of `WaveBatch`es on the data device."""

import threading
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError, load_samples
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, WaveBatch, check_wave_batch


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
    """Decoded recordings kept as 16-bit samples until a memory budget is full."""

    def __init__(self, budget_mb):
        self._room = budget_mb * 2**20
        self._samples = {}
        self._lock = threading.Lock()

    def load(self, path):
        """Samples of `path`, `(S,)` float32 at 22 050 Hz."""
        kept = self._samples.get(path)
        if kept is not None:
            return kept.astype(np.float32) * (1.0 / 32767.0)
        samples = load_samples(path, MODEL_SAMPLE_RATE)
        packed = np.round(np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int16)
        with self._lock:
            if path not in self._samples and packed.nbytes <= self._room:
                self._room -= packed.nbytes
                self._samples[path] = packed
        # The cached form is returned the first time too, so that a run's numbers do not depend on the cache's size.
        return packed.astype(np.float32) * (1.0 / 32767.0)


@dataclass(frozen=True)
class ConditioningRule:
    """How the clip that a voice is taken from is chosen."""

    min_samples: int
    max_samples: int
    """Every conditioning clip is filled up to this length."""
    source: str
    """`speaker` or `clip`, see `DataConfig.conditioning_source`."""
    padding: str
    """`repeat` or `zeros`."""


class BatchLoader:
    """Reads the batch at a position. A pure function of position: every choice is seeded by (seed, epoch, offset).

    Args:
        clips: The set.
        order: `BatchOrder` or `SequentialOrder`.
        cache: `SampleCache`.
        seed: Of slices, shifts and conditioning clips.
        conditioning: `ConditioningRule`, or None for none (the DVAE stage).
        crop_samples: Longest slice of a clip, or None for whole clips.
        max_shift: Most samples of silence put before a clip, at random.
        training: False takes fixed choices: no shift, first slices, the same conditioning clip every time.
    """

    def __init__(self, clips, order, cache, seed, conditioning=None, crop_samples=None, max_shift=0, training=True):
        self.clips = clips
        self.order = order
        self.cache = cache
        self.seed = seed
        self.conditioning = conditioning
        self.crop_samples = crop_samples
        self.max_shift = max_shift if training else 0
        self.training = training
        self.failure = None
        """What a reading thread could not read; see `own_errors`."""
        self._by_speaker = {}
        for index, clip in enumerate(clips):
            self._by_speaker.setdefault((clip.speaker, clip.language), []).append(index)

    def __call__(self, position):
        planned = self.order.batch(position)
        rng = np.random.default_rng([self.seed, planned.epoch, planned.offset, 1])
        rows = len(planned.indices)
        wav = np.zeros((rows, planned.num_samples), np.float32)
        wav_lengths = np.zeros(rows, np.int32)
        text = np.zeros((rows, planned.num_tokens), np.int32)
        text_lengths = np.zeros(rows, np.int32)
        conditioning = np.zeros((rows, self.conditioning.max_samples if self.conditioning else 0), np.float32)
        span = np.zeros((rows, 2), np.int32)
        for row, index in enumerate(planned.indices):
            clip = self.clips[index]
            samples = self.cache.load(clip.wav_path)
            if self.crop_samples is not None:
                samples = self._slice(samples, self.crop_samples, rng)[0]
            samples = samples[: planned.num_samples]
            shift = int(rng.integers(min(self.max_shift, planned.num_samples - len(samples)) + 1))
            wav[row, shift : shift + len(samples)] = samples
            wav_lengths[row] = shift + len(samples)
            text[row, : len(clip.tokens)] = clip.tokens
            text_lengths[row] = len(clip.tokens)
            if self.conditioning is not None:
                conditioning[row], span[row] = self._conditioning(index, samples, shift, rng)
        return check_wave_batch(
            WaveBatch(planned.indices.astype(np.int32), wav, wav_lengths, text, text_lengths, conditioning, span)
        )

    def _slice(self, samples, length, rng):
        start = int(rng.integers(len(samples) - length + 1)) if self.training and len(samples) > length else 0
        return samples[start : start + length], start

    def _conditioning(self, index, samples, shift, rng):
        rule = self.conditioning
        length = int(rng.integers(rule.min_samples, rule.max_samples + 1)) if self.training else rule.max_samples
        other = self._other_clip(index, rng) if rule.source == "speaker" else None
        if other is not None:
            voice, _ = self._slice(self.cache.load(self.clips[other].wav_path), length, rng)
            return fill(voice, rule.max_samples, rule.padding), (0, 0)
        if len(samples) < length:
            length = max(1, len(samples) // 2)
        voice, start = self._slice(samples, length, rng)
        return fill(voice, rule.max_samples, rule.padding), (shift + start, shift + start + len(voice))

    def _other_clip(self, index, rng):
        """Another clip of the same speaker in the same language, or None when there is none."""
        clip = self.clips[index]
        same = self._by_speaker[clip.speaker, clip.language]
        if len(same) < 2:
            return None
        place = same.index(index)
        steps = int(rng.integers(1, len(same))) if self.training else 1
        return same[(place + steps) % len(same)]


def fill(samples, length, padding):
    """Brings `samples` to `length` by repeating them or by zeros at the end."""
    if padding == "repeat":
        return np.resize(samples, length)
    return np.pad(samples, (0, length - len(samples)))


def wave_dataset(loader, start=0, stop=None, num_workers=8):
    """Batches `start` to `stop` of `loader` (without end for None), read in parallel, in order."""

    def load(position):
        try:
            return tuple(loader(position))
        except (AudioError, OSError) as error:
            loader.failure = error
            raise

    def read(position):
        values = tf.numpy_function(load, [position], [tf.as_dtype(dtype) for dtype in WAVE_DTYPES])
        batch = WaveBatch(*values)
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


def own_errors(dataset, loader):
    """Iterates over a dataset made by `wave_dataset`, and raises what `loader` raised where TensorFlow has its text alone.

    A recording that vanishes in the middle of a run thus ends it as it would have before the run.
    """
    try:
        yield from dataset
    except tf.errors.OpError as error:
        if loader.failure is None:
            raise
        raise loader.failure from error


def prefetch_to(dataset, device, buffer_size):
    """Ends a dataset in a buffer on `device`. Its elements live there, so nothing may be mapped after it."""
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, buffer_size))


def conditioning_seconds(config, clips):
    """`DataConfig.conditioning_seconds`, shortened where the clips are shorter and would only be repeated.

    A corpus of half-second clips would otherwise spend most of the conditioning encoder's work on repetitions.
    """
    if config.conditioning_padding != "repeat":
        return config.conditioning_seconds
    longest = np.percentile([clip.num_samples for clip in clips], 95) / MODEL_SAMPLE_RATE
    low, high = config.conditioning_seconds
    high = max(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, min(high, float(longest)))
    return min(low, high), high

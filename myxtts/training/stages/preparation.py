"""Preparation of a stage's batches from waveforms, on the data device."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.augment import Change, change_speed, draw_change, limit_speed
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, WaveBatch
from myxtts.devices.machine import runs_on_cpu
from myxtts.distributed.workers import current_workers
from myxtts.models.xtts import XTTS


class Preparation(ABC):
    """Turns a `WaveBatch` into a stage's batch; each stage has its own `make_batch`.

    Args:
        model: Mel scale and frozen parts, on the data device.
        device: Name of the data device.
        augment: Whether to change voices at random (`audio/augment.py`), a clip and its conditioning clip alike.
        seed: Seed of the augmentation.
    """

    def __init__(self, model: XTTS, device: str, augment: bool, seed: int):
        self.model, self.device = model, device
        self.augment, self.seed, workers = augment, seed, current_workers()
        self.share = (workers.index, workers.count)
        """Index and number of the parts that the workers split each batch into; see `augment.draw_rows`."""
        self.mel = MelSpectrogram(DVAE_MEL)
        # Unknown sizes: one trace serves all shapes.
        wave = WaveBatch(*(tf.TensorSpec([None] * rank, dtype) for rank, dtype in zip(WAVE_RANKS, WAVE_DTYPES)))
        self._prepare = tf.function(self.make_batch, input_signature=[wave, tf.TensorSpec((), tf.int32)])

    def __call__(self, batch: WaveBatch, position: int | None = None) -> NamedTuple:
        """Prepares a batch from any device. Its training position seeds the augmentation; None turns that off."""
        seed_position = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, seed_position)

    @abstractmethod
    def make_batch(self, batch: WaveBatch, position: tf.Tensor) -> NamedTuple:
        """Returns the stage's batch; `position` is scalar int32, below 0 for no augmentation. Traced once."""

    def change_voice(self, batch: WaveBatch, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Change]:
        """Returns waveforms and lengths with the voices changed, and the change."""
        size = tf.shape(batch.wav)[0], self.mel.spec.num_mels
        if not self.augment:
            unchanged = Change(tf.ones(size[:1]), tf.zeros((size[0], 1, size[1])))
            return batch.wav, batch.wav_lengths, unchanged
        change = draw_change(*size, self.seed, position, position >= 0, self.share)
        change = change._replace(speed=limit_speed(change.speed, batch.wav_lengths, tf.shape(batch.wav)[1]))
        return *change_speed(batch.wav, batch.wav_lengths, change.speed), change

    def log_mel(self, extractor: MelSpectrogram, wav: tf.Tensor, change: Change) -> tf.Tensor:
        """Returns the normalized log-mel of `wav`, `(B, T, num_mels)`, with the gain and equalization of `change`."""
        log_mel = extractor(wav, in_chunks=runs_on_cpu(self.device))
        floor = math.log(extractor.spec.log_floor)
        # Silence stays silence at any level.
        changed = tf.where(log_mel > floor + 1e-3, tf.maximum(log_mel + change.offset, floor), log_mel)
        return self.model.normalize_mel(changed if self.augment else log_mel)

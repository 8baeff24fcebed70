"""Waveforms -> what a stage trains on. Everything numeric before the trained model, traced once, on the data device."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.augment import Change, change_speed, draw_change, limit_speed
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, WaveBatch
from myxtts.devices.kinds import runs_on_cpu
from myxtts.distributed.workers import current_workers
from myxtts.models.xtts import XTTS


class Preparation(ABC):
    """Makes a stage's batches from `WaveBatch`es; each stage has its own `make_batch`.

    `model` is on the data device, `device`: its mel scale, and frozen parts that a stage's batches are made with.
    `augment` changes voices at random (`audio/augment.py`), a clip's as its conditioning clip's.
    """

    def __init__(self, model: XTTS, device: str, augment: bool, seed: int):
        self.model, self.device = model, device
        self.augment, self.seed, workers = augment, seed, current_workers()
        self.share = (workers.index, workers.count)
        """Which of how many equal parts of each training batch it is given; see `augment.draw_rows`."""
        self.mel = MelSpectrogram(DVAE_MEL)
        # Of any sizes, so that it is traced once for all of them.
        wave = WaveBatch(*(tf.TensorSpec([None] * rank, dtype) for rank, dtype in zip(WAVE_RANKS, WAVE_DTYPES)))
        self._prepare = tf.function(self.make_batch, input_signature=[wave, tf.TensorSpec((), tf.int32)])

    def __call__(self, batch: WaveBatch, position: int | None = None) -> NamedTuple:
        """Prepares a batch on any device; its position in training seeds the augmentation, None leaves that out."""
        seed_position = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, seed_position)

    @abstractmethod
    def make_batch(self, batch: WaveBatch, position: tf.Tensor) -> NamedTuple:
        """The stage's batch; `position` is scalar int32, below 0 for no augmentation. Traced once."""

    def change_voice(self, batch: WaveBatch, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Change]:
        """The batch's waveforms and lengths after a change of voice, and the change itself."""
        size = tf.shape(batch.wav)[0], self.mel.spec.num_mels
        if not self.augment:
            unchanged = Change(tf.ones(size[:1]), tf.zeros((size[0], 1, size[1])))
            return batch.wav, batch.wav_lengths, unchanged
        change = draw_change(*size, self.seed, position, position >= 0, self.share)
        change = change._replace(speed=limit_speed(change.speed, batch.wav_lengths, tf.shape(batch.wav)[1]))
        return *change_speed(batch.wav, batch.wav_lengths, change.speed), change

    def log_mel(self, extractor: MelSpectrogram, wav: tf.Tensor, change: Change) -> tf.Tensor:
        """Normalized log-mel of `wav`, `(B, T, num_mels)`, with the level and equalization of the change."""
        log_mel = extractor(wav, in_chunks=runs_on_cpu(self.device))
        floor = math.log(extractor.spec.log_floor)
        # Silence stays silence at any level.
        changed = tf.where(log_mel > floor + 1e-3, tf.maximum(log_mel + change.offset, floor), log_mel)
        return self.model.normalize_mel(changed if self.augment else log_mel)

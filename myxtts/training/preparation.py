"""Waveforms -> what a stage trains on. Everything numeric before the trained model, traced once, on the data device."""

import numpy as np
import tensorflow as tf

from myxtts.audio.augment import change_speed, change_speed_of_loop, draw_change, limit_speed
from myxtts.audio.mel import CONDITIONING_MEL, DVAE_MEL, MelSpectrogram
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, DVAEBatch, GPTBatch, WaveBatch
from myxtts.devices.kinds import runs_on_cpu
from myxtts.models.layers.convolution import set_fewer_products

LOG_FLOOR = -11.512925
"""ln(1e-5), the smallest log-mel."""
SMALLEST_MEL_SCALE = 1.0


class Preparation:
    """Makes `DVAEBatch`es or `GPTBatch`es from `WaveBatch`es.

    Args:
        stage: `dvae` or `gpt`.
        model: `XTTS` with the `dvae` part, on the data device: its mel scale, and for the GPT its frozen codes.
        device: The data device.
        augment: Random changes of voice (`audio/augment.py`), the same for a clip and its conditioning clip.
        seed: Of the augmentation.
    """

    def __init__(self, stage, model, device, augment, seed):
        self.stage = stage
        self.model = model
        self.device = device
        self.augment = augment
        self.seed = seed
        self._mel = MelSpectrogram(DVAE_MEL)
        self._conditioning_mel = MelSpectrogram(CONDITIONING_MEL)
        if stage == "gpt":  # codes are frozen
            for block in model.dvae.encoder_blocks:
                set_fewer_products(block, runs_on_cpu(device))
        self._prepare = tf.function(
            self._dvae_batch if stage == "dvae" else self._gpt_batch,
            input_signature=[wave_signature(), tf.TensorSpec((), tf.int32)],
        )

    def __call__(self, batch, position=None):
        """Prepares one batch.

        Args:
            batch: `WaveBatch` on any device.
            position: Of the batch in training, which seeds the augmentation; None leaves it out.
        """
        step = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, step)

    def _change(self, batch, step):
        """The batch's waveforms and lengths after a change of voice, and the change itself."""
        on = tf.logical_and(self.augment, step >= 0)
        change = draw_change(tf.shape(batch.wav)[0], self._mel.spec.num_mels, self.seed, step, on)
        change = change._replace(speed=limit_speed(change.speed, batch.wav_lengths, tf.shape(batch.wav)[1]))
        if not self.augment:
            return batch.wav, batch.wav_lengths, change
        wav, lengths = change_speed(batch.wav, batch.wav_lengths, change.speed)
        return wav, lengths, change

    def _log_mel(self, extractor, wav, change):
        log_mel = extractor(wav, in_chunks=runs_on_cpu(self.device))
        # Silence stays silence at any level.
        changed = tf.where(log_mel > LOG_FLOOR + 1e-3, tf.maximum(log_mel + change.offset, LOG_FLOOR), log_mel)
        return self.model.normalize_mel(changed if self.augment else log_mel)

    def _dvae_batch(self, batch, step):
        wav, wav_lengths, change = self._change(batch, step)
        mel = self._log_mel(self._mel, wav, change)
        frames = tf.shape(mel)[1] // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE
        hop = self._mel.spec.hop_length
        return DVAEBatch(batch.index, mel[:, :frames], tf.minimum(-(-wav_lengths // hop), frames))

    def _gpt_batch(self, batch, step):
        wav, wav_lengths, change = self._change(batch, step)
        codes = self.model.dvae.encode(self._log_mel(self._mel, wav, change))
        # A waveform of exactly n strides gives one code more than it has strides.
        codes = codes[:, : tf.shape(wav)[1] // CODE_STRIDE_SAMPLES]
        conditioning = change_speed_of_loop(batch.conditioning, change.speed) if self.augment else batch.conditioning
        span = tf.cast(batch.conditioning_span, tf.float32) / change.speed[:, None] / CODE_STRIDE_SAMPLES
        span = tf.cast(tf.stack([tf.floor(span[:, 0]), tf.math.ceil(span[:, 1])], axis=1), tf.int32)
        return GPTBatch(
            batch.index,
            batch.text,
            batch.text_lengths,
            self._log_mel(self._conditioning_mel, conditioning, change),
            codes,
            -(-wav_lengths // CODE_STRIDE_SAMPLES),
            span,
        )


def wave_signature():
    """`WaveBatch` of any sizes, so that a function is traced once for all of them."""
    return WaveBatch(*(tf.TensorSpec([None] * rank, dtype) for rank, dtype in zip(WAVE_RANKS, WAVE_DTYPES)))


def measure_mel_stats(loader, num_batches):
    """Scale and mean of each mel band over the first batches.

    The scale plays the part of the released `mel_stats.pth`, which divides the log-mel of both front-ends. A band
    without sound (above the Nyquist rate of the recordings) must not have its floor noise blown up.

    Returns:
        Standard deviation of the log-mel, `(num_mels,)` float32 and at least `SMALLEST_MEL_SCALE`; and the mean of the
        normalised log-mel, which the DVAE's output starts from.
    """
    extractor = MelSpectrogram(DVAE_MEL)
    frames = []
    for position in range(num_batches):
        batch = loader(position)
        mel = extractor(tf.constant(batch.wav))
        mask = tf.sequence_mask(batch.wav_lengths // DVAE_MEL.hop_length, tf.shape(mel)[1])
        frames.append(tf.boolean_mask(mel, mask).numpy())
    frames = np.concatenate(frames)
    scale = np.maximum(frames.std(axis=0), SMALLEST_MEL_SCALE).astype(np.float32)
    return scale, (frames.mean(axis=0) / scale).astype(np.float32)

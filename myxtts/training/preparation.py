"""Waveforms -> what a stage trains on. Everything numeric before the trained model, traced once, on the data device."""

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import CONDITIONING_MEL, DVAE_MEL, MelSpectrogram
from myxtts.config.config import CODE_STRIDE_SAMPLES
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, DVAEBatch, GPTBatch, WaveBatch
from myxtts.models.dvae import MEL_FRAMES_PER_CODE

GAIN_NEPERS = 0.7
"""Random gain of training clips: up to 6 dB of power either way, as an offset of the log-mel."""
TILT_NEPERS = 0.5
"""Random spectral tilt: up to 2 dB of power either way at the ends of the mel scale."""
LOG_FLOOR = -11.512925
"""ln(1e-5), the smallest log-mel."""
SMALLEST_MEL_SCALE = 1.0


class Preparation:
    """Makes `DVAEBatch`es or `GPTBatch`es from `WaveBatch`es.

    Args:
        stage: `dvae` or `gpt`.
        model: `XTTS` with the `dvae` part, on the data device: its mel scale, and for the GPT its frozen codes.
        device: The data device.
        augment: Random gain and tilt, the same for a clip and its conditioning clip.
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
        self._prepare = tf.function(self._dvae_batch if stage == "dvae" else self._gpt_batch,
                                    input_signature=[wave_signature(), tf.TensorSpec((), tf.int32)])

    def __call__(self, batch, position=None):
        """Prepares one batch.

        Args:
            batch: `WaveBatch` on any device.
            position: Of the batch in training, which seeds the augmentation; None leaves it out.
        """
        step = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, step)

    def _augmentation(self, rows, step):
        """Offsets `(B, 1, num_mels)` of the log-mel; zero without augmentation."""
        bands = tf.linspace(-1.0, 1.0, self._mel.spec.num_mels)
        gain = tf.random.stateless_uniform((rows, 1, 1), [self.seed, 2 * step], -GAIN_NEPERS, GAIN_NEPERS)
        tilt = tf.random.stateless_uniform((rows, 1, 1), [self.seed, 2 * step + 1], -TILT_NEPERS, TILT_NEPERS)
        on = tf.cast(step >= 0, tf.float32) if self.augment else 0.0
        return on * (gain + tilt * bands)

    def _log_mel(self, extractor, wav, offset):
        return self.model.normalize_mel(tf.maximum(extractor(wav) + offset, LOG_FLOOR))

    def _dvae_batch(self, batch, step):
        offset = self._augmentation(tf.shape(batch.wav)[0], step)
        mel = self._log_mel(self._mel, batch.wav, offset)
        frames = tf.shape(mel)[1] // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE
        hop = self._mel.spec.hop_length
        lengths = tf.minimum(-(-batch.wav_lengths // hop), frames)
        return DVAEBatch(batch.index, mel[:, :frames], lengths)

    def _gpt_batch(self, batch, step):
        offset = self._augmentation(tf.shape(batch.wav)[0], step)
        codes = self.model.dvae.encode(self._log_mel(self._mel, batch.wav, offset))
        # A waveform of exactly n strides gives one code more than it has strides.
        codes = codes[:, :tf.shape(batch.wav)[1] // CODE_STRIDE_SAMPLES]
        span = tf.stack([batch.conditioning_span[:, 0] // CODE_STRIDE_SAMPLES,
                         -(-batch.conditioning_span[:, 1] // CODE_STRIDE_SAMPLES)], axis=1)
        return GPTBatch(batch.index, batch.text, batch.text_lengths,
                        self._log_mel(self._conditioning_mel, batch.conditioning, offset), codes,
                        -(-batch.wav_lengths // CODE_STRIDE_SAMPLES), span)


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

"""The DVAE stage trains the autoencoder that converts mel spectrograms to audio codes and back."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from scipy.special import entr

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.data.batch import DVAEBatch, WaveBatch
from myxtts.devices.machine import short_name
from myxtts.distributed.workers import current_workers
from myxtts.models.xtts import XTTS
from myxtts.training.stages.base import Objective, Preparation, Stage, masked_squared_error

REVIVE_EVERY_STEPS = 50
"""Interval, in steps, at which dead codes are replaced by encoder outputs of the current batch."""
SMALLEST_MEL_SCALE = 1.0
"""Lower limit of a mel band's scale. A smaller scale would amplify noise above the recordings' Nyquist frequency."""


class DVAEStage(Stage):
    """Trains the DVAE to reconstruct mel spectrograms through a codebook, whose codes the GPT predicts."""

    name = part = "dvae"
    _strategy: tf.distribute.Strategy = tf.distribute.get_strategy()

    def measure(self, dataset):
        """Sets `mel_stats` and the output bias to statistics of the training clips, unless `mel_stats` was loaded."""
        if np.all(self.model.mel_stats.numpy() == 1):
            measured = lambda: [stats.tolist() for stats in measure_mel_stats(dataset.train_loader(self.name), 16)]
            scale, mean = current_workers().ask(measured)  # other workers might round differently
            self.model.mel_stats.assign(scale)
            self.front.mel_stats.assign(scale)
            self.model.dvae.decoder_output.bias.assign(mean)

    def updates(self):
        self._strategy = tf.distribute.get_strategy()
        return [DVAEObjective(self.model)]

    def make_preparation(self, device):
        shares_device = short_name(self.model.mel_stats.value.device) == device
        with tf.device(device):
            # Holds the mel scale on the data device.
            self.front = self.model if shares_device else XTTS(self.config.model, parts=())
        self.front.mel_stats.assign(self.model.mel_stats.numpy())
        return DVAEPreparation(self.front, device, self.config.data.augment, self.config.training.seed)

    def resynthesize(self, batch):
        return self.model.denormalize_mel(self.model.dvae(batch.mel)["reconstruction"])

    def prepare_step(self, batch, step, seed):
        """Replaces dead codes with encoder outputs for `batch`, once every `REVIVE_EVERY_STEPS` steps."""
        if step % REVIVE_EVERY_STEPS == 0:
            arguments = batch, tf.constant(seed, tf.int32)
            # Calling the function itself would warn about frequent retracing.
            self._revive.get_concrete_function(*arguments)(*arguments)

    @tf.function(autograph=False)  # traced for each shape: see `TrainStep.trace_for`
    def _revive(self, batch, seed):
        self._strategy.run(self._revive_in_replica, (batch, seed))

    def _revive_in_replica(self, batch, seed):
        quantizer = self.model.dvae.quantizer
        vectors = tf.cast(self.model.dvae.mel_to_vectors(batch.mel), tf.float32)
        mask = tf.sequence_mask(-(-batch.mel_lengths // MEL_FRAMES_PER_CODE), tf.shape(vectors)[1])
        vectors = tf.boolean_mask(vectors, mask)
        candidates = sample_of_all(vectors, quantizer.num_codes, seed)
        average = tf.reduce_sum(quantizer.cluster_size) / quantizer.num_codes
        # The step will skip a batch with NaN, so its vectors must not enter the codebook here.
        candidates = tf.where(tf.math.is_finite(candidates), candidates, quantizer.codebook)
        quantizer.revive(candidates, tf.maximum(0.03 * average, 1e-4))

    def report(self):
        """Returns the fraction of codes in use and the perplexity of the codebook, from the codes' moving averages."""
        sizes = self.model.dvae.quantizer.cluster_size.numpy()
        shares = sizes / max(sizes.sum(), 1e-9)
        used = np.mean(shares > 0.1 / len(shares))
        return {"codebook_use": float(used), "codebook_perplexity": float(np.exp(entr(shares).sum()))}


class DVAEObjective(Objective):
    """Reconstruction and commitment loss (van den Oord et al. 2017, eq. 3). Moving averages update the codebook."""

    loss_weights = {"reconstruction": 1.0, "commitment": 1.0}

    def __init__(self, model: XTTS):
        self.network = model.dvae

    def counts(self, batch):
        frames = tf.reduce_sum(tf.cast(batch.mel_lengths, tf.float32))
        codes = tf.reduce_sum(tf.cast(-(-batch.mel_lengths // MEL_FRAMES_PER_CODE), tf.float32))
        return {"reconstruction": frames * self.network.num_mels, "commitment": codes * self.network.codebook_width}

    def loss_sums(self, batch, seed=None):
        output = self.network(batch.mel)
        frame_mask = tf.sequence_mask(batch.mel_lengths, tf.shape(batch.mel)[1])
        code_mask = tf.sequence_mask(-(-batch.mel_lengths // MEL_FRAMES_PER_CODE), tf.shape(output["codes"])[1])
        sums = {
            "reconstruction": masked_squared_error(output["reconstruction"], batch.mel, frame_mask),
            "commitment": masked_squared_error(output["vectors"], tf.stop_gradient(output["quantized"]), code_mask),
        }
        return sums, self.network.quantizer.statistics(tf.stop_gradient(output["vectors"]), output["codes"], code_mask)

    def apply_statistics(self, statistics):
        self.network.quantizer.update(statistics["count"], statistics["sum"])


class DVAEPreparation(Preparation):
    """Converts waveforms to a `DVAEBatch`."""

    def make_batch(self, batch, position):
        wav, wav_lengths, change = self.change_voice(batch, position)
        mel = self.log_mel(self.mel, wav, change)
        frames = tf.shape(mel)[1] // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE
        return DVAEBatch(batch.index, mel[:, :frames], tf.minimum(-(-wav_lengths // self.mel.spec.hop_length), frames))


def sample_of_all(vectors: tf.Tensor, number: int, seed: tf.Tensor) -> tf.Tensor:
    """Samples `number` vectors with replacement from the vectors of all replicas. Called in the replica context.

    `vectors` are the vectors of this replica, `(N, width)`; N may differ between replicas. Returns `(number, width)`.
    All replicas get the same sample, which does not depend on how the batch is divided among replicas.
    """
    context = tf.distribute.get_replica_context()
    replicas, this = context.num_replicas_in_sync, context.replica_id_in_sync_group
    own = tf.shape(vectors)[0]
    counts = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(own, tf.float32) * tf.one_hot(this, replicas))
    counts = tf.cast(counts, tf.int32)  # reduced as float32, like all else between GPUs
    first = tf.math.cumsum(counts, exclusive=True)[this]
    picks = tf.random.stateless_uniform((number,), seed, 0, tf.reduce_sum(counts), tf.int32) - first
    is_own = (picks >= 0) & (picks < own)
    found = tf.gather(vectors, tf.clip_by_value(picks, 0, tf.maximum(own - 1, 0)))
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(is_own[:, None], found, 0.0))


def measure_mel_stats(loader: Callable[[int], WaveBatch], num_batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scale and the mean of each mel band in the first `num_batches` batches, both `(num_mels,)` float32.

    The scale is the standard deviation of the log-mel, but at least `SMALLEST_MEL_SCALE`. The model divides
    log-mels by the scale (`mel_stats.pth` in the released XTTS). The mean is computed after this division.
    """
    extractor, frames = MelSpectrogram(DVAE_MEL), []
    for batch in map(loader, range(num_batches)):
        mel = extractor(tf.constant(batch.wav))
        mask = tf.sequence_mask(batch.wav_lengths // DVAE_MEL.hop_length, tf.shape(mel)[1])
        frames.append(tf.boolean_mask(mel, mask).numpy())
    frames = np.concatenate(frames)
    scale = np.maximum(frames.std(axis=0), SMALLEST_MEL_SCALE).astype(np.float32)
    return scale, (frames.mean(axis=0) / scale).astype(np.float32)

"""The DVAE stage: mel spectrograms to audio codes and back."""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.data.batch import DVAEBatch, WaveBatch
from myxtts.models.xtts import XTTS, named_weights
from myxtts.training.stages.base import Objective, Preparation, Stage, Update, masked_squared_error

DEAD_CODE_SHARE = 0.03
"""A code is dead if it is used less often than this share of the average code."""
REVIVE_EVERY_STEPS = 50
"""Steps between revivals of dead codes."""
SMALLEST_MEL_SCALE = 1.0
"""Lower limit of a band's scale; keeps the noise of bands above the recordings' Nyquist rate small."""


class DVAEStage(Stage):
    """Learns to reconstruct mel spectrograms through a codebook, whose codes the GPT learns."""

    name = part = "dvae"
    main_loss = "reconstruction"
    _strategy: tf.distribute.Strategy = tf.distribute.get_strategy()

    def measure(self, dataset):
        """Sets the scale of the mel bands, and the output's bias to their mean."""
        if np.all(self.model.mel_stats.numpy() == 1):
            scale, mean = measure_mel_stats(dataset.train_loader(self.name), 16)
            self.model.mel_stats.assign(scale)
            self.model.dvae.decoder_output.bias.assign(mean)

    def begin(self):
        self.front.mel_stats.assign(self.model.mel_stats.numpy())

    def updates(self, settings):
        self._strategy = tf.distribute.get_strategy()
        return [Update("", DVAEObjective(self.model), settings)]

    def make_preparation(self, device, shares_device):
        with tf.device(device):
            # Holds the mel scale on the data device.
            self.front = self.model if shares_device else XTTS(self.config.model, parts=())
        self.begin()
        return DVAEPreparation(self.front, device, self.config.data.augment, self.config.training.seed)

    def copies(self, batch):
        mels = batch.mel, self.model.dvae(batch.mel)["reconstruction"]
        return tuple(map(self.model.denormalize_mel, mels))

    def prepare_step(self, batch, step, seed):
        """Moves dead codes onto vectors of this batch, every `REVIVE_EVERY_STEPS` from the start."""
        if step % REVIVE_EVERY_STEPS == 0:
            arguments = batch, tf.constant(seed, tf.int32)
            # Calling the function itself would warn about frequent retracing.
            self._revive.get_concrete_function(*arguments)(*arguments)

    @tf.function  # traced for each shape: see `TrainStep.trace_for`
    def _revive(self, batch, seed):
        self._strategy.run(self._revive_in_replica, (batch, seed))

    def _revive_in_replica(self, batch, seed):
        quantizer = self.model.dvae.quantizer
        vectors = tf.cast(self.model.dvae.mel_to_vectors(batch.mel), tf.float32)
        mask = tf.sequence_mask(_code_lengths(batch.mel_lengths), tf.shape(vectors)[1])
        vectors = tf.boolean_mask(vectors, mask)
        candidates = picked_of_all(vectors, quantizer.num_codes, seed)
        average = tf.reduce_sum(quantizer.cluster_size) / quantizer.num_codes
        # The step skips a batch with NaN; it must not enter the codebook here.
        candidates = tf.where(tf.math.is_finite(candidates), candidates, quantizer.codebook)
        quantizer.revive(candidates, tf.maximum(DEAD_CODE_SHARE * average, 1e-4))

    def report(self):
        """Returns codebook use and perplexity by the moving averages."""
        sizes = self.model.dvae.quantizer.cluster_size.numpy()
        shares = sizes / max(sizes.sum(), 1e-9)
        used = shares > 0.1 / len(shares)
        entropy = -(shares[shares > 0] * [math.log(s) for s in shares[shares > 0]]).sum()
        return {"codebook_use": float(used.mean()), "codebook_perplexity": math.exp(entropy)}


class DVAEObjective(Objective):
    """Reconstruction and commitment losses (van den Oord et al. 2017, equation 3); moving averages set the codebook."""

    loss_weights = {"reconstruction": 1.0, "commitment": 1.0}

    def __init__(self, model: XTTS):
        self.dvae = model.dvae

    def trainable(self):
        return {name: v for name, v in named_weights(self.dvae).items() if v.trainable}

    def counts(self, batch):
        frames = tf.reduce_sum(tf.cast(batch.mel_lengths, tf.float32))
        codes = tf.reduce_sum(tf.cast(_code_lengths(batch.mel_lengths), tf.float32))
        return {"reconstruction": frames * self.dvae.num_mels, "commitment": codes * self.dvae.codebook_width}

    def loss_sums(self, batch, seed=None):
        output = self.dvae(batch.mel)
        frame_mask = tf.sequence_mask(batch.mel_lengths, tf.shape(batch.mel)[1])
        code_mask = tf.sequence_mask(_code_lengths(batch.mel_lengths), tf.shape(output["codes"])[1])
        sums = {
            "reconstruction": masked_squared_error(output["reconstruction"], batch.mel, frame_mask),
            "commitment": masked_squared_error(output["vectors"], tf.stop_gradient(output["quantized"]), code_mask),
        }
        vectors = tf.stop_gradient(output["vectors"])
        return sums, self.dvae.quantizer.statistics(vectors, output["codes"], code_mask)

    def apply_statistics(self, statistics):
        self.dvae.quantizer.update(statistics["count"], statistics["sum"])


class DVAEPreparation(Preparation):
    """Waveforms -> `DVAEBatch`."""

    def make_batch(self, batch, step):
        wav, wav_lengths, change = self.change_voice(batch, step)
        mel = self.log_mel(self.mel, wav, change)
        frames = tf.shape(mel)[1] // MEL_FRAMES_PER_CODE * MEL_FRAMES_PER_CODE
        lengths = tf.minimum(-(-wav_lengths // self.mel.spec.hop_length), frames)
        return DVAEBatch(batch.index, mel[:, :frames], lengths)


def picked_of_all(vectors: tf.Tensor, number: int, seed: tf.Tensor) -> tf.Tensor:
    """Samples `(number, width)` vectors, with repetition, from those of all replicas, `(N, width)` on each.

    N may differ between replicas. All get the same sample, which one replica with the whole batch would draw.
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
    """Measures scale and mean of each mel band over the first batches.

    Returns:
        Standard deviation of the log-mel, `(num_mels,)` float32, at least `SMALLEST_MEL_SCALE`: the released model's
        `mel_stats.pth`, which divides the log-mels of DVAE and conditioning. And the mean of the normalized log-mel.
    """
    extractor, frames = MelSpectrogram(DVAE_MEL), []
    for position in range(num_batches):
        batch = loader(position)
        mel = extractor(tf.constant(batch.wav))
        mask = tf.sequence_mask(batch.wav_lengths // DVAE_MEL.hop_length, tf.shape(mel)[1])
        frames.append(tf.boolean_mask(mel, mask).numpy())
    frames = np.concatenate(frames)
    scale = np.maximum(frames.std(axis=0), SMALLEST_MEL_SCALE).astype(np.float32)
    return scale, (frames.mean(axis=0) / scale).astype(np.float32)


def _code_lengths(mel_lengths):
    return -(-mel_lengths // MEL_FRAMES_PER_CODE)

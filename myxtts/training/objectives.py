"""What each stage learns: one small object per stage under one train step.

An objective answers four questions: which weights are trained, how many items of a batch count (`counts`), what the sum
of each loss over them is (`loss_sums`), and what else a batch leaves behind (`statistics`, applied once per step).
"""

import math

import tensorflow as tf

from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.models.gpt import teacher_forcing
from myxtts.models.xtts import named_weights
from myxtts.training.losses import masked_cross_entropy, masked_squared_error

DEAD_CODE_SHARE = 0.03
"""A code chosen less often than this share of the average is moved to where vectors are."""
REVIVE_EVERY_STEPS = 50


class DVAEObjective:
    """Reconstruction and commitment (van den Oord et al. 2017, equation 3), codebook by moving averages."""

    name = "dvae"
    loss_weights = {"reconstruction": 1.0, "commitment": 1.0}
    main_loss = "reconstruction"

    def __init__(self, model, config):
        self.model = model
        self.dvae = model.dvae
        self.config = config

    def trainable(self):
        """Trained variables by name."""
        return {name: v for name, v in named_weights(self.dvae).items() if v.trainable}

    def counts(self, batch):
        frames = tf.reduce_sum(tf.cast(batch.mel_lengths, tf.float32))
        codes = tf.reduce_sum(tf.cast(_code_lengths(batch.mel_lengths), tf.float32))
        return {"reconstruction": frames * self.dvae.num_mels, "commitment": codes * self.dvae.codebook_width}

    def loss_sums(self, batch, seed=None):
        """Sums of the losses and the codebook's statistics; `seed` is not used, the DVAE has no dropout."""
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
        """One step of the codebook's moving averages."""
        self.dvae.quantizer.update(statistics["count"], statistics["sum"])

    def prepare_step(self, batch, step, seed):
        """Every `REVIVE_EVERY_STEPS`, and at the start: dead codes move onto vectors of this batch."""
        if step % REVIVE_EVERY_STEPS == 0:
            self._revive(batch, tf.constant(seed, tf.int32))

    @tf.function(reduce_retracing=True)
    def _revive(self, batch, seed):
        quantizer = self.dvae.quantizer
        vectors = tf.cast(self.dvae.mel_to_vectors(batch.mel), tf.float32)
        mask = tf.sequence_mask(_code_lengths(batch.mel_lengths), tf.shape(vectors)[1])
        vectors = tf.boolean_mask(vectors, mask)
        picks = tf.random.stateless_uniform((quantizer.num_codes,), seed, 0, tf.shape(vectors)[0], tf.int32)
        average = tf.reduce_sum(quantizer.cluster_size) / quantizer.num_codes
        # A batch that is not finite is skipped by the step, and must not get into the codebook here.
        candidates = tf.gather(vectors, picks)
        candidates = tf.where(tf.math.is_finite(candidates), candidates, quantizer.codebook)
        quantizer.revive(candidates, tf.maximum(DEAD_CODE_SHARE * average, 1e-4))

    def report(self):
        """Codebook use and perplexity from the moving averages."""
        sizes = self.dvae.quantizer.cluster_size.numpy()
        shares = sizes / max(sizes.sum(), 1e-9)
        used = shares > 0.1 / len(shares)
        entropy = -(shares[shares > 0] * [math.log(s) for s in shares[shares > 0]]).sum()
        return {"codebook_use": float(used.mean()), "codebook_perplexity": math.exp(entropy)}


class GPTObjective:
    """Next-token cross-entropy over audio codes and, with a small weight, over text (XTTS)."""

    name = "gpt"
    main_loss = "mel"

    def __init__(self, model, config, lora=None):
        self.model = model
        self.gpt = model.gpt
        self.lora = lora
        self.config = config
        self.loss_weights = {"text": config.training.text_loss_weight, "mel": config.training.code_loss_weight}

    def trainable(self):
        """Trained variables by name: with LoRA the adapters, else all."""
        return {
            name: v
            for name, v in named_weights(self.gpt).items()
            if v.trainable and (self.lora is None or self.lora.is_trained(name))
        }

    def _streams(self, batch):
        streams = teacher_forcing(self.config.model, batch.text, batch.text_lengths, batch.codes, batch.code_lengths)
        return streams, conditioning_target_mask(streams.audio_target_mask, batch.conditioning_codes)

    def counts(self, batch):
        streams, audio_mask = self._streams(batch)
        return {
            "text": tf.reduce_sum(tf.cast(streams.text_target_mask, tf.float32)),
            "mel": tf.reduce_sum(tf.cast(audio_mask, tf.float32)),
        }

    def _latents(self, batch):
        return self.gpt.mel_to_latents(batch.conditioning_mel)

    def loss_sums(self, batch, seed=None):
        """Sums of the losses; `seed` `(2,)` int32 turns dropout on."""
        streams, audio_mask = self._streams(batch)
        text_logits, audio_logits = self.gpt(
            self._latents(batch), streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask, seed=seed
        )
        smoothing = self.config.training.label_smoothing if seed is not None else 0.0
        return {
            "text": masked_cross_entropy(text_logits, streams.text_targets, streams.text_target_mask),
            "mel": masked_cross_entropy(audio_logits, streams.audio_targets, audio_mask, smoothing),
        }, {}

    def apply_statistics(self, statistics):
        """The GPT has none."""

    def prepare_step(self, batch, step, seed):
        """Nothing to do before a step."""

    def report(self):
        """Nothing beyond the losses."""
        return {}


def conditioning_target_mask(mask, conditioning_codes):
    """Takes the codes that the conditioning clip shows out of the loss, in every row.

    The reference means to do this but does it to the last row only and in units of 256 samples.

    Args:
        mask: `(B, T)` bool, targets that count.
        conditioning_codes: `(B, 2)` int32, first and last + 1 code shown.
    """
    position = tf.range(tf.shape(mask)[1])[None]
    shown = (position >= conditioning_codes[:, :1]) & (position < conditioning_codes[:, 1:])
    return mask & ~shown


def _code_lengths(mel_lengths):
    return -(-mel_lengths // MEL_FRAMES_PER_CODE)

"""The GPT stage trains the model that converts a text and a voice to audio codes."""

import numpy as np
import tensorflow as tf

from myxtts.audio.augment import change_speed_of_loop
from myxtts.audio.mel import CONDITIONING_MEL, MelSpectrogram
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.config.stages import LORA_TARGETS, GPTConfig
from myxtts.data.batch import GPTBatch
from myxtts.devices.machine import runs_on_cpu
from myxtts.models.attention import SITES_PER_BLOCK
from myxtts.models.gpt import GPT, teacher_forcing
from myxtts.models.layers import AdaptableDense, site_offset
from myxtts.models.xtts import XTTS, named_weights
from myxtts.training.loop.compiled import CompiledBlocks
from myxtts.training.loop.switches import LedgerRow, attention_forms, on_or_off, recompute, recomputed_blocks
from myxtts.training.stages.base import Objective, Preparation, Stage, arrays_of, masked_cross_entropy

TEXT_WEIGHTS = ("text_embedding", "text_head/kernel", "text_head/bias")
"""Names of the weights that are trained in addition to LoRA adapters, because the vocabulary may have grown."""


class GPTStage(Stage):
    """Trains the GPT to predict audio codes from text and a conditioning clip (Casanova et al. 2024)."""

    name = part = "gpt"
    switches = ("precision", "tf32", "gradient_checkpointing", "attention", "xla", "ema")

    def build(self, model, switches, starting):
        super().build(model, switches, starting)
        # On a CPU, one program for the whole step is twice as fast or more.
        self.compiles_blocks = switches.xla and not runs_on_cpu(self.model.gpt.text_embedding.value.device)
        recomputes = switches.gradient_checkpointing and not self.compiles_blocks  # they always recompute
        self.model.gpt.set_memory_use(switches.attention, recompute if recomputes else None)
        settings = self.config.training.gpt
        self.lora = add_lora(self.model.gpt, settings) if settings.lora_rank else {}

    def updates(self):
        return [GPTObjective(self.model, self.config, self.compiles_blocks)]

    def make_preparation(self, device):
        data, seed = self.config.data, self.config.training.seed
        dvae = self.foundations["dvae"]
        return GPTPreparation(dvae, device, data.augment, seed, 0 if data.augment else dvae.dvae.reach)

    def outputs_to_score(self, batch):
        latents = tf.cast(self.model.gpt.mel_to_latents(batch.conditioning_mel), tf.float32)
        return (tf.reduce_mean(latents, axis=1).numpy(),)

    def score(self, outputs):
        """Returns `voice_spread`: the latents' standard deviation over clips, divided by the mean latent magnitude."""
        latents = np.concatenate([array for (array,) in outputs])
        if len(latents) < 2:
            return {}
        return {"voice_spread": float(latents.std(axis=0).mean() / np.abs(latents).mean())}

    def advise(self, figures):
        if figures.get("voice_spread", 1.0) < 1e-4:  # a collapsed model had 1e-5, later 5e-8
            yield (
                "All recordings have nearly the same conditioning latents: the GPT ignores the voice. Train it again "
                "with --stage gpt --reset-training, and if that does not help, with a lower --lr."
            )

    def weight_files(self):
        files = super().weight_files()
        if self.lora:  # assigned last, because both files have the adapted kernels
            named, kernels = files["model"], [f"{name}/kernel" for name in self.lora]
            files["model"] = {name: v for name, v in named.items() if "lora_kernel" not in name}
            files["lora"] = {name: v for name, v in named.items() if "lora_kernel" in name or name in kernels}
        return files

    def weight_arrays(self):
        if not self.lora:
            return super().weight_arrays()
        # Frozen kernels (1.2 GB in XTTS v2) are not copied, because `model` gets the merged ones.
        files = self.weight_files()
        # Keras's `kernel` also includes the adapters, but in the compute dtype, which may have 16 bits.
        change = lambda one: one.lora_alpha / one.lora_rank * tf.matmul(one.lora_kernel_a, one.lora_kernel_b)
        merged = {f"{name}/kernel": (layer._kernel + change(layer)).numpy() for name, layer in self.lora.items()}
        model = {name: merged[name] if name in merged else v.numpy() for name, v in files["model"].items()}
        return {"model": model, "lora": arrays_of(files["lora"])}

    def ledger_rows(self, step, switches):
        value, requested = switches.requested_text("gradient_checkpointing")
        found = len(recomputed_blocks(step.graph))
        encoder = () if self.lora else self.model.gpt.conditioning_encoder.blocks  # LoRA needs no gradients there
        total = len(self.model.gpt.blocks) + len(encoder)
        reason = f"{found} of {total} blocks are recomputed in the backward pass"
        reason += ", as XLA's programs do" if self.compiles_blocks else ""
        as_requested = found == (total if value or self.compiles_blocks else 0)
        yield LedgerRow("gradient checkpointing", requested, on_or_off(found > 0), reason, as_requested)
        # Without the perceiver, which has few queries and always uses standard attention.
        forms = attention_forms(step.graph)
        effective = " and ".join(sorted(forms)) or "none"
        reason = ", ".join(f"{number} layers {form}" for form, number in sorted(forms.items()))
        reason = "all blocks run one compiled program" if self.compiles_blocks else reason
        reason = "; ".join(filter(None, (reason, switches.reasons.get("attention"))))
        requested = switches.requested_text("attention")[1]
        yield LedgerRow("attention", requested, effective, reason, effective == switches.attention)
        if self.lora:
            yield lora_row(self.config.training.gpt, step.trainable)


class GPTObjective(Objective):
    """Next-token cross-entropy over audio codes and, with a small weight, over text (XTTS)."""

    highest_rates = dict.fromkeys(("conditioning_encoder", "perceiver"), 1.5e-4)
    """Rate limits for layers before the perceiver's last norm, which removes the latents' scale. At high rates, the
    latents before this norm grew without limit until all voices had the same latents (docs/experiments.md)."""

    def __init__(self, model: XTTS, config: XTTSConfig, compiles_blocks: bool = False):
        self.gpt, self.config, self.compiles_blocks = model.gpt, config, compiles_blocks
        self._trunk, self._encoder = None, None
        if compiles_blocks:
            encoder = self.gpt.conditioning_encoder.blocks
            self._trunk, self._encoder = CompiledBlocks(self.gpt.blocks), CompiledBlocks(encoder, "conditioning_")
        settings = config.training.gpt
        self.loss_weights = {"text": settings.text_loss_weight, "codes": settings.code_loss_weight}
        if settings.alignment_loss_weight:
            self.loss_weights["alignment"] = settings.alignment_loss_weight

    def trainable(self):
        named = {name: v for name, v in named_weights(self.gpt).items() if v.trainable}
        if not any("lora_kernel" in name for name in named):
            return named
        return {name: v for name, v in named.items() if "lora_kernel" in name or name in TEXT_WEIGHTS}

    def _streams(self, batch):
        streams = teacher_forcing(self.config.model, batch.text, batch.text_lengths, batch.codes, batch.code_lengths)
        return streams, conditioning_target_mask(streams.audio_target_mask, batch.conditioning_codes)

    def counts(self, batch):
        streams, audio_mask = self._streams(batch)
        counts = {
            "text": tf.reduce_sum(tf.cast(streams.text_target_mask, tf.float32)),
            "codes": tf.reduce_sum(tf.cast(audio_mask, tf.float32)),
            "alignment": tf.reduce_sum(tf.cast(batch.code_lengths, tf.float32)),
        }
        return {name: counts[name] for name in self.loss_weights}

    def loss_sums(self, batch, seed=None):
        streams, audio_mask = self._streams(batch)
        is_training = seed is not None  # no programs are compiled for validation
        latents = self.gpt.mel_to_latents(batch.conditioning_mel, self._encoder if is_training else None)
        inputs = latents, streams.text_inputs, self._masked(streams.audio_inputs, seed)
        seen = {}
        see_input = seen.__setitem__ if "alignment" in self.loss_weights else None
        hooks = dict(see_input=see_input, run_block=self._trunk if is_training else None)
        text_logits, audio_logits = self.gpt(*inputs, streams.key_mask, seed, **hooks)
        smoothing = self.config.training.gpt.label_smoothing if is_training else 0.0
        sums = {
            "text": masked_cross_entropy(text_logits, streams.text_targets, streams.text_target_mask),
            "codes": masked_cross_entropy(audio_logits, streams.audio_targets, audio_mask, smoothing),
        }
        if "alignment" in self.loss_weights:
            number = len(self.gpt.blocks) // 2
            text_mask = streams.key_mask[:, : tf.shape(streams.text_inputs)[1]]
            weights = self.gpt.text_attention(number, seen[number], text_mask)
            sums["alignment"] = off_diagonal(weights, batch.text_lengths + 2, batch.code_lengths)
        return sums, {}

    def _masked(self, codes, seed):
        """In training, replaces some input codes `(B, C)` with random codes, but never start, stop or padding codes."""
        rate, config = self.config.training.gpt.code_masking, self.config.model
        if seed is None or not rate:
            return codes
        draws = tf.random.stateless_uniform(tf.shape(codes), tf.cast(seed, tf.int32) + site_offset(MASKING_SITE))
        replaced = (draws < rate) & (codes < config.num_codes)
        # Draws below the rate are uniform in [0, rate).
        return tf.where(replaced, tf.cast(draws / rate * config.num_codes, codes.dtype), codes)


MASKING_SITE = 1023
"""Argument of `site_offset` for the random seed of code masking. The sites of dropout layers have other numbers."""


class GPTPreparation(Preparation):
    """Converts waveforms to a `GPTBatch`. The frozen DVAE computes the codes, unless the batch already has codes.

    Before encoding, silence that lasts `margin_codes` codes is appended to each row. If this margin is shorter than the
    encoder's lookahead, `DVAE.reach`, the last codes of the longest clips depend on the batch's padded length.
    """

    def __init__(self, model, device, augment, seed, margin_codes=0):
        super().__init__(model, device, augment, seed)
        self.margin_samples = margin_codes * CODE_STRIDE_SAMPLES
        self._conditioning_mel = MelSpectrogram(CONDITIONING_MEL)

    def make_batch(self, batch, position):
        wav, wav_lengths, change = self.change_voice(batch, position)
        if self.augment:
            codes = self._encode(wav, change)
        else:
            is_prepared = tf.shape(batch.codes)[1] > 0
            codes = tf.cond(is_prepared, lambda: tf.identity(batch.codes), lambda: self._encode(wav, change))
        span = tf.cast(batch.conditioning_span, tf.float32) / change.speed[:, None] / CODE_STRIDE_SAMPLES
        span = tf.cast(tf.stack([tf.floor(span[:, 0]), tf.math.ceil(span[:, 1])], axis=1), tf.int32)
        voice = change_speed_of_loop(batch.conditioning, change.speed) if self.augment else batch.conditioning
        conditioning_mel = self.log_mel(self._conditioning_mel, voice, change)
        lengths = -(-wav_lengths // CODE_STRIDE_SAMPLES)
        return GPTBatch(batch.index, batch.text, batch.text_lengths, conditioning_mel, codes, lengths, span)

    def _encode(self, wav, change):
        mel = self.log_mel(self.mel, tf.pad(wav, [[0, 0], [0, self.margin_samples]]), change)
        # A waveform of exactly n strides is encoded to n + 1 codes.
        return self.model.dvae.encode(mel)[:, : tf.shape(wav)[1] // CODE_STRIDE_SAMPLES]


def add_lora(gpt: GPT, settings: GPTConfig) -> dict[str, AdaptableDense]:
    """Adds low-rank adapters (LoRA, Hu et al. 2021) to a GPT and returns the adapted layers by name.

    Afterwards, only the adapters and `TEXT_WEIGHTS` are trained. Must be called in the strategy's scope, on the model's
    device, after the starting weights are assigned.
    """
    layers, site = {}, SITES_PER_BLOCK * len(gpt.blocks)  # the embedding's dropout; lower sites belong to blocks
    for number, block in enumerate(gpt.blocks):
        for name in LORA_TARGETS:
            site += 1
            if name in settings.lora_targets:
                in_attention = hasattr(block.attention, name)
                layer = getattr(block.attention if in_attention else block, name)
                layer.enable_lora(settings.lora_rank, lora_alpha=settings.lora_alpha or settings.lora_rank)
                layer.adapter_dropout.rate, layer.adapter_dropout.site = settings.lora_dropout, site
                layers[f"gpt/block_{number}/{'attention/' * in_attention}{name}"] = layer
    return layers


def lora_row(settings: GPTConfig, trained: dict) -> LedgerRow:
    """Returns the `Ledger` row for LoRA. `trained` contains the variables that the first step trained, by name."""
    sizes = {name: int(tf.size(v.value)) for name, v in trained.items()}
    ranks = {variable.shape[-1] for name, variable in trained.items() if name.endswith("lora_kernel_a")}
    adapters = sum(size for name, size in sizes.items() if "lora_kernel" in name)
    reason = f"{adapters:,} adapter weights and {sum(sizes.values()) - adapters:,} text weights are trained; "
    reason += f"rank {settings.adapters}, dropout {settings.lora_dropout:g}"
    effective = f"rank {', '.join(map(str, sorted(ranks)))}" if ranks else "off"
    return LedgerRow("LoRA", f"rank {settings.lora_rank} (given)", effective, reason, ranks == {settings.lora_rank})


DIAGONAL_WIDTH = 0.2
"""Width g of the guided attention loss's diagonal band, as a fraction of the text length (Tachibana et al. 2017)."""


def off_diagonal(attention: tf.Tensor, text_lengths: tf.Tensor, code_lengths: tf.Tensor) -> tf.Tensor:
    """Computes the guided attention loss: the penalty for attention far from the diagonal, summed over all codes.

    See Tachibana, Uenoyama and Aihara, "Efficiently trainable text-to-speech system based on deep convolutional
    networks with guided attention" (2017), section 4.1. `attention` `(B, C, L)` is a distribution over text positions
    for each code; `text_lengths` and `code_lengths` `(B,)` int32 are lengths without padding. Returns a scalar.
    """
    _, codes, tokens = tf.unstack(tf.shape(attention))
    code_share, text_share = tf.range(codes) / code_lengths[:, None], tf.range(tokens) / text_lengths[:, None]
    apart = tf.cast(text_share[:, None, :] - code_share[:, :, None], tf.float32)
    penalty = 1.0 - tf.exp(-tf.square(apart) / (2 * DIAGONAL_WIDTH**2))
    counts = tf.sequence_mask(code_lengths, tf.shape(attention)[1])
    return tf.reduce_sum(tf.where(counts, tf.reduce_sum(attention * penalty, axis=-1), 0.0))


def conditioning_target_mask(mask: tf.Tensor, conditioning_codes: tf.Tensor) -> tf.Tensor:
    """Returns the target mask `mask`, `(B, T)` bool, with False at the codes that are part of the conditioning clip.

    `conditioning_codes` is `(B, 2)` int32: the first index of each clip's conditioning codes, and the last index + 1.
    (Coqui's code masks only the last row of the batch and counts in units of 256 samples.)
    """
    position = tf.range(tf.shape(mask)[1])[None]
    return mask & ((position < conditioning_codes[:, :1]) | (position >= conditioning_codes[:, 1:]))

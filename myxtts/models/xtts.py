"""The XTTS model: where `ModelConfig` becomes layers."""

import keras
from keras import ops

from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT

PARTS = ("dvae", "gpt", "decoder")
"""Parts of the model, each with weights of its own in a checkpoint."""


class XTTS(keras.Model):
    """DVAE, GPT and, when asked for, the waveform decoder with its speaker encoder.

    All weights are made at once, on the device and in the strategy scope that are active at construction.

    Args:
        config: `ModelConfig` with `num_text_tokens` set.
        parts: Which of `PARTS` to make. An untrained decoder is of no use, so it is left out by default.
        precision: Keras dtype policy of the layers.
    """

    def __init__(self, config, parts=("dvae", "gpt"), precision="float32"):
        super().__init__(name="xtts", dtype=precision)
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise ValueError(f"parts must be among {PARTS}. Received: {sorted(unknown)}.")
        self.config = config
        self.parts = tuple(parts)
        self.mel_stats = self.add_weight(
            shape=(config.num_mels,), name="mel_stats", trainable=False, initializer="ones", dtype="float32"
        )
        if "dvae" in parts:
            self.dvae = DVAE(
                config.num_mels,
                config.num_codes,
                config.codebook_width,
                config.dvae_hidden,
                config.dvae_residual_blocks,
                name="dvae",
                dtype=precision,
            )
            self.dvae.build()
        if "gpt" in parts:
            if config.num_text_tokens < 1:
                raise ValueError(
                    "model.num_text_tokens must be set from the tokenizer before the GPT is made. "
                    f"Received: {config.num_text_tokens}."
                )
            self.gpt = GPT(
                num_text_tokens=config.num_text_tokens,
                num_audio_tokens=config.num_audio_tokens,
                max_text_tokens=config.max_text_tokens,
                max_audio_tokens=config.max_audio_tokens,
                layers=config.layers,
                width=config.width,
                heads=config.heads,
                dropout=config.dropout,
                conditioning_blocks=config.conditioning_blocks,
                conditioning_heads=config.conditioning_heads,
                num_latents=config.num_latents,
                perceiver_depth=config.perceiver_depth,
                perceiver_heads=config.perceiver_heads,
                perceiver_head_width=config.perceiver_head_width,
                num_mels=config.num_mels,
                name="gpt",
                dtype=precision,
            )
            self.gpt.build()
        if "decoder" in parts:
            from myxtts.models.hifigan import HifiganGenerator  # made rarely, and only for speech at 24 kHz
            from myxtts.models.speaker_encoder import SpeakerEncoder

            self.vocoder = HifiganGenerator(channels=config.decoder_channels, name="vocoder", dtype=precision)
            self.vocoder.build((None, None, config.width), (None, config.speaker_width))
            self.speaker_encoder = SpeakerEncoder(
                widths=config.speaker_channels,
                embedding_width=config.speaker_width,
                name="speaker_encoder",
                dtype=precision,
            )
            self.speaker_encoder.build((None, None))
        self.built = True

    @classmethod
    def assemble(cls, config, tokenizer_model, gpt_model):
        """A speaking model from two that were made apart, sharing their weights: one with the DVAE, one with the GPT."""
        model = cls(config, parts=())
        model.dvae, model.mel_stats = tokenizer_model.dvae, tokenizer_model.mel_stats
        model.gpt = gpt_model.gpt
        model.parts = ("dvae", "gpt")
        return model

    def part_weights(self, part):
        """Variables of one part by path below it; `mel_stats` belongs to the DVAE."""
        layers = {"dvae": ["dvae"], "gpt": ["gpt"], "decoder": ["vocoder", "speaker_encoder"]}[part]
        named = {
            f"{layer}/{path}": variable
            for layer in layers
            for path, variable in named_weights(getattr(self, layer)).items()
        }
        return {**named, "mel_stats": self.mel_stats} if part == "dvae" else named

    def normalize_mel(self, mel):
        """Log-mel -> the scale that DVAE and conditioning encoder work in."""
        return mel / ops.convert_to_tensor(self.mel_stats)

    def denormalize_mel(self, mel):
        """Inverse of `normalize_mel`."""
        return mel * ops.convert_to_tensor(self.mel_stats)


def named_weights(layer, prefix=""):
    """All variables below `layer`, by the names of the layers that hold them, in a fixed order.

    Unlike Keras's own `path` these names do not depend on where or under which name the layer was made.
    """
    found = {}
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        found[prefix + variable.name] = variable
    for child in layer._layers:
        found.update(named_weights(child, f"{prefix}{child.name}/"))
    return found

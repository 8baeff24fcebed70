"""The XTTS model: where `ModelConfig` becomes layers."""

from collections.abc import Collection
from typing import Self

import keras
from keras import ops

from myxtts.config.model import SPEAKER_NUM_MELS, ModelConfig
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.layers.linear import built
from myxtts.models.layers.tensor import Tensor
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.waveform_decoder import make_decoder

PARTS = ("dvae", "gpt", "speaker", "decoder")
"""Parts of the model, each with weights of its own in a checkpoint."""
LAYERS = {"dvae": "dvae", "gpt": "gpt", "speaker": "speaker_encoder", "decoder": "decoder"}
"""Attribute that holds each part's layer; its weights' names in a checkpoint begin with it."""


class XTTS(keras.Model):
    """DVAE, GPT and, when asked for, the speaker encoder and the waveform decoder.

    All weights are made at once, on the device and in the strategy scope that are active at construction.

    Args:
        config: `ModelConfig` with `num_text_tokens` set.
        parts: Which of `PARTS` to make.
        precision: Keras dtype policy of the layers.
    """

    def __init__(self, config: ModelConfig, parts: Collection[str] = ("dvae", "gpt"), precision: str = "float32"):
        super().__init__(name="xtts", dtype=precision)
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise ValueError(f"parts must be among {PARTS}. Received: {sorted(unknown)}.")
        self.config, self.parts = config, tuple(parts)
        stats = dict(shape=(config.num_mels,), name="mel_stats", trainable=False, initializer="ones", dtype="float32")
        self.mel_stats = self.add_weight(**stats)
        for part in PARTS:
            if part in parts:
                getattr(self, f"_make_{part}")(config, precision)
        self.built = True

    def _make_dvae(self, config, dtype):
        shape = (config.num_mels, config.num_codes, config.codebook_width, config.dvae_hidden)
        self.dvae = built(DVAE(*shape, config.dvae_residual_blocks, name="dvae", dtype=dtype))

    def _make_gpt(self, config, dtype):
        if config.num_text_tokens < 1:
            rule = "model.num_text_tokens must be set from the tokenizer before the GPT is made"
            raise ValueError(f"{rule}. Received: {config.num_text_tokens}.")
        self.gpt = built(GPT(config, name="gpt", dtype=dtype))

    def _make_speaker(self, config, dtype):
        shape = dict(widths=config.speaker_channels, embedding_width=config.speaker_width)
        encoder = SpeakerEncoder(**shape, name="speaker_encoder", dtype=dtype)
        self.speaker_encoder = built(encoder, (None, None, SPEAKER_NUM_MELS))

    def _make_decoder(self, config, dtype):
        decoder = make_decoder(config, name="decoder", dtype=dtype)
        self.decoder = built(decoder, (None, None, config.width), (None, config.speaker_width))

    @classmethod
    def assemble(cls, config: ModelConfig, *models: Self) -> Self:
        """A model of all the parts of `models`, whose weights it shares; of a part that several have, the last one's.

        `mel_stats` are those of the model that has the DVAE, or of the last one where none has.
        """
        owners = {part: model for model in models for part in model.parts}
        assembled = cls(config, parts=())
        for part, model in owners.items():
            setattr(assembled, LAYERS[part], getattr(model, LAYERS[part]))
        assembled.parts = tuple(part for part in PARTS if part in owners)
        assembled.mel_stats = owners.get("dvae", models[-1]).mel_stats
        return assembled

    def part_weights(self, part: str) -> dict[str, keras.Variable]:
        """Variables of one part by path below it; `mel_stats` belongs to the DVAE."""
        named = named_weights(getattr(self, LAYERS[part]), f"{LAYERS[part]}/")
        return {**named, "mel_stats": self.mel_stats} if part == "dvae" else named

    def normalize_mel(self, mel: Tensor) -> Tensor:
        """Log-mel -> the scale that DVAE and conditioning encoder work in."""
        return mel / ops.convert_to_tensor(self.mel_stats)

    def denormalize_mel(self, mel: Tensor) -> Tensor:
        """Inverse of `normalize_mel`."""
        return mel * ops.convert_to_tensor(self.mel_stats)


def named_weights(layer: keras.layers.Layer, prefix: str = "") -> dict[str, keras.Variable]:
    """All variables below `layer`, by the names of the layers that hold them, in a fixed order.

    Unlike Keras's own `path` these names do not depend on where or under which name the layer was made.
    """
    found = {}
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        found[prefix + variable.name] = variable
    for child in layer._layers:
        found.update(named_weights(child, f"{prefix}{child.name}/"))
    return found

"""The XTTS model, created from a `ModelConfig`."""

from collections.abc import Collection
from dataclasses import asdict, replace
from os import PathLike
from typing import Any, Self

import keras
from keras import ops

import myxtts
from myxtts.config.model import DEFAULT_TEXT_TOKENS, ModelConfig
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.layers import Tensor
from myxtts.models.speaker_encoder import make_speaker_encoder
from myxtts.models.waveform_decoders import make_decoder

LAYERS = {"dvae": "dvae", "gpt": "gpt", "speaker": "speaker_encoder", "decoder": "decoder"}
"""Name of the attribute of `XTTS` for each part. In checkpoints, the part's weight names begin with this name."""
PARTS = tuple(LAYERS)
"""Names of the model's parts, each of which has its own checkpoints."""


class XTTS(keras.Model):
    """XTTS model of DVAE, GPT and, optionally, speaker encoder and waveform decoder.

    All weights are created in the constructor, on the current device and in the current strategy scope.

    Args:
        config: `ModelConfig` or a dictionary of its fields; a `num_text_tokens` of 0 becomes `DEFAULT_TEXT_TOKENS`.
        parts: Names of the parts to create, a subset of `PARTS`.
        precision: Keras dtype policy of the layers.

    Attributes:
        preset: Tokenizer and `XTTSConfig` with which the weights were trained; None for a new model.
        origin: Folder from which the weights were loaded; None for a new model.
    """

    preset: tuple[Any, Any] | None = None
    origin: str | None = None

    def __init__(self, config: ModelConfig | dict, parts: Collection[str] = ("dvae", "gpt"), precision="float32"):
        super().__init__(name="xtts", dtype=precision)
        config = config if isinstance(config, ModelConfig) else ModelConfig(**config)
        if unknown := set(parts) - set(PARTS):
            raise ValueError(f"parts must be among {PARTS}. Received: {sorted(unknown)}.")
        if config.num_text_tokens == 0:
            config = replace(config, num_text_tokens=DEFAULT_TEXT_TOKENS)
        self.config, self.parts = config, tuple(parts)
        self.mel_stats = self.add_weight((config.num_mels,), "ones", "float32", trainable=False, name="mel_stats")
        if "dvae" in parts:
            shape = (config.num_mels, config.num_codes, config.codebook_width, config.dvae_hidden)
            self.dvae = DVAE(*shape, config.dvae_residual_blocks, name="dvae", dtype=precision)
        if "gpt" in parts:
            self.gpt = GPT(config, name="gpt", dtype=precision)
        if "speaker" in parts:
            self.speaker_encoder = make_speaker_encoder(config, name="speaker_encoder", dtype=precision)
        if "decoder" in parts:
            self.decoder = make_decoder(config, name="decoder", dtype=precision)
        self.built = True

    @classmethod
    def assemble(cls, config: ModelConfig, *models: Self) -> Self:
        """Creates a model that shares the parts of `models`. If several models have a part, takes it from the last.

        `mel_stats` come from the model whose DVAE is used or, without a DVAE, from the last model.
        """
        owners = {part: model for model in models for part in model.parts}
        assembled = cls(config, parts=())
        for part, model in owners.items():
            setattr(assembled, LAYERS[part], getattr(model, LAYERS[part]))
        assembled.parts = tuple(part for part in PARTS if part in owners)
        assembled.mel_stats = owners.get("dvae", models[-1]).mel_stats
        return assembled

    def part_weights(self, part: str) -> dict[str, keras.Variable]:
        """Returns the variables of a part by their names in checkpoints. The part `dvae` includes `mel_stats`."""
        named = named_weights(getattr(self, LAYERS[part]), f"{LAYERS[part]}/")
        return {**named, "mel_stats": self.mel_stats} if part == "dvae" else named

    def normalize_mel(self, mel: Tensor) -> Tensor:
        """Divides a log-mel `(..., num_mels)` by `mel_stats`, as the DVAE and the conditioning encoder expect."""
        return mel / ops.convert_to_tensor(self.mel_stats)

    def denormalize_mel(self, mel: Tensor) -> Tensor:
        """Multiplies a normalized log-mel by `mel_stats`: the inverse of `normalize_mel`."""
        return mel * ops.convert_to_tensor(self.mel_stats)

    @classmethod
    def from_preset(cls, folder: str | PathLike, accept_licence: bool = False) -> Self:
        """Loads a trained model from the folder of a run, or from the output of `myxtts convert` or `save_to_preset`.

        Args:
            folder: A folder, or `hf://owner/name[@revision]` for a model on the hub, which is converted if necessary.
            accept_licence: Whether to accept the licence of a hub model without a prompt.

        Raises `CheckpointError` for missing or damaged files, `HubError` for a failed download or refused licence.
        """
        return myxtts.from_preset(folder, accept_licence)

    def save_to_preset(self, folder: str | PathLike) -> None:
        """Saves the model to a folder that `from_preset`, `myxtts.load`, `myxtts say` and `training.init_from` accept.

        Raises `UserError` if the model has no `preset`, or if the folder is not empty.
        """
        myxtts.save_to_preset(self, folder)

    def push_to_hub(self, target: str, private: bool = False, licence: str | None = None) -> str:
        """Uploads the model and a model card to `hf://owner/name[@branch]`; returns the URL (see `myxtts.push`)."""
        return myxtts.push(self, target, private, licence)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor as JSON values, for `from_config`."""
        return {"config": asdict(self.config), "parts": list(self.parts), "precision": self.dtype_policy.name}

    def compile(self, *args, **kwargs):
        """Raises `NotImplementedError`, as `fit` and `save` do. The error message names the methods to use instead."""
        raise NotImplementedError(
            "XTTS does not support Keras's compile, fit and save: training needs codes of a frozen DVAE and several "
            "losses, and a saved model needs a tokenizer. Use XTTSTrainer(config, model=model).train() or "
            "myxtts.train(train_data=...), and model.save_to_preset(folder) with XTTS.from_preset(folder)."
        )

    fit = save = compile


def named_weights(layer: keras.layers.Layer, prefix: str = "") -> dict[str, keras.Variable]:
    """Returns all variables of a layer by name, in a fixed order.

    A name consists of `prefix`, the names of the sublayers, and the variable's own name. Unlike `keras.Variable.path`,
    this name does not depend on the name of `layer` or on where `layer` was created.
    """
    found = {prefix + v.name: v for v in (*layer._trainable_variables, *layer._non_trainable_variables)}
    for child in layer._layers:
        found.update(named_weights(child, f"{prefix}{child.name}/"))
    return found

"""The XTTS model, which turns a `ModelConfig` into layers."""

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
"""Attribute that holds the layer of each part; names of its weights in a checkpoint begin with it."""
PARTS = tuple(LAYERS)
"""Parts of the model, each with its own checkpoints."""


class XTTS(keras.Model):
    """DVAE, GPT and, if asked for, speaker encoder and waveform decoder.

    All weights are created at construction, on the active device and in the active strategy scope.

    Args:
        config: Without `num_text_tokens` the model has `DEFAULT_TEXT_TOKENS`.
        parts: Which of `PARTS` to create.
        precision: Keras dtype policy of the layers.

    Attributes:
        preset: Tokenizer and `XTTSConfig` that belong to the weights; None if unknown.
        origin: Folder that the weights were loaded from, or None.
    """

    preset: tuple[Any, Any] | None = None
    origin: str | None = None

    def __init__(self, config: ModelConfig, parts: Collection[str] = ("dvae", "gpt"), precision: str = "float32"):
        super().__init__(name="xtts", dtype=precision)
        if unknown := set(parts) - set(PARTS):
            raise ValueError(f"parts must be among {PARTS}. Received: {sorted(unknown)}.")
        if config.num_text_tokens == 0:
            config = replace(config, num_text_tokens=DEFAULT_TEXT_TOKENS)
        self.config, self.parts = config, tuple(parts)
        stats = dict(shape=(config.num_mels,), name="mel_stats", trainable=False, initializer="ones", dtype="float32")
        self.mel_stats = self.add_weight(**stats)
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
        """Combines the parts of `models`, sharing their weights; the last model that has a part provides it.

        `mel_stats` come from the model with the DVAE, or from the last model.
        """
        owners = {part: model for model in models for part in model.parts}
        assembled = cls(config, parts=())
        for part, model in owners.items():
            setattr(assembled, LAYERS[part], getattr(model, LAYERS[part]))
        assembled.parts = tuple(part for part in PARTS if part in owners)
        assembled.mel_stats = owners.get("dvae", models[-1]).mel_stats
        return assembled

    def part_weights(self, part: str) -> dict[str, keras.Variable]:
        """Variables of one part by name; those of the DVAE include `mel_stats`."""
        named = named_weights(getattr(self, LAYERS[part]), f"{LAYERS[part]}/")
        return {**named, "mel_stats": self.mel_stats} if part == "dvae" else named

    def normalize_mel(self, mel: Tensor) -> Tensor:
        """Scales a log-mel for the DVAE and the conditioning encoder."""
        return mel / ops.convert_to_tensor(self.mel_stats)

    def denormalize_mel(self, mel: Tensor) -> Tensor:
        """Inverse of `normalize_mel`."""
        return mel * ops.convert_to_tensor(self.mel_stats)

    @classmethod
    def from_preset(cls, folder: str | PathLike, accept_licence: bool = False) -> Self:
        """Loads a trained model from the folder of a run, of `myxtts convert` or of `save_to_preset`.

        Args:
            folder: Or `hf://owner/name[@revision]`, a model of the hub, which is converted if necessary.
            accept_licence: Accepts the licence of a hub model without asking.

        Raises:
            CheckpointError: Something is missing or damaged.
            HubError: The download failed, or the licence was not accepted.
        """
        return myxtts.from_preset(folder, accept_licence)

    def save_to_preset(self, folder: str | PathLike) -> None:
        """Writes a folder for `from_preset`, `myxtts.load`, `myxtts say` and `training.init_from`.

        Raises:
            UserError: The model has no `preset`, or the folder is not empty.
        """
        myxtts.save_to_preset(self, folder)

    def push_to_hub(self, target: str, private: bool = False, licence: str | None = None) -> str:
        """Uploads the model with a model card to `hf://owner/name`; see `myxtts.push`."""
        return myxtts.push(self, target, private, licence)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as JSON values."""
        return {"config": asdict(self.config), "parts": list(self.parts), "precision": self.dtype_policy.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Creates a model with random weights from the result of `get_config`."""
        return cls(ModelConfig(**config["config"]), config["parts"], config["precision"])

    def compile(self, *args, **kwargs):
        """Raises: a step needs more than Keras's loop gives it, and Keras's format would leave out the tokenizer."""
        raise NotImplementedError(
            "XTTS has no compile, fit and save of Keras: a step needs codes of a frozen DVAE and several losses, and a "
            "file a tokenizer. Use XTTSTrainer(config, model=model).train() or myxtts.train(train_data=...), and "
            "model.save_to_preset(folder), which XTTS.from_preset reads."
        )

    fit = save = compile


def named_weights(layer: keras.layers.Layer, prefix: str = "") -> dict[str, keras.Variable]:
    """All variables below `layer` in a fixed order, by the names of the layers that hold them.

    Unlike Keras's `path`, a name does not depend on where `layer` was created or on its own name.
    """
    found = {}
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        found[prefix + variable.name] = variable
    for child in layer._layers:
        found.update(named_weights(child, f"{prefix}{child.name}/"))
    return found

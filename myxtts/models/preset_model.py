"""What people ask of any Keras model: a folder to and fro, a configuration, and a word where our way is another.

Models know of no files: what reads and writes folders is asked of the front door, `myxtts.api`, when it is called.
"""

import dataclasses
from os import PathLike
from typing import Any, Self

import keras

import myxtts
from myxtts.config.model import ModelConfig


class PresetModel(keras.Model):
    """A model of a `ModelConfig`, `config`, with some `parts`, whose weights can be kept in a folder.

    `preset` has what belongs to the weights, the tokenizer and the `XTTSConfig`; None where the weights are random or
    nobody has said.
    """

    config: ModelConfig
    parts: tuple[str, ...]
    preset: tuple[Any, Any] | None = None
    origin: str | None = None
    """Folder that the weights came from, whose history a model card tells."""

    @classmethod
    def from_preset(cls, folder: str | PathLike, accept_licence: bool = False) -> Self:
        """The model in the folder of a run, of `myxtts convert` or of `save_to_preset`, with its trained weights.

        Args:
            folder: Or `hf://owner/name[@revision]`, a model of the hub, converted on the way if need be.
            accept_licence: Of a model of the hub, without being asked.

        Raises:
            CheckpointError: Something is missing or damaged.
            HubError: It cannot be fetched, or its licence was not accepted.
        """
        return myxtts.from_preset(folder, accept_licence)

    def save_to_preset(self, folder: str | PathLike) -> None:
        """Writes a folder that `from_preset`, `myxtts.load`, `myxtts say` and `training.init_from` take.

        Raises:
            UserError: The model's tokenizer is not known, or the folder holds something already.
        """
        myxtts.save_to_preset(self, folder)

    def push_to_hub(self, target: str, private: bool = False, licence: str | None = None) -> str:
        """Uploads what `save_to_preset` writes, with a model card, to `hf://owner/name`; see `myxtts.push`."""
        return myxtts.push(self, target, private, licence)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` makes a model of this shape from, as JSON values."""
        return {
            "config": dataclasses.asdict(self.config),
            "parts": list(self.parts),
            "precision": self.dtype_policy.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """A model with random weights of the shape that `get_config` describes."""
        return cls(ModelConfig(**config["config"]), config["parts"], config["precision"])

    def compile(self, *args, **kwargs):
        """Not how this model is trained: raises and says how."""
        raise NotImplementedError(_TRAINING.format(method="compile"))

    def fit(self, *args, **kwargs):
        """Not how this model is trained: raises and says how."""
        raise NotImplementedError(_TRAINING.format(method="fit"))

    def save(self, filepath, *args, **kwargs):
        """Not how this model is kept: raises and says how."""
        raise NotImplementedError(
            f"XTTS.save would leave out the tokenizer, without which nobody can speak with the weights. "
            f"Use model.save_to_preset({str(filepath).removesuffix('.keras')!r}), a folder; XTTS.from_preset reads it."
        )


_TRAINING = (
    "XTTS.{method} is not there: a step of training needs the codes of a frozen DVAE and several losses. Use "
    "XTTSTrainer(config, model=model).train(), or myxtts.train(train_data=...), which makes the model too."
)

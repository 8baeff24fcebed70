"""Folders of models: what `XTTS.from_preset` reads and `XTTS.save_to_preset` writes."""

from dataclasses import replace
from os import PathLike
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.inference.loading import load_model
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import write_json, write_whole_folder
from myxtts.text.speech_rates import SPEECH_RATES, read_rates, write_rates


def load_preset(folder: str | PathLike, which: str = "best") -> XTTS:
    """The model in a folder, see `load_model`, with the tokenizer and settings that belong to it as `preset`."""
    model, tokenizer, config = load_model(folder, which)
    model.preset, model.origin = (tokenizer, config), str(folder)
    return model


def save_preset(model: XTTS, folder: str | PathLike) -> None:
    """Writes settings, vocabulary and the weights of each part, whole or not at all.

    Raises:
        UserError: The model has no `preset`, or the folder holds something already.
    """
    folder = Path(folder)
    if model.preset is None:
        lack = "save_to_preset writes the tokenizer too, without which the weights cannot speak, and none is known"
        way_out = "Train the model with XTTSTrainer(config, model=model), or set model.preset = (tokenizer, config)"
        raise UserError(f"{lack} for this model. {way_out}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"save_to_preset must be given a folder that is empty or not there. Received: {folder}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer, config = model.preset
    rates = read_rates(model.origin) if model.origin else {}
    config = replace(config, model=model.config)
    with write_whole_folder(folder) as new:
        tokenizer.save(new / "vocab.json")
        write_json(new / "config.json", config.to_dict())
        for part in model.parts:
            weights = {name: variable.numpy() for name, variable in model.part_weights(part).items()}
            copies = {SPEECH_RATES: write_rates(rates)} if part == "gpt" and rates else {}
            CheckpointStore(new / part).write(0, {"model": weights}, {"finished": True}, best=True, copies=copies)

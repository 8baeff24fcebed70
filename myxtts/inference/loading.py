"""Reads models from folders of training runs and of `myxtts convert`, and writes presets."""

from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.inference.text_front import read_tokenizer
from myxtts.memory.claims import check_claims
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.base_model import require_model_folder
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.files import write_json, write_whole_folder
from myxtts.storage.provenance import MEL_STATS, chosen_step, read_config
from myxtts.text.speech_rates import SPEECH_RATES, read_rates, write_rates
from myxtts.text.tokenizer import XTTSTokenizer


def load_model(
    folder: str | Path, which: str = "best", only_speech: bool = False
) -> tuple[XTTS, XTTSTokenizer, XTTSConfig]:
    """Reads what speaking needs: `config.json`, `vocab.json` and a checkpoint of each trained part.

    Of GPT and waveform decoder the `best` or the `last` checkpoint is taken, as `which` says; of other parts the last.
    Where the GPT's checkpoint says what it was made with, that counts, and the log tells what differs. `only_speech`
    leaves out the DVAE of a model whose waveform decoder makes the sound; making a layer takes longer than reading it.

    Raises:
        CheckpointError: Something is missing or damaged; the message says what and how to get it.
    """
    folder = Path(folder)
    require_model_folder(folder, "A model (--checkpoint)")
    config = read_config(folder)
    stores = _trained_parts(folder)
    steps = {part: chosen_step(store, part, which) for part, store in stores.items()}
    check_claims(config.model, stores)
    tokenizer = read_tokenizer(folder).with_g2p(config.data.g2p or ())
    left_out = {"dvae"} & stores.keys() if only_speech and "decoder" in stores else set()
    model = XTTS(config.model, parts=tuple(part for part in stores if part not in left_out))
    for part, store in stores.items():
        # A GPT without its DVAE brings the statistics that the DVAE has otherwise.
        stats = [MEL_STATS] if part == "gpt" and "dvae" not in stores else []
        weights = model.part_weights(part) if part not in left_out else {MEL_STATS: model.mel_stats}
        weights |= dict.fromkeys(stats, model.mel_stats)
        files, _ = store.read(steps[part], ("model", *stats))
        arrays = {name: array for file in files.values() for name, array in file.items()}
        arrays = {MEL_STATS: arrays[MEL_STATS]} if part in left_out else arrays
        if bad := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
            held = f"{store.path(steps[part])} holds NaN or infinity in {len(bad)} weights, such as {bad[0]}"
            raise CheckpointError(f"{held}: it cannot speak. Take another checkpoint with --which, or train it again.")
        assign_by_name(weights, arrays, str(store.path(steps[part])))
    codes_from = stores["gpt"].read_state(steps["gpt"]).get("lineage", {}).get("dvae")
    if "dvae" in stores and codes_from and codes_from != stores["dvae"].digest(steps["dvae"]):
        raise CheckpointError(
            f"The GPT in {folder} was trained on the codes of another DVAE than the one there. "
            "Train the GPT again with --stage gpt --reset-training."
        )
    return model, tokenizer, config


def _trained_parts(folder: Path) -> dict[str, CheckpointStore]:
    """The stores of the parts that speak, by part; raises unless they can do so together."""
    stores = {part: store for part in PARTS if (store := CheckpointStore(folder / part)).steps()}
    for part, instead in (("gpt", None), ("dvae", "decoder")):
        if part not in stores and instead not in stores:
            nor = f" and no waveform {instead}: its codes cannot become sound" if instead else " yet"
            raise CheckpointError(f"{folder} has no trained {part}{nor}. {_training(part, folder)}")
    if "decoder" not in stores:
        stores.pop("speaker", None)  # Griffin-Lim does not ask whose voice it is
    elif "speaker" not in stores:
        lack = f"{folder} has a waveform decoder and no speaker encoder, which tells it whose voice to speak in"
        raise CheckpointError(f"{lack}. {_training('speaker', folder)}")
    return stores


def _training(part, folder):
    return f"Train it with: python train_main.py --stage {part} --checkpoint-dir {folder} --train-data …"


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
        raise UserError(
            "save_to_preset also writes the tokenizer, and this model has none. "
            "Train the model with XTTSTrainer(config, model=model), or set model.preset = (tokenizer, config)."
        )
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

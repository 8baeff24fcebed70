"""Loads a model from the folder of a training run or the output of `myxtts convert`. Saves a model to a folder."""

import logging
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from myxtts.config.checks import UserError, brief, is_new_or_empty, require
from myxtts.inference.text_front import open_text_front
from myxtts.memory.report import check_claims
from myxtts.models.layers import blank_weights, shared_array
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.base_model import require_kind
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.files import refusing_unwritable, write_json, write_whole_folder
from myxtts.storage.run_folder import CONFIDENCE_FILE, MEL_STATS, RETRAIN, TRAIN, chosen_step, stores_in
from myxtts.storage.speakers import SPEAKER_CLIPS, SPEAKERS_FILE
from myxtts.text.speech_rates import SPEECH_RATES, read_rates, write_rates
from myxtts.utils.commons import progress_bar


def load_model(folder: str | PathLike, which: str = "best", only_speech: bool = False) -> XTTS:
    """Loads a model from a folder. The model's attribute `preset` is `(tokenizer, configuration)`.

    Args:
        folder: Folder of a training run, or output folder of `myxtts convert`.
        which: Checkpoint of the GPT and the waveform decoder, `best` or `last`. Other parts use their last checkpoint.
        only_speech: Whether to skip the DVAE if the model has XTTS's waveform decoder. Other models need the DVAE.

    Raises `UserError` if the model lacks a part that it needs to speak, or if a file is missing or damaged.
    """
    require(which in ("best", "last"), "which", "best or last", brief(which))
    also = "myxtts.load also takes hf://owner/name and the folder of XTTS v2"
    folder = require_kind(folder, forms=f"the folder of a training run or of `myxtts convert`, or base; {also}")
    front, config = open_text_front(folder)
    stores = {part: store for part, store in stores_in(folder).items() if part in PARTS}
    lacks = {"gpt": "no trained gpt"}
    if "decoder" in stores:
        lacks["speaker"] = "no speaker encoder, which its waveform decoder needs"
    else:
        lacks["dvae"] = "no trained dvae and no waveform decoder"
        stores.pop("speaker", None)  # Griffin-Lim needs no speaker vector
    if missing := next((part for part in lacks if part not in stores), None):
        raise CheckpointError(f"{folder} has {lacks[missing]}. Train it: {TRAIN.format(missing, folder)}")
    steps = {part: chosen_step(store, part, which) for part, store in stores.items()}
    check_claims(config.model, stores)
    is_released = config.model.decoder_type == "hifigan"  # the self-check of smaller models uses the DVAE
    skipped = "dvae" if only_speech and is_released and "decoder" in stores else None
    with blank_weights():
        model = XTTS(config.model, parts=tuple(part for part in stores if part != skipped))
    with progress_bar("loading", "part") as progress:
        for done, (part, store) in enumerate(stores.items()):
            progress(done, len(stores))
            step, stats = steps[part], {MEL_STATS: model.mel_stats}
            where = str(store.path(step))
            if part == skipped:
                _assign(stats, {MEL_STATS: store.open(step)[MEL_STATS]}, where)
            else:
                _assign(model.part_weights(part), store.open(step), where)
            if part == "gpt" and "dvae" not in stores:  # then the mel statistics are a separate file
                _assign(stats, store.open(step, MEL_STATS), where)
    codes_from = stores["gpt"].read_state(steps["gpt"]).get("lineage", {}).get("dvae")
    if "dvae" in stores and codes_from and codes_from != stores["dvae"].digest(steps["dvae"]):
        raise CheckpointError(f"The GPT in {folder} was trained on the codes of another DVAE. {RETRAIN.format('gpt')}")
    model.preset, model.origin = (front.tokenizer, config), str(folder.absolute())
    return model


def _assign(weights, arrays, where):
    """Assigns arrays to weights by name. Wrong names, shapes or values raise a `CheckpointError` that names `where`."""
    assign_by_name(weights, arrays, where)
    _check_finite(weights, where)


def _check_finite(weights, where):
    if bad := [name for name, variable in weights.items() if not np.isfinite(shared_array(variable)).all()]:
        raise CheckpointError(f"{where} has NaN or infinity in {len(bad)} weights, such as {bad[0]}. Try --which.")


def save_to_preset(model: XTTS, folder: str | PathLike) -> None:
    """Saves a model with tokenizer, configuration and stored voices to a folder that `myxtts.load` can load.

    If the model was loaded from a folder with recordings of speakers, logs a warning, and does not copy the recordings.
    Raises `UserError` if `model.preset` is None, a weight is not finite, or `folder` is not empty or not writable.
    """
    folder = Path(folder)
    if model.preset is None:
        raise UserError("save_to_preset needs a tokenizer. Set model.preset = (tokenizer, config), or use XTTSTrainer.")
    require(is_new_or_empty(folder), "The folder of save_to_preset", "new or empty", folder)
    tokenizer, config = model.preset[0], replace(model.preset[1], model=model.config)
    rates = read_rates(model.origin) if model.origin else {}
    adapted = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    require(not adapted, "The model to save", "without LoRA adapters", len(adapted), "Load its run, which merges them.")
    holder = "dvae" if "dvae" in model.parts else "gpt"  # part whose checkpoint holds the mel statistics
    for weights in ({MEL_STATS: model.mel_stats}, *map(model.part_weights, model.parts)):
        _check_finite(weights, "The model")
    with refusing_unwritable(folder), write_whole_folder(folder) as new:
        tokenizer.save(new / "vocab.json")
        write_json(new / "config.json", config.to_dict())
        for name in (SPEAKERS_FILE, CONFIDENCE_FILE):
            if model.origin and (copied := Path(model.origin, name)).is_file():
                (new / name).write_bytes(copied.read_bytes())
        if model.origin and (clips := Path(model.origin, SPEAKER_CLIPS)).is_dir():
            logging.getLogger(__name__).warning("The voices in %s were not copied, because they are recordings.", clips)
        for part in model.parts:
            weights = {name: variable.numpy() for name, variable in model.part_weights(part).items()}
            files = {MEL_STATS: {MEL_STATS: model.mel_stats.numpy()}} if part == holder == "gpt" else {}
            copies = {SPEECH_RATES: write_rates(rates)} if part == "gpt" and rates else {}
            CheckpointStore(new / part).write(0, {"model": weights, **files}, {"finished": True}, True, copies)

"""Values of the training form: the source of a run chooses a recipe, and flags are what the form changes of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from myxtts.config.config import XTTSConfig
from myxtts.config.flags import Flag, all_flags
from myxtts.config.loading import config_from_dict
from myxtts.config.recipes import SAMPLE
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE, TrainingConfig
from myxtts.interchange.hub.fetching import folder_here
from myxtts.storage.base_model import is_base
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import read_json
from myxtts.storage.provenance import read_config
from myxtts.text.languages import DEFAULT_LANGUAGE

XTTS_V2 = "hf://coqui/XTTS-v2"
OWN = "config.json"
"""In place of a recipe: the settings that the run in the folder has already."""
FINETUNE_BASE, FINETUNE_RELEASE = "finetune_base.yaml", "finetune_xtts_v2.yaml"
RELEASED_SIZE = "big"
LOWER_RATE = 5
"""The rate from random weights over that of `finetune_base.yaml`, for models of other sizes."""
MAIN = "train_data", "language", "init_from", "model_size", "stage", "batch_size", "epochs", "max_steps", "grad_accum"
MAIN += ("save_every",)
MORE = "lr", "tune", "lora_rank", "sample_languages", "val_data", "seed", "keep", "validate_every", "sample_every"
MORE += "evaluate_every", "recognizer", "best_by", "data_gpu", "model_gpu", "optimizations", "precision", "attention"
MORE += "gradient_checkpointing", "xla", "tf32", "strict", "accept_licence"
"""Flags of the form, by their names in Python: those in view, and those among more settings."""
FLAGS: Mapping[str, Flag] = {name: flag for flag in all_flags() for name in flag.keywords}
SWITCHES = "yes", "on/off"
"""Kinds of flags that are check boxes."""


@dataclass(frozen=True)
class Preset:
    """The form for what a run starts from."""

    recipe: str
    """Name of a recipe, `OWN`, or "" for the defaults."""
    values: dict[str, Any]
    """Of the form, by the names of `MAIN`, `MORE` and `amharic_g2p`."""
    stages: list[list]
    """Rows of the stages that train: name, steps, batch size and peak learning rate."""


def preset_for(source: str | None, folder: Path, recipe: str | None = None) -> Preset:
    """The form for a run in `folder` that starts from a model.

    Args:
        source: As of `--init-from`; "" or None for random weights.
        recipe: None chooses: the run's own settings where there is a run, else the recipe for the source.

    Raises:
        UserError: The source or the run is damaged.
    """
    known = {} if not source else _model_in(source)
    if recipe is None:
        recipe = OWN if (folder / OWN).is_file() else _recipe_for(source, known)
    config = config_in(recipe, folder)
    values = values_of(config)
    if recipe != OWN:
        values |= dict(init_from=source or "")
        if source and recipe == FINETUNE_BASE and not is_base(source):
            values |= _rates_for(known)
        if known:
            values |= dict(model_size=known["size"], amharic_g2p="am" in known["g2p"])
    return Preset(recipe, values, stages_of(config, values))


def config_in(recipe: str, folder: Path) -> XTTSConfig:
    """The settings that a recipe has, before the form changes them."""
    if recipe == OWN:
        return config_from_dict(read_json(folder / OWN))
    return XTTSConfig.from_yaml(recipe) if recipe else XTTSConfig()


def values_of(config: XTTSConfig) -> dict[str, Any]:
    """What the form shows of settings; None where a flag sets several that differ."""
    nested = config.to_dict()
    values = {name: _value_in(nested, FLAGS[name]) for name in (*MAIN, *MORE)}
    values["language"] = values["language"] or DEFAULT_LANGUAGE
    return values | dict(amharic_g2p="am" in (config.data.g2p or ()))


def stages_of(config: XTTSConfig, values: Mapping[str, Any]) -> list[list]:
    """Rows of the stages that train, with what the form sets for all of them."""
    names, tuned = list(STAGES), [name for name in (values["tune"] or "").split(",") if name]
    if values["stage"] != "all":
        names = [values["stage"]]
    elif values["init_from"]:
        names = tuned or (list(TUNABLE) if is_base(values["init_from"]) else ["gpt"])
    rows = []
    for name in names:
        stage = config.stage(name)
        steps = values["max_steps"] or stage.max_steps or f"{int(values['epochs'])} epochs"
        rows.append([name, steps, stage.batch_size, f"{values['lr'] or stage.learning_rate:.1e}"])
    return rows


def training_flags(recipe: str, folder: Path, values: Mapping[str, Any]) -> list[str]:
    """The flags of `myxtts train` for a form: a recipe, and what differs from it."""
    has_data = bool((values["train_data"] or "").strip())
    recipe = recipe or ("" if has_data else SAMPLE)
    config = config_in(recipe, folder)
    before = values_of(config) | dict(language=config.data.language)
    flags = [f"--config={folder / OWN if recipe == OWN else recipe}"] if recipe else []
    for name in (*MAIN, *MORE):
        flag, value = FLAGS[name], _plain(values.get(name))
        left_out = name == "language" and not has_data or name == "model_size" and values["init_from"]
        if left_out or value == _plain(before[name]):
            continue
        if flag.kind in SWITCHES:
            flags += [flag.names[0]] if value else [f"--no-{flag.names[0][2:]}"] * (flag.kind == "on/off")
        elif value is not None:
            flags.append(f"{flag.names[0]}={value}")
    source, sounds = values["init_from"], config.data.g2p or ()
    if source and recipe != OWN:
        sounds = _model_in(source).get("g2p", ())
    if values["amharic_g2p"] != ("am" in sounds):
        kept = [one for one in sounds if one != "am"]
        flags += [f"--g2p={one}" for one in (["am"] if values["amharic_g2p"] else []) + kept]
    return flags


def choices_of(name: str) -> tuple | None:
    """The values that a flag of the form allows; None where there is no list of them."""
    rules = {one.name: one.metadata.get("rule", {}) for one in fields(TrainingConfig)}
    return rules.get(FLAGS[name].settings[0].removeprefix("training."), {}).get("one_of")


def _recipe_for(source, known):
    if not source:
        return ""
    return FINETUNE_RELEASE if known.get("released", source == XTTS_V2) else FINETUNE_BASE


def _model_in(source):
    """What is known of a model before training: its size, what it reads as sounds, its stages; nothing of the hub's."""
    if source == XTTS_V2:
        return dict(size=RELEASED_SIZE, g2p=(), released=True, stages=())
    if (folder := folder_here(source)) is None:
        return {}
    config, state = read_config(folder), CheckpointStore(folder / "gpt").newest_state() or {}
    released = config.model.size == RELEASED_SIZE or "converted_from" in state
    stages = [name for name in TUNABLE if CheckpointStore(folder / name).steps()]
    return dict(size=config.model.size, g2p=config.data.g2p or (), released=released, stages=stages)


def _rates_for(known):
    """What makes `finetune_base.yaml` one for a run: all its stages train on, at a rate that suits its size."""
    base, size = config_in(FINETUNE_BASE, Path()).model.size, known.get("size")
    stages = tuple(known.get("stages", ()))
    rate = STAGES["gpt"].learning_rates[size] / LOWER_RATE if size not in (None, base) else None
    return dict(tune=",".join(TUNABLE) if stages == TUNABLE else "", lr=rate)


def _value_in(nested, flag):
    section, _, rest = flag.settings[0].partition(".")
    if section == "stage":
        found = {json.dumps(nested["training"][name][rest]) for name in STAGES}
        return json.loads(found.pop()) if len(found) == 1 else None
    value = nested[section]
    for name in rest.split("."):
        value = value[name]
    return ",".join(value) if isinstance(value, list | tuple) else value


def _plain(value):
    """A value of the form as it is compared: None for an empty box and for a switch that is off."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is False else value

"""Content of the training form. Settings declared with `page="main"` or `page="more"` have an input in the form.
Initial values come from a recipe (YAML). Values that the user changes become flags of `myxtts train`."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.apps.studio.texts import PageError
from myxtts.config.config import SAMPLE, XTTSConfig, config_from_dict
from myxtts.config.flags import EVERY_STAGE, Flag, all_flags
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE
from myxtts.interchange.hub import is_hub_name, local_folder
from myxtts.storage.base_model import MODELS, RELEASE, TRAINER, is_base, kind_of
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import read_json
from myxtts.storage.run_folder import read_config
from myxtts.text.languages import DEFAULT_LANGUAGE

XTTS_V2 = "hf://coqui/XTTS-v2"
OWN = "config.json"
"""Recipe name that stands for the settings of the existing run."""
FINETUNE_BASE, FINETUNE_RELEASE = "finetune_base.yaml", "finetune_xtts_v2.yaml"
RELEASED_SIZE = "big"
FLAGS: Mapping[str, Flag] = {
    flag.keywords[0]: flag for flag in all_flags() if flag.field.metadata["page"] and not flag.turns_off
}
"""Flags of `myxtts train` that the form has an input for, by their Python names."""


class Preset(NamedTuple):
    """Initial content of the training form."""

    recipe: str
    """Name of a recipe, `OWN` for the settings of the run, or "" for the defaults."""
    values: dict[str, Any]
    """Value of each input, by the names in `FLAGS`."""
    stages: list[list]
    """Table row of each stage to train: name, steps, batch size and peak learning rate."""


def preset_for(source: str | None, folder: Path, recipe: str | None = None) -> Preset:
    """Returns the initial form content for a run in `folder` that starts from the model `source` (None: from scratch).
    If `recipe` is None, the form shows the settings of the existing run or, for a new run, settings that suit `source`.
    Raises `UserError` if the files of that model or of the existing run are damaged."""
    known = _model_in(source) if source else {}
    if recipe is None:
        recipe = OWN if (folder / OWN).is_file() else ""
        if source and not recipe:
            recipe = FINETUNE_RELEASE if known.get("released") else FINETUNE_BASE
    config = config_in(recipe, folder)
    values = values_of(config)
    if recipe != OWN:
        values |= dict(init_from=source or "", language=values["language"] or DEFAULT_LANGUAGE)
        if source and recipe == FINETUNE_BASE and not is_base(source):
            # For another model, the stages to tune and the learning rate (a fifth of the training rate) differ.
            size = known.get("size")
            rate = STAGES["gpt"].learning_rates[size] / 5 if size not in (None, config.model.size) else None
            values |= dict(tune=",".join(TUNABLE) if known.get("stages") == TUNABLE else "", lr=rate)
        if known:
            values |= dict(model_size=known["size"], g2p=",".join(known["g2p"]))
    return Preset(recipe, values, stages_of(config, values))


def config_in(recipe: str, folder: Path) -> XTTSConfig:
    """Loads the configuration of a recipe. "" means the defaults, `OWN` means the settings of the run in `folder`."""
    if recipe == OWN:
        return config_from_dict(read_json(folder / OWN))
    return XTTSConfig.from_yaml(recipe) if recipe else XTTSConfig()


def values_of(config: XTTSConfig) -> dict[str, Any]:
    """Converts a configuration to form values. A per-stage setting is None if its value differs between stages."""
    return {name: _value_in(config, flag.settings[0]) for name, flag in FLAGS.items()}


def stages_of(config: XTTSConfig, values: Mapping[str, Any]) -> list[list]:
    """Returns `[name, steps, batch size, learning rate]` for each stage that a run with the form's `values` trains."""
    names = [name for name in STAGES if name not in config.training.leave_out]
    if values["stage"] != "all":
        names = [values["stage"]]
    elif values["init_from"]:
        tuned = {*_names(values["tune"])} & {*STAGES} or (TUNABLE if is_base(values["init_from"]) else ["gpt"])
        names = [name for name in names if name in tuned]  # without a partly typed name
    rows, batch = [], values["batch_size"] if str(values["batch_size"]) != str(config.data.batch_size) else None
    for name in names:
        stage = config.stage(name)
        steps = values["max_steps"] or stage.max_steps or f"{values['epochs']} epochs"
        rate = values["lr"] or stage.learning_rate
        rows.append([name, steps, batch or stage.batch_size, f"{rate:.1e}" if isinstance(rate, float) else rate])
    return rows


def training_flags(recipe: str, folder: Path, values: Mapping[str, Any]) -> list[str]:
    """Converts the form to flags of `myxtts train`: `--config` for the recipe, and a flag for each changed value."""
    has_data, source = bool((values["train_data"] or "").strip()), values["init_from"]
    recipe = recipe or ("" if has_data else SAMPLE)
    before = values_of(config_in(recipe, folder))
    if source and recipe != OWN:
        before["g2p"] = ",".join(_model_in(source).get("g2p", ()))
    left_out = ["language"] * (not has_data) + ["model_size"] * bool(source)
    flags = [f"--config={folder / OWN if recipe == OWN else recipe}"] if recipe else []
    for name, flag in FLAGS.items():
        value, long_name = _plain(values.get(name)), flag.names[0]
        if name in left_out or value == _plain(before[name]):
            continue
        if flag.kind is bool:
            flags.append(long_name if value else f"--no-{long_name[2:]}")
        elif value is None and recipe:
            raise PageError("not_cleared", long_name)
        elif value is not None:
            flags += [f"{long_name}={one}" for one in (_names(value) if flag.repeats else [value])]
    return flags


def _model_in(source):
    """Returns a dict with a model's `size`, `g2p`, trained `stages` and `released` (True for XTTS v2, converted models
    and models of XTTS v2's size). Returns {} if `source` is neither XTTS v2 nor a model on this machine."""
    if source == XTTS_V2:
        return dict(size=RELEASED_SIZE, g2p=(), released=True, stages=())
    if is_hub_name(source) or kind_of(source) not in (*MODELS, RELEASE, TRAINER):  # starting the run reports it
        return {}
    folder = local_folder(source, what="--init-from")
    config, state = read_config(folder), CheckpointStore(folder / "gpt").newest_state() or {}
    released = config.model.size == RELEASED_SIZE or "converted_from" in state
    stages = tuple(name for name in TUNABLE if CheckpointStore(folder / name).steps())
    return dict(size=config.model.size, g2p=config.data.g2p or (), released=released, stages=stages)


def _value_in(config, place):
    section, _, rest = place.partition(".")
    if section == EVERY_STAGE:
        found = {getattr(getattr(config.training, name), rest) for name in STAGES}
        return found.pop() if len(found) == 1 else None
    value = attrgetter(place)(config)
    return ",".join(value) if isinstance(value, list | tuple) else value


def _names(value):
    return [name.strip() for name in (value or "").split(",")]


def _plain(value):
    """Converts a value of the form to text, for comparisons. Returns None if the value is empty or switched off."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or value is False else str(value).strip() or None

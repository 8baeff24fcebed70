"""YAML files and dictionaries -> `XTTSConfig`, with unknown names refused and the nearest known one offered."""

import logging
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import get_args, get_origin

import yaml

from myxtts.config.checks import UNPRINTABLE, ConfigError, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.settings import nearest
from myxtts.config.stages import STAGES, StageConfig, default_stage_config
from myxtts.config.training import TrainingConfig

logger = logging.getLogger(__name__)

RENAMED = {"training.mel_loss_weight": "code_loss_weight", "model.vocoder_channels": "decoder_channels"}
"""Settings that had another name once: files that hold the old one are read, and the log says the new one."""


def config_from_dict(values: dict) -> XTTSConfig:
    """Builds an `XTTSConfig` from nested mappings. `model.size` picks the preset that the other fields change.

    Raises:
        ConfigError: An unknown setting, or one that breaks a rule.
    """
    sections = {one.name: one.default_factory for one in fields(XTTSConfig)}
    values = _mapping(values, "The configuration")
    for name in values:
        if name not in sections:
            raise ConfigError(f"{printable(str(name))} is not a setting.{nearest(str(name), sections)}")
    return XTTSConfig(**{name: _section(cls, values.get(name) or {}, name) for name, cls in sections.items()})


def _section(cls, values, where):
    values = {_current_name(name, where): value for name, value in _mapping(values, where).items()}
    stages = {}
    for name in STAGES if cls is TrainingConfig else ():
        if name in values:
            given = _typed(StageConfig, values.pop(name) or {}, f"{where}.{name}")
            stages[name] = default_stage_config(name, **given)
    return cls(**_typed(cls, values, where), **stages)


def _current_name(name, where):
    current = RENAMED.get(f"{where}.{name}")
    if current is not None:
        logger.info("The setting %s.%s is now called %s.%s.", where, name, where, current)
    return current or name


def _mapping(values, where):
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a mapping of settings. Received: {values!r}.")
    return values


def _typed(cls, values, where):
    """`values` as a mapping of settings of `cls`, each of the type that its field declares."""
    kinds = {one.name: one.type for one in fields(cls) if one.name != "stages"}
    for name in _mapping(values, where):
        if name not in kinds:
            raise ConfigError(f"{where}.{printable(str(name))} is not a setting.{nearest(str(name), kinds)}")
    return {name: _value(kinds[name], value, f"{where}.{name}") for name, value in values.items()}


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _value(kind, value, where):
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        repeated = parts[-1] is Ellipsis
        if not isinstance(value, (list, tuple)) or not (repeated or len(value) == len(parts)):
            how_many = "" if repeated else f"{len(parts)} "
            raise ConfigError(f"{where} must be a list of {how_many}numbers. Received: {value!r}.")
        return tuple(_value(parts[0], item, where) for item in value)
    if kind is float and isinstance(value, str):
        # YAML 1.1 reads 1e-3, without a point, as text.
        try:
            return float(value)
        except ValueError:
            pass
    is_of_kind = isinstance(value, (int, float) if kind is float else kind)
    if not is_of_kind or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{where} must be {_TYPE_NAMES[kind]}. Received: {value!r}.")
    if kind is str and UNPRINTABLE.search(value):
        raise ConfigError(f"{where} must be text without control or direction characters. Received: {value!r}.")
    return float(value) if kind is float else value


def read_yaml(path: str | Path) -> dict:
    """A YAML file as nested mappings, with the files it names under `include:` underneath.

    Raises:
        ConfigError: The file is missing, not YAML, not a mapping, or includes itself.
    """
    return _read_yaml(Path(path), ())


def _read_yaml(path, above):
    if path.resolve() in above:
        raise ConfigError(f"{path} includes itself, through {' -> '.join(map(str, above))}.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(f"--config must be a YAML file. {path} is not there.") from None
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config must be a YAML file. {path} cannot be read: {reason}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings. Received: {type(values).__name__}.")
    included = values.pop("include", [])
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise ConfigError(f"include: in {path} must be a file name or a list of them. Received: {included!r}.")
    merged = {}
    for name in included:
        merged = merge(merged, _read_yaml(path.parent / name, (*above, path.resolve())))
    return merge(merged, values)


def merge(below: dict, above: dict) -> dict:
    """`above` laid over `below`, mapping by mapping."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged

"""YAML files and dictionaries -> `XTTSConfig`, with unknown names refused and the nearest known one offered."""

import difflib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import get_args, get_origin

import yaml

from myxtts.config.config import ConfigError, ModelConfig, XTTSConfig


def config_from_dict(values):
    """Builds an `XTTSConfig` from nested mappings. `model.size` picks the preset that the other fields change.

    Raises:
        ConfigError: An unknown setting, or one that breaks a rule.
    """
    sections = {f.name: f.default_factory for f in fields(XTTSConfig)}
    values = {section: content or {} for section, content in _known(XTTSConfig, values, "").items()}
    built = {}
    for section, factory in sections.items():
        content = _typed(type(factory()), values.get(section, {}), section)
        if section == "model":
            built[section] = ModelConfig.of_size(content.pop("size", "tiny"), **content)
        else:
            built[section] = _build(factory, content)
    return XTTSConfig(**built)


def _build(factory, content):
    default = factory()
    nested = {name: type(getattr(default, name))(**{**vars(getattr(default, name)), **value})
              for name, value in content.items() if is_dataclass(getattr(default, name))}
    return type(default)(**{**content, **nested})


def _known(cls, values, where):
    if not isinstance(values, dict):
        raise ConfigError(f"{where or 'The configuration'} must be a mapping of settings. Received: {values!r}.")
    names = [f.name for f in fields(cls)]
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {close[0]}?" if close else f" Known: {', '.join(names)}."
            raise ConfigError(f"{where + '.' if where else ''}{name} is not a setting.{hint}")
    return values


def _typed(cls, values, where):
    """`values` as a mapping of settings of `cls`, each of the type that its field declares."""
    kinds = {f.name: f.type for f in fields(cls)}
    return {name: _value(kinds[name], value, f"{where}.{name}") for name, value in _known(cls, values, where).items()}


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _value(kind, value, where):
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if is_dataclass(kind):
        return _typed(kind, value or {}, where)
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
    return float(value) if kind is float else value


def read_yaml(path):
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


def merge(below, above):
    """`above` laid over `below`, mapping by mapping."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged

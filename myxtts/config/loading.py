"""YAML files and dictionaries -> `XTTSConfig`, with unknown names refused and the nearest known one offered."""

import difflib
from dataclasses import fields, is_dataclass
from pathlib import Path

import yaml

from myxtts.config.config import ConfigError, ModelConfig, XTTSConfig


def config_from_dict(values):
    """Builds an `XTTSConfig` from nested mappings. `model.size` picks the preset that the other fields change.

    Raises:
        ConfigError: An unknown setting, or one that breaks a rule.
    """
    values = {section: dict(content or {}) for section, content in _known(XTTSConfig, values, "").items()}
    sections = {f.name: f.default_factory for f in fields(XTTSConfig)}
    built = {}
    for section, factory in sections.items():
        content = _known(type(factory()), values.get(section, {}), section)
        if section == "model":
            content = dict(content)
            built[section] = ModelConfig.of_size(content.pop("size", "tiny"), **content)
        else:
            built[section] = _build(factory, content, section)
    return XTTSConfig(**built)


def _build(factory, content, where):
    default = factory()
    for name, value in content.items():
        nested = getattr(default, name)
        if is_dataclass(nested) and isinstance(value, dict):
            known = _known(type(nested), value, f"{where}.{name}")
            content = {**content, name: type(nested)(**{**vars(nested), **known})}
    return type(default)(**content)


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


def read_yaml(path):
    """A YAML file as nested mappings, with the files it names under `include:` underneath.

    Raises:
        ConfigError: The file is missing, not YAML, not a mapping, or includes itself.
    """
    return _read_yaml(Path(path), ())


def _read_yaml(path, above):
    if path in above:
        raise ConfigError(f"{path} includes itself, through {' -> '.join(map(str, above))}.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(f"--config must be a YAML file. {path} is not there.") from None
    except (IsADirectoryError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config must be a YAML file. {path} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings. Received: {type(values).__name__}.")
    included = values.pop("include", [])
    merged = {}
    for name in [included] if isinstance(included, str) else included:
        merged = merge(merged, _read_yaml((path.parent / name).resolve(), (*above, path)))
    return merge(merged, values)


def merge(below, above):
    """`above` laid over `below`, mapping by mapping."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged

"""YAML files and dictionaries -> `XTTSConfig`, with unknown names refused and the nearest known one offered."""

import itertools
import os
from dataclasses import fields
from pathlib import Path

import yaml

from myxtts.config.checks import UNPRINTABLE, ConfigError, brief, printable, read_bounded
from myxtts.config.config import XTTSConfig
from myxtts.config.recipes import RECIPES, recipe_names
from myxtts.config.settings import REMOVED, merge, nearest, typed_value
from myxtts.config.stages import STAGES
from myxtts.config.training import TrainingConfig

_MAX_FILE_BYTES = 64 * 2**10
_MAX_FILES = 100
_MAX_VALUES = 10_000
"""Limits on one YAML file, on the files read through `include:`, and on a file's values with each alias written out;
the shipped ones take a hundredth of each."""
_SENSELESS = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What PyYAML raises, besides its own error, for values that are not of their tag: `!!int ""`."""


def config_from_dict(values: dict) -> XTTSConfig:
    """Builds an `XTTSConfig` from nested mappings. `model.size` picks the preset that the other fields change.

    A setting that is gone is ignored where it has its former default, as in the `config.json` of a run.

    Raises:
        ConfigError: An unknown setting, or one that breaks a rule.
    """
    sections = {one.name: one.default_factory for one in fields(XTTSConfig)}
    values = _mapping(values, "The configuration")
    for name in values:
        if name not in sections:
            raise ConfigError(f"{printable(name)} is not a setting.{nearest(name, sections)}")
    return XTTSConfig(**{name: _section(cls, values.get(name) or {}, name) for name, cls in sections.items()})


def _section(cls, values, where):
    values, stages = _mapping(values, where), {}
    for name, entry in STAGES.items() if cls is TrainingConfig else ():
        if name in values:
            stages[name] = entry.make_settings(**_typed(entry.settings, values.pop(name) or {}, f"{where}.{name}"))
    return cls(**_typed(cls, values, where), **stages)


def _mapping(values, where):
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a mapping of settings. Received: {brief(values)}.")
    return {name if isinstance(name, str) else brief(name): value for name, value in values.items()}


def _typed(cls, values, where):
    """`values` as a mapping of settings of `cls`, each of the type that its field declares."""
    kinds, typed = {one.name: one.type for one in fields(cls) if one.name != "stages"}, {}
    for name, value in _mapping(values, where).items():
        setting = f"{where}.{printable(name)}"
        if name in kinds:
            typed[name] = typed_value(kinds[name], value, setting)
        elif setting not in REMOVED:
            raise ConfigError(f"{setting} is not a setting.{nearest(name, kinds)}")
        elif value != REMOVED[setting][0]:
            raise ConfigError(f"{setting} is no setting any more. {REMOVED[setting][1]} Received: {brief(value)}.")
    return typed


class _BoundedLoader(yaml.SafeLoader):
    """Refuses a file whose aliases, written out, would be more values than anyone writes, or would never end."""

    def construct_document(self, node):
        waiting, count = [node], 0
        while waiting:
            children, count = waiting.pop().value, count + 1
            if isinstance(children, list):
                waiting += (part for child in children for part in (child if type(child) is tuple else (child,)))
            if count + len(waiting) > _MAX_VALUES:
                raise yaml.YAMLError(f"with its aliases written out it has more than {_MAX_VALUES} values")
        return super().construct_document(node)


def read_yaml(path: str | Path) -> dict:
    """A YAML file as nested mappings, with the files it names under `include:`, from its folder, underneath.

    Raises:
        ConfigError: The file is missing, not YAML, too large, not a mapping, or includes itself or one from elsewhere.
    """
    path = Path(path)
    return _read_yaml(path, os.path.realpath(path.parent), (), itertools.count(1))


def _read_yaml(path, root, above, files):
    if (resolved := os.path.realpath(path)) in above:
        raise ConfigError(f"{path} includes itself, through {' -> '.join(map(str, above))}.")
    if next(files) > _MAX_FILES:
        raise ConfigError(f"--config must include at most {_MAX_FILES} files in all. {path} is one more.")
    try:
        values = yaml.load(read_bounded(path, _MAX_FILE_BYTES), _BoundedLoader) or {}
    except FileNotFoundError:
        known = f"The recipes {', '.join(recipe_names())} can be named from anywhere"
        raise ConfigError(f"--config must be a YAML file. {path} is not there. {known}.") from None
    except (*_SENSELESS, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)  # the error's own text quotes the file, which may be anyone's
        reason = f"{error.problem} in line {mark.line + 1}" if mark else " ".join(str(error).split())
        raise ConfigError(f"--config must be a YAML file. {path} cannot be read: {reason:.300}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings. Received: {type(values).__name__}.")
    included = values.pop("include", [])
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise ConfigError(f"include: in {path} must be a file name or a list of them. Received: {brief(included)}.")
    merged = {}
    for name in included:
        if UNPRINTABLE.search(name) or not Path(os.path.realpath(path.parent / name)).is_relative_to(root):
            raise ConfigError(f"include: in {path} must be in {root} or below. Received: {brief(name)}. Copy it there.")
        # A copy of a recipe includes the recipe that its original includes.
        place = path.parent / name if (path.parent / name).exists() or name not in recipe_names() else RECIPES / name
        merged = merge(merged, _read_yaml(place, root, (*above, resolved), files))
    return merge(merged, values)

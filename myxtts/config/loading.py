"""Loading of `XTTSConfig` from YAML files, recipes and dictionaries."""

import itertools
import os
from dataclasses import fields
from pathlib import Path

import yaml

from myxtts.config.checks import UNPRINTABLE, ConfigError, brief, printable, read_bounded
from myxtts.config.config import XTTSConfig
from myxtts.config.settings import REMOVED, merge, nearest, typed_value
from myxtts.config.stages import STAGES
from myxtts.config.training import TrainingConfig

_PACKAGE = Path(__file__).resolve().parents[1]
RECIPES: Path = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "configs"
"""Folder of the recipes: `myxtts/recipes/` of an installed package, `configs/` of a checkout."""
SAMPLE = "sample.yaml"
"""Recipe of a run without data and configuration."""
_MAX_FILE_BYTES = 64 * 2**10
_MAX_FILES = 100
_MAX_VALUES = 10_000
"""Limits of one YAML file, of the files that it includes, and of its values with aliases expanded; the recipes take a
hundredth of each."""
_VALUE_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""Errors of PyYAML, besides `yaml.YAMLError`, for values that do not fit their tag, such as `!!int ""`."""


def recipe_names() -> list[str]:
    """Returns the sorted file names of the recipes."""
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def find_recipe(path: str | os.PathLike) -> Path:
    """Returns the file for `--config`: an existing path, else the recipe named `NAME` or `configs/NAME`."""
    path = Path(path)
    is_recipe = path.name in recipe_names() and path.parent.as_posix() in (".", "configs")
    return RECIPES / path.name if is_recipe and not path.exists() else path


def config_from_dict(values: dict) -> XTTSConfig:
    """Builds an `XTTSConfig` from nested dictionaries. `model.size` selects the shapes that other fields override.

    A removed setting is ignored if it has its former default, as in the `config.json` of older runs.

    Raises:
        ConfigError: A setting is unknown or breaks a rule.
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
    """Checks the names and types of the settings of `cls`."""
    kinds, typed = {one.name: one.type for one in fields(cls) if one.name != "stages"}, {}
    for name, value in _mapping(values, where).items():
        setting = f"{where}.{printable(name)}"
        if name in kinds:
            typed[name] = typed_value(kinds[name], value, setting)
        elif setting not in REMOVED:
            raise ConfigError(f"{setting} is not a setting.{nearest(name, kinds)}")
        elif value != REMOVED[setting][0]:
            raise ConfigError(f"{setting} was removed. {REMOVED[setting][1]} Received: {brief(value)}.")
    return typed


class _BoundedLoader(yaml.SafeLoader):
    """YAML loader that rejects files whose aliases expand to too many values or refer to themselves."""

    def construct_document(self, node):
        waiting, count = [node], 0
        while waiting:
            children, count = waiting.pop().value, count + 1
            if isinstance(children, list):
                waiting += (part for child in children for part in (child if type(child) is tuple else (child,)))
            if count + len(waiting) > _MAX_VALUES:
                raise yaml.YAMLError(f"it has more than {_MAX_VALUES} values with its aliases expanded")
        return super().construct_document(node)


def read_yaml(path: str | Path) -> dict:
    """Reads a YAML file as nested dictionaries, over the files that it names under `include:`.

    Raises:
        ConfigError: A file is missing, too large, not a YAML mapping, includes itself or is outside of the folder.
    """
    path = Path(path)
    return _read_yaml(path, os.path.realpath(path.parent), (), itertools.count(1))


def _read_yaml(path, root, above, files):
    if (resolved := os.path.realpath(path)) in above:
        raise ConfigError(f"{path} includes itself, through {' -> '.join(map(str, above))}.")
    if next(files) > _MAX_FILES:
        raise ConfigError(f"--config must include at most {_MAX_FILES} files. {path} is one more.")
    values = _load(path)
    included = values.pop("include", [])
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise ConfigError(f"include: in {path} must be a file name or a list of them. Received: {brief(included)}.")
    merged = {}
    for name in included:
        if UNPRINTABLE.search(name) or not Path(os.path.realpath(path.parent / name)).is_relative_to(root):
            raise ConfigError(f"include: in {path} must be in {root} or below. Received: {brief(name)}. Copy it there.")
        # The copy of a recipe can include the same recipe as its original.
        place = path.parent / name if (path.parent / name).exists() or name not in recipe_names() else RECIPES / name
        merged = merge(merged, _read_yaml(place, root, (*above, resolved), files))
    return merge(merged, values)


def _load(path):
    """Parses one YAML file without its includes."""
    try:
        values = yaml.load(read_bounded(path, _MAX_FILE_BYTES), _BoundedLoader) or {}
    except FileNotFoundError:
        names = ", ".join(recipe_names())
        raise ConfigError(f"--config must be a YAML file. {path} is not there. The recipes are {names}.") from None
    except (*_VALUE_ERRORS, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)  # str(error) would quote the file, which may be hostile
        reason = f"{error.problem} in line {mark.line + 1}" if mark else " ".join(str(error).split())
        raise ConfigError(f"--config must be a YAML file. {path} cannot be read: {reason:.300}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings. Received: {type(values).__name__}.")
    return values

"""Base of the settings classes: dataclass fields with rules, type checks and helpful messages."""

import dataclasses
import difflib
import operator
import os
from collections.abc import Collection
from contextlib import suppress
from types import NoneType
from typing import Any, get_args, get_origin

from myxtts.config.checks import UNPRINTABLE, ConfigError, brief, require

MAX_NUMBER = 10**9
"""Maximum absolute value of a number whose setting has no `at_most`."""
REMOVED: dict[str, tuple[Any, str]] = {
    "data.extend_vocabulary": (True, "A given vocabulary always grows by what the corpus needs. Leave it out."),
    "model.decoder_mel": (False, "Decoders read only latents. Use the version that this model was trained with."),
}
"""Removed settings: `{dotted name: (former default, which is still accepted; hint for any other value)}`."""


class Default(int):
    """Default value that a run may adapt, e.g. to the machine. A plain `int`, e.g. a user's, is never adapted."""


def setting(default: Any, **options) -> Any:
    """Declares a field of a settings class. The field's docstring is its help text in `--help` and on the web page.

    Args:
        of_run: Whether the setting concerns only the run (folders, devices, intervals), not the model. All other
            settings are in `XTTSConfig.recipe`.
        hint: How to fix an invalid value; shown in the error message.
        flag: Names on the command line, separated by commas; messages contain only the first name.
        group: Heading above the flag in `--help` (default: `Settings.group`).
        metavar: Placeholder of the value in `--help`. If it ends in `,…`, the value is a comma-separated list.
        alone: Value of the setting if the flag is given without a value.
        off: Flag that sets the value to False.
        rival: Name of a group of mutually exclusive flags.
        page: Where the web page shows the setting: `main`, `more`, or "" for nowhere.
        options: Rules for the value. `at_least`, `above`, `at_most` and `below` limit a number. `one_of` contains the
            allowed values (a collection, or a function that returns one). The value None is always valid.
    """
    metadata = {name: options.pop(name, usual) for name, usual in _METADATA.items()} | {"rule": options}
    return dataclasses.field(default=default, metadata=metadata)


_METADATA = dict(of_run=False, hint="", flag="", group="", metavar=None, alone=None, off="", rival="", page="")
_RULES = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def plain_type(kind: Any) -> Any:
    """Returns a type without its None part: `int` for `int | None`."""
    return next(part for part in get_args(kind) if part is not NoneType) if NoneType in get_args(kind) else kind


BASE_NAME = "base"
"""Name of the bundled model in options that take a model folder; `./base` is an ordinary folder."""


def path_text(value: Any) -> Any:
    """Converts a path to text, and returns other values unchanged. `Path("base")` becomes `./base`, because the text
    `base` would mean the bundled model."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return f"./{text}" if text is not value and text == BASE_NAME else text


def typed_value(kind: Any, value: Any, name: str) -> Any:
    """Converts a value from YAML, Python or the command line to the declared type `kind` of a setting.

    Converts lists to tuples, whole numbers and numeric texts to floats, and paths to text. Raises `ConfigError` if the
    value cannot be converted. The message contains the setting's `name`.
    """
    if value is None and NoneType in get_args(kind):
        return None
    kind, value = plain_type(kind), path_text(value)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        repeated = parts[-1] is Ellipsis
        is_list = isinstance(value, (list, tuple)) and (repeated or len(value) == len(parts))
        what = "texts" if parts[0] is str else "numbers" if repeated else f"{len(parts)} numbers"
        require(is_list, name, f"a list of {what}", brief(value))
        return tuple(typed_value(parts[0], item, name) for item in value)
    if kind is float and isinstance(value, str):
        with suppress(ValueError):
            return float(value)  # PyYAML parses 1e-3, a number without a point, as text
    is_of_kind = isinstance(value, (int, float) if kind is float else kind)
    is_clean = kind is not str or not is_of_kind or not UNPRINTABLE.search(value)
    require(is_clean, name, "text without control or direction characters", brief(value))
    require(is_of_kind and isinstance(value, bool) == (kind is bool), name, _TYPE_NAMES[kind], brief(value))
    try:
        return float(value) if kind is float else value
    except OverflowError:
        raise ConfigError(f"{name} must be at most 1e308. Received: {brief(value)}.") from None


class Settings:
    """Base class of all settings: dataclasses whose fields are declared by `setting`.

    Creating an object checks all values. Only declared fields can be set.
    """

    section = ""
    """Dotted name of the class's section in YAML files."""
    group = "training"
    """Heading above the flags of the class in `--help`."""

    def fill(self, values: dict, defaults: dict):
        """Sets each field to its value in `values`, else to its value in `defaults`, else to its declared default."""
        fields = {one.name: one for one in dataclasses.fields(self)}
        for name in values.keys() - fields:
            raise TypeError(f"{self.section} has no setting {name}.{self.hint_for(name)}")
        for name, one in fields.items():
            setattr(self, name, values.get(name, defaults.get(name, one.default)))

    def __post_init__(self):
        for one in dataclasses.fields(self):
            value, name, rule = getattr(self, one.name), self.name_of(one.name), one.metadata.get("rule", {})
            if one.default_factory is dataclasses.MISSING and get_origin(one.type) is not dict:  # not a section
                value = typed_value(one.type, value, name)
                super().__setattr__(one.name, value)
            if value is None:
                continue
            values = value if isinstance(value, tuple) else (value,)
            hint = one.metadata.get("hint", "")
            if allowed := rule.get("one_of"):
                allowed = allowed() if callable(allowed) else allowed
                words = f"one {'or more ' if isinstance(value, tuple) else ''}of {', '.join(allowed)}"
                require(all(part in allowed for part in values), name, words, ",".join(map(str, values)), hint)
                continue
            words = " and ".join(f"{kind.replace('_', ' ')} {bound}" for kind, bound in rule.items())
            for number in values:
                holds = all(_RULES[kind](number, bound) for kind, bound in rule.items())
                require(holds, name, words, brief(number), hint)
                if isinstance(number, (int, float)) and "at_most" not in rule:
                    require(abs(number) <= MAX_NUMBER, name, f"a number of at most {MAX_NUMBER:,}", brief(number))

    def name_of(self, name: str) -> str:
        """Returns the name of a setting for messages, such as `data.batch_size (--batch-size)`."""
        flag = self.__dataclass_fields__[name].metadata.get("flag", "").partition(",")[0]
        return f"{self.section}.{name}".lstrip(".") + (f" ({flag})" if flag else "")

    def check(self, name: str, holds: bool, rule: str, hint: str = "") -> None:
        """Raises `ConfigError` if `holds` is false. The message contains the setting, its value, `rule` and `hint`."""
        require(holds, self.name_of(name), rule, brief(getattr(self, name)), hint)

    def check_name(self, name: str) -> None:
        """Raises `ConfigError` if the value of the setting `name` is blank text."""
        value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
        named = value is None or bool(value.strip())
        self.check(name, named, "a name that is not empty", f"Leave {flag} out for the default.")

    @classmethod
    def hint_for(cls, name: str) -> str:
        """Returns a hint about the unknown setting `name`: the most similar setting, or all if none is similar."""
        return nearest(name, [one.name for one in dataclasses.fields(cls) if one.name != "stages"])

    def __setattr__(self, name, value):
        if name not in self.__dataclass_fields__:
            raise ConfigError(f"{self.section or 'The configuration'} has no setting {name}.{self.hint_for(name)}")
        super().__setattr__(name, value)


def nearest(name: str, names: Collection[str]) -> str:
    """Returns a hint for a message about an unknown name: the most similar of `names`, or all if none is similar."""
    # Flags have two equal characters: --lr is not near to --help.
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.7 if name.startswith("--") else 0.6)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(names)}."


def merge(below: dict, above: dict) -> dict:
    """Merges two nested dictionaries into a new dictionary. Values of `above` override those of `below`."""
    merged = dict(below)
    for name, value in above.items():
        if value is None and isinstance(merged.get(name), dict):
            continue  # a section without settings
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged

"""What all sections of the settings share: a rule with each value, and whether the value makes the result."""

import dataclasses
import difflib
import operator
import os
from collections.abc import Callable, Collection
from types import NoneType
from typing import Any, get_args, get_origin

from myxtts.config.checks import UNPRINTABLE, ConfigError, brief, require

MAX_NUMBER = 10**9
"""Greatest absolute value of a setting that states no `at_most`: no run is so long, and no model or batch so large."""
REMOVED: dict[str, tuple[Any, str]] = {
    "data.extend_vocabulary": (True, "A given vocabulary always grows by what the corpus needs. Leave it out."),
    "model.decoder_mel": (False, "Decoders read latents alone. Use the version that this model was trained with."),
}
"""Settings that are gone, by dotted name: the former default, and what to do instead of another value."""


def setting(
    default: Any = None,
    *,
    factory: Callable | None = None,
    of_run: bool = False,
    hint: str = "",
    flag: str = "",
    group: str = "",
    metavar: str | None = None,
    alone: Any = None,
    off: str = "",
    rival: str = "",
    page: str = "",
    **rule,
) -> Any:
    """A field of a settings class; the docstring under it is its help everywhere.

    Args:
        default: Its value where none is given.
        factory: Makes that value instead, where it can be changed in place.
        of_run: Whether the value names or shows the run (folders, devices, cadence) and leaves its losses as they are.
            All others make the result: they are the recipe.
        hint: What to do, in the message for a value that breaks the rule.
        flag: On the command line, several names with commas; messages name the first.
        group: Of flags in `--help`; that of its class unless given.
        metavar: Stands for its value in `--help`. One that ends in `,…` makes it a list with commas.
        alone: Value of the flag when none follows it.
        off: Flag that turns it off.
        rival: Name that it shares with flags which exclude it.
        page: Where the page shows it, `main` or `more`; "" leaves it out.
        rule: Any of `at_least`, `above`, `at_most`, `below` (numbers) or `one_of` (a collection, or a function that
            returns one). None always passes.
    """
    metadata = dict(of_run=of_run, hint=hint, flag=flag, group=group, metavar=metavar)
    metadata |= dict(alone=alone, off=off, rival=rival, page=page, rule=rule)
    value = {"default": default} if factory is None else {"default_factory": factory}
    return dataclasses.field(**value, metadata=metadata)


_RULES: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
    "one_of": lambda value, allowed: value in allowed,
}


def _rule_in_words(at_least=None, above=None, at_most=None, below=None, one_of=None):
    """The rules of `setting`, to follow "must be"."""
    if one_of is not None:
        return f"one of {', '.join(one_of)}"
    upper = f"below {below}" if below is not None else f"at most {at_most}" if at_most is not None else ""
    if above is not None:
        return f"above {above}" + (f" and {upper}" if upper else "")
    return f"from {at_least} to {upper.removeprefix('at most ')}" if upper else f"{at_least} or more"


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def typed_value(kind: Any, value: Any, name: str) -> Any:
    """A value of the declared type of a setting, `name` in messages; lists become tuples, and whole numbers floats.

    Raises:
        ConfigError: It is of another type.
    """
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        repeated = parts[-1] is Ellipsis
        if not isinstance(value, (list, tuple)) or not (repeated or len(value) == len(parts)):
            what = "texts" if parts[0] is str else "numbers" if repeated else f"{len(parts)} numbers"
            raise ConfigError(f"{name} must be a list of {what}. Received: {brief(value)}.")
        return tuple(typed_value(parts[0], item, name) for item in value)
    if kind is float and isinstance(value, str):
        # YAML 1.1 reads 1e-3, without a point, as text.
        try:
            return float(value)
        except ValueError:
            pass
    is_of_kind = isinstance(value, (int, float) if kind is float else kind)
    if kind is str and is_of_kind and UNPRINTABLE.search(value):
        raise ConfigError(f"{name} must be text without control or direction characters. Received: {brief(value)}.")
    if not is_of_kind or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{name} must be {_TYPE_NAMES[kind]}. Received: {brief(value)}.")
    try:
        return float(value) if kind is float else value
    except OverflowError:
        raise ConfigError(f"{name} must be at most 1e308. Received: {brief(value)}.") from None


class Settings:
    """Base of the settings classes: dataclasses with fields made by `setting`, and `section`, their place in YAML.

    Values are checked when the object is made. An attribute that is no setting cannot be set.
    """

    section = ""
    group = "training"
    """Of its flags in `--help`."""

    def fill(self, values: dict, defaults: dict):
        """Sets every field, for a class with an `__init__` of its own: from `values`, `defaults`, or as declared."""
        fields = {one.name: one for one in dataclasses.fields(self)}
        for name in values.keys() - fields:
            raise TypeError(f"{self.section} has no setting {name}.{nearest(name, fields)}")
        for name, one in fields.items():
            setattr(self, name, values.get(name, defaults.get(name, one.default)))

    def __post_init__(self):
        for one in dataclasses.fields(self):
            value, rule = getattr(self, one.name), dict(one.metadata.get("rule", {}))
            flag = one.metadata.get("flag", "").partition(",")[0]
            name = f"{self.section}.{one.name}" + (f" ({flag})" if flag else "")
            if one.default_factory is dataclasses.MISSING and get_origin(one.type) is not dict:  # not a section
                value = typed_value(one.type, os.fspath(value) if isinstance(value, os.PathLike) else value, name)
                super().__setattr__(one.name, value)
            values = value if isinstance(value, tuple) else (value,)
            if callable(rule.get("one_of")):
                rule["one_of"] = rule["one_of"]()
            if rule and value is not None:
                words, received = _rule_in_words(**rule), value if "one_of" in rule else brief(value)
                if "one_of" in rule and isinstance(value, tuple):
                    words, received = words.replace("one of", "one or more of", 1), ",".join(map(str, value))
                holds = all(_RULES[kind](number, bound) for number in values for kind, bound in rule.items())
                require(holds, name, words, received, one.metadata["hint"])
            for number in values if "at_most" not in rule else ():
                if isinstance(number, (int, float)):
                    within = -MAX_NUMBER <= number <= MAX_NUMBER
                    require(within, name, f"a number of at most {MAX_NUMBER:,}", brief(number))

    def __setattr__(self, name, value):
        names = [one.name for one in dataclasses.fields(self)]
        if name not in names:
            raise ConfigError(f"{self.section or 'The configuration'} has no setting {name}.{nearest(name, names)}")
        super().__setattr__(name, value)


def nearest(name: str, names: Collection[str]) -> str:
    """Completes a message about an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name[:100], names, n=1)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(names)}."


def merge(below: dict, above: dict) -> dict:
    """`above` laid over `below`, mapping by mapping."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def flat(values: dict, where: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted names."""
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{where}{name}.") if isinstance(value, dict) else {where + name: value}
    return found


def run_settings(cls: type[Settings], where: str = "") -> set[str]:
    """Dotted names of the settings that name or show a run, of `cls` and of the sections in it."""
    found = set()
    for one in dataclasses.fields(cls):
        if one.metadata.get("of_run"):
            found.add(where + one.name)
        elif isinstance(one.default_factory, type) and issubclass(one.default_factory, Settings):
            found |= run_settings(one.default_factory, f"{where}{one.name}.")
    return found

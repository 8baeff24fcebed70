"""Type checks of the values in a checkpoint's `state.json`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig, config_from_dict
from myxtts.storage.files import CheckpointError

_HINT = "Use another checkpoint, or start over with --reset-training."
_MOST = 2**62
"""Integers in a `state.json` must have absolute values below this limit, or the file counts as damaged."""


class SavedState(dict):
    """Dictionary of JSON values from the file `where`. Looking up a missing key raises a `CheckpointError`."""

    def __init__(self, values: dict, where: str):
        wrapped = {name: SavedState(value, where) for name, value in values.items() if isinstance(value, dict)}
        super().__init__(values | wrapped)
        self._where = where

    def __missing__(self, key: str):
        raise CheckpointError(f"{self._where} is damaged or of another version: it lacks {key!r}. {_HINT}")


def is_count(value: Any) -> bool:
    """Returns whether a JSON value is an integer that is not negative, such as a step or a position."""
    return type(value) is int and 0 <= value < _MOST


_is_number = lambda value: type(value) is float or (type(value) is int and -_MOST < value < _MOST)
_is_losses = lambda value: isinstance(value, dict) and all(map(_is_number, value.values()))
_is_best = lambda value: isinstance(value, list) and len(value) == 2 and _is_number(value[0]) and is_count(value[1])
_CHECKS = {
    **dict.fromkeys(("step", "position", "bad_steps_in_row"), is_count),
    **dict.fromkeys(("finished", "averaged"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("lineage", "config", "versions", "order", "switches"), lambda value: isinstance(value, dict)),
    "best_step": lambda value: value is None or is_count(value),
    "history": lambda value: isinstance(value, list) and all(map(_is_losses, value)),
    "best": lambda value: value is None or _is_best(value),
    "parts": lambda value: isinstance(value, dict) and all(isinstance(part, dict) for part in value.values()),
}
"""Functions that check the type of a value in `state.json`, by the value's key."""


def checked_state(values: dict, path: Path) -> SavedState:
    """Returns the values of a `state.json` as `SavedState`. Raises `CheckpointError` if a value has a wrong type."""
    for name in values.keys() & _CHECKS.keys():
        if not _CHECKS[name](values[name]):
            raise CheckpointError(f"{path} is damaged: {name!r} has a wrong type or value. {_HINT}")
    return SavedState(values, str(path))


@contextmanager
def refusing_damage(where: str) -> Iterator[None]:
    """Converts errors from invalid values in a `with` block to a `CheckpointError` ("`where` is damaged")."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} is damaged: {str(error):.200}. {_HINT}") from error


def config_of(state: dict[str, Any], where: str) -> XTTSConfig | None:
    """Returns the settings in `state`; None if absent. If invalid, raises a `CheckpointError` that names `where`."""
    if "config" not in state:
        return None
    try:
        return config_from_dict(state["config"])
    except ConfigError as error:
        raise CheckpointError(f"{where} contains settings that cannot be used: {error}") from None

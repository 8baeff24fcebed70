"""What a checkpoint says besides tensors, as it is read: nothing in it is believed to be there or of its type."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.storage.files import CheckpointError

_MOST = 2**62
"""Above any step, position or count."""


class SavedState(dict):
    """A mapping of JSON values; a key that it lacks is a sentence that names the file."""

    def __init__(self, values: dict, where: str):
        wrapped = {name: SavedState(value, where) for name, value in values.items() if isinstance(value, dict)}
        super().__init__(values | wrapped)
        self._where = where

    def __missing__(self, key: str):
        raise CheckpointError(f"{self._where} is damaged or of another version: it lacks {key!r}. {_WAY_OUT}")


def _is_count(value):
    return type(value) is int and 0 <= value < _MOST


def _is_number(value):
    return type(value) is float or _is_count(value) or (type(value) is int and -_MOST < value < _MOST)


def _is_history(value):
    rows = value if isinstance(value, list) else [None]
    return all(isinstance(row, dict) and all(map(_is_number, row.values())) for row in rows)


def _is_best(value):
    return value is None or (
        isinstance(value, list) and len(value) == 2 and _is_number(value[0]) and _is_count(value[1])
    )


_WAY_OUT = "Take another checkpoint, or start over with --reset-training."
_KINDS = {
    "step": (_is_count, "a step"),
    "best_step": (lambda value: value is None or _is_count(value), "a step or null"),
    "position": (_is_count, "a number of batches"),
    "bad_steps_in_row": (_is_count, "a number of steps"),
    "history": (_is_history, "a list of losses by name"),
    "best": (_is_best, "a loss and a step, or null"),
    "data": (lambda value: value is None or isinstance(value, str), "text or null"),
    "parts": (lambda value: isinstance(value, dict) and all(isinstance(x, dict) for x in value.values()), "mappings"),
    **dict.fromkeys(("finished", "averaged"), (lambda value: isinstance(value, bool), "true or false")),
    **dict.fromkeys(
        ("lineage", "config", "versions", "order", "switches"), (lambda value: isinstance(value, dict), "a mapping")
    ),
}
"""Test and words for each value of a state that is read again; others are only kept."""


def checked_state(values: dict, path: Path) -> SavedState:
    """The values of a `state.json`. One of the wrong type raises `CheckpointError`, a missing one when it is read."""
    for name in values.keys() & _KINDS.keys():
        holds, kind = _KINDS[name]
        if not holds(values[name]):
            raise CheckpointError(f"{path} is damaged: {name!r} must be {kind}. {_WAY_OUT}")
    return SavedState(values, str(path))


@contextmanager
def refusing_damage(where: str) -> Iterator[None]:
    """Inside, a value of the wrong type, as whoever takes it up finds it, becomes a `CheckpointError`."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} is damaged: {str(error):.200}. {_WAY_OUT}") from error


def config_of(state: dict[str, Any], where: str) -> XTTSConfig | None:
    """The settings that a checkpoint was made with; None where it does not say them.

    Raises:
        CheckpointError: It says something that cannot be settings.
    """
    if "config" not in state:
        return None
    try:
        return config_from_dict(state["config"])
    except ConfigError as error:
        raise CheckpointError(f"{where} holds settings that cannot be used: {error}") from None

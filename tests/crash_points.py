"""Kills, or fails, at each file-system operation of a piece of code in turn."""

import builtins
import errno
import io
import os
from collections.abc import Callable

from myxtts.config.checks import UserError
from myxtts.storage import checkpoint

OPERATIONS = [
    *((os, name) for name in ("replace", "rename", "mkdir", "fsync", "unlink", "rmdir", "link", "chmod", "open")),
    *((io, "open"), (builtins, "open"), (checkpoint, "save_file")),
]
MODES = ("killed before", "killed after", "fails once", "fails from then on")


class Killed(BaseException):
    """The process is dead: nothing that is to run afterwards, such as cleaning up, does anything."""


class CrashPoints:
    """Counts the operations that change the disk, and lets the one of the number `at` go wrong as `mode` says."""

    def __init__(self, monkeypatch, at: int | None = None, mode: str = MODES[0], error: int = errno.ENOSPC):
        self.count, self.at, self.mode, self.error = 0, at, mode, error
        for module, name in OPERATIONS:
            monkeypatch.setattr(module, name, self._watched(name, getattr(module, name)))

    def _watched(self, name: str, operation: Callable):
        def watched(*arguments, **keywords):
            if name == "open" and not _writes(*arguments, **keywords):
                return operation(*arguments, **keywords)
            number, self.count = self.count, self.count + 1
            killed = self.mode.startswith("killed")
            if self.at is not None and number > self.at and killed:
                raise Killed
            if number == self.at or (self.at is not None and number > self.at and self.mode == MODES[3]):
                if self.mode == "killed after":
                    operation(*arguments, **keywords)
                if name == "save_file":
                    arguments[1].write_bytes(b"half")
                # A disk that is full still renames and deletes.
                if self.mode == MODES[3] and name not in ("open", "mkdir", "save_file", "fsync", "link"):
                    return operation(*arguments, **keywords)
                raise Killed if killed else OSError(self.error, os.strerror(self.error))
            return operation(*arguments, **keywords)

        return watched


def _writes(path, mode="r", *_, **__):
    if isinstance(mode, int):
        return bool(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return any(letter in mode for letter in "wax+")


def crash_everywhere(monkeypatch, prepare: Callable, act: Callable, check: Callable, modes=MODES) -> int:
    """Calls `check(prepared, act's result or what it raised)` after a crash at each operation of `act(prepared)`.

    Returns:
        The operations that `act` makes.
    """
    prepared = prepare()
    with monkeypatch.context() as patch:
        points = CrashPoints(patch)
        act(prepared)
    for at in range(points.count):
        for mode in modes:
            prepared = prepare()
            with monkeypatch.context() as patch:
                CrashPoints(patch, at, mode)
                try:
                    outcome = act(prepared)
                except (Killed, OSError, UserError) as error:
                    outcome = error
            try:
                check(prepared, outcome)
            except BaseException as error:
                error.add_note(f"operation {at} of {points.count}, {mode}")
                raise
    return points.count

"""Simulates a kill, a failure or a power cut at each file-system operation of some code in turn.

An operation is a call of an `os` function that changes files, the opening of a file for writing, or a `write` to it.
`fsync` does not wait for a disk.
"""

import builtins
import errno
import io
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from myxtts.config.checks import UserError

CREATING, GROWING = ("open", "mkdir", "link", "symlink"), ("write", "fsync", "truncate")
MOVING = ("replace", "rename", "unlink", "remove", "rmdir", "chmod")
OPERATIONS = [*((os, name) for name in (*CREATING, *MOVING, "fsync", "truncate")), *((io, "open"), (builtins, "open"))]
LASTING = {
    "disk full": ((errno.ENOSPC, errno.EDQUOT), (*CREATING, *GROWING)),
    "no inodes": ((errno.ENOSPC,), CREATING),
    "disk broken": ((errno.EIO,), (*CREATING, *GROWING, *MOVING)),
    "read-only": ((errno.EROFS,), (*CREATING, *GROWING, *MOVING)),
}
"""Failures that last from one operation on, as (errors, operations that fail): the number of the first operation
decides which of the errors is raised. A full disk can still rename."""
"""A kill after an operation is the same as a kill before the next one."""
MODES = ("killed before", "killed half-way", "fails once", *LASTING)
POWER_CUTS = ("power cut, all renames lost", "power cut, some renames kept", "power cut, all renames kept")
RANDOM = r"\.[0-9a-f]{12}\.myxtts\.tmp"  # in names of temporary files


class Killed(BaseException):
    """Raised where the simulated process dies; code that runs afterwards, such as clean-up, has no effect."""


class CrashPoints:
    """Counts the operations that change the disk, and lets operation number `at` fail according to `mode`."""

    def __init__(self, monkeypatch, at: int | None = None, mode: str = MODES[0], disk: "Disk | None" = None):
        self.count, self.at, self.mode, self.disk = 0, at, mode, disk
        self.names, self.dead = [], False
        for module, name in OPERATIONS:
            real = getattr(module, name)
            opens_files = name == "open" and module is not os
            monkeypatch.setattr(module, name, self._watched_open(real) if opens_files else self._watched(name, real))

    def operate(self, name: str, operation: Callable, half: Callable | None = None):
        """Performs an operation, or the failure in its place; `half` performs half of it."""
        if self.dead:
            raise Killed
        number, self.count = self.count, self.count + 1
        self.names.append(name)
        if self.at is None or number < self.at:
            return operation()
        if self.mode in LASTING:
            errors, concerned = LASTING[self.mode]
            if name in concerned:
                error = errors[self.at % len(errors)]
                raise OSError(error, os.strerror(error))
        elif number == self.at:
            if self.mode == "fails once":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.dead = True
            if self.mode == "killed half-way" and half is not None:
                half()
            raise Killed
        return operation()

    def _watched(self, name, real):
        def perform(*arguments, **keywords):
            if name == "fsync":
                result = os.fstat(*arguments)  # the disk itself is not waited for
            else:
                result = real(*arguments, **keywords)
            if self.disk is not None:
                self.disk.note(name, *arguments, **keywords)
            return result

        def watched(*arguments, **keywords):
            if name == "open" and not _writes(*arguments, **keywords):
                return real(*arguments, **keywords)
            return self.operate(name, lambda: perform(*arguments, **keywords))

        return watched

    def _watched_open(self, real):
        def watched(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
            if not _writes(file, mode):
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

            def perform():
                raw = _WatchedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
                raw.points = self
                if self.disk is not None and not isinstance(file, int):
                    self.disk.note("open", file, os.O_CREAT)
                return raw

            raw = perform() if isinstance(file, int) else self.operate("open", perform)
            if buffering == 0:
                return raw
            buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return watched


class _WatchedFile(io.FileIO):
    points: CrashPoints

    def write(self, content):
        if self.points.dead:
            return len(content)  # what was in a buffer dies with the process
        content = bytes(content)
        half = lambda: super(_WatchedFile, self).write(content[: len(content) // 2])
        return self.points.operate("write", lambda: super(_WatchedFile, self).write(content), half)


def _writes(path, mode="r", *_, **__):
    if isinstance(mode, int):
        return bool(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return any(letter in mode for letter in "wax+")


class _File:
    """A file or folder of the `Disk`, with its content on the disk."""

    def __init__(self, is_folder, kept=b""):
        self.is_folder, self.kept = is_folder, kept


class Disk:
    """State of a folder after a power cut. A file has its content at its last `fsync`. Names are as they were at the
    folder's last `fsync`, or after one of the later operations on names.

    Journaling file systems (ext4 with data=ordered, XFS) guarantee the order of operations on names. They may lose
    content that was not synced, so that a file is empty.
    """

    def __init__(self, root: Path):
        self.root = Path(os.path.realpath(root))
        entries = {str(path): path for path in self.root.rglob("*")}
        self.before = {name: _File(p.is_dir(), b"" if p.is_dir() else p.read_bytes()) for name, p in entries.items()}
        self.names, self.log, self.num_kept = dict(self.before), [], 0

    def note(self, name, *arguments, dir_fd=None, **_):
        """Records an operation that has succeeded."""
        paths = [self._path(one, dir_fd) for one in arguments[: 2 if name in ("replace", "rename", "link") else 1]]
        if name == "fsync":
            self._sync(paths[0])
        elif not all(path.startswith(f"{self.root}/") for path in paths):
            return
        elif name in ("open", "mkdir"):
            if paths[0] not in self.names and os.path.lexists(paths[0]):
                self._do(("set", paths[0], _File(os.path.isdir(paths[0]))))
        elif name == "link":
            self._do(("set", paths[1], self.names[paths[0]]))
        elif name in ("replace", "rename"):
            self._do(("move", *paths))
        elif name in ("unlink", "remove", "rmdir"):
            self._do(("delete", paths[0], None))

    def _path(self, path, dir_fd):
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        folder = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
        path = os.path.join(folder, os.fspath(path))
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))

    def _sync(self, path):
        if path in self.names and not self.names[path].is_folder:
            self.names[path].kept = Path(path).read_bytes()
        for number, (_kind, *names) in enumerate(self.log, 1):
            if any(isinstance(name, str) and os.path.dirname(name) == path for name in names):
                self.num_kept = max(self.num_kept, number)

    def _do(self, operation):
        self.log.append(operation)
        _apply(self.names, operation)

    def cut_power(self, mode: str, seed: int) -> None:
        """Resets the folder to its state on the disk; `mode` of `POWER_CUTS` selects which unsynced renames remain."""
        some = random.Random(seed).randint(self.num_kept, len(self.log))
        names = dict(self.before)
        for operation in self.log[: dict(zip(POWER_CUTS, (self.num_kept, some, len(self.log))))[mode]]:
            _apply(names, operation)
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path in sorted(names):
            Path(path).mkdir() if names[path].is_folder else Path(path).write_bytes(names[path].kept)


def _apply(names, operation):
    kind, path, other = operation
    if kind == "set":
        names[path] = other
        return
    inside = [name for name in names if name == path or name.startswith(f"{path}/")]
    if kind == "move":
        for name in [name for name in names if name == other or name.startswith(f"{other}/")]:
            del names[name]
    for name in inside:
        one = names.pop(name)
        if kind == "move":
            names[other + name.removeprefix(path)] = one


def crash_everywhere(
    monkeypatch, prepare: Callable, act: Callable, check: Callable, folder: Callable | None = None, every: int = 1
) -> int:
    """Runs `act(prepared)` with a crash at each operation in turn, and then `check(prepared, result or error of act)`.

    After a power cut, `check` gets "power cut" instead of the result, which may not be on the disk.

    Args:
        folder: Returns the folder of `prepared`, in which `act` writes. None: `prepared` is that folder, and nothing
            else matters, so crashes that have the same kind of result and leave the same files are checked once.
        every: Tests only every n-th operation, for code with thousands of them.

    Returns:
        The number of operations of `act`.
    """
    monkeypatch.setattr(os, "fsync", os.fstat)  # also in `prepare` and `check`
    prepared, folder_of, checked = prepare(), folder or Path, set()
    with monkeypatch.context() as patch:
        points = CrashPoints(patch)
        act(prepared)
    for at in range(0, points.count, every):
        for mode in (*MODES, *POWER_CUTS):
            if mode == "killed half-way" and points.names[at] != "write":
                continue
            prepared = prepare()
            cut = mode in POWER_CUTS
            disk = Disk(folder_of(prepared)) if cut else None
            with monkeypatch.context() as patch:
                CrashPoints(patch, at, "killed before" if cut else mode, disk)
                try:
                    outcome = act(prepared)
                except (Killed, OSError, UserError) as error:
                    outcome = error
            if cut:
                disk.cut_power(mode, seed=at)
                outcome = "power cut"
            if folder is None:
                left = {(re.sub(RANDOM, "", name), content) for name, content in contents(prepared).items()}
                state = outcome if isinstance(outcome, bool | str) else type(outcome), frozenset(left)
                if state in checked:
                    continue
                checked.add(state)
            try:
                check(prepared, outcome)
            except BaseException as error:
                error.add_note(f"operation {at} of {points.count}, {points.names[at]}: {mode}")
                raise
    return points.count


def contents(folder: Path) -> dict:
    """Returns the content of each file in a folder, by relative path; False for each folder in it."""
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}

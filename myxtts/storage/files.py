"""File utilities: atomic writing of files and folders, functions for JSON and CSV files, digests, and locks."""

import csv
import errno
import fcntl
import functools
import glob
import hashlib
import io
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from myxtts.config.checks import UserError, printable, read_bounded, require

logger = logging.getLogger(__name__)

AnyPath = str | os.PathLike
DIGEST_BYTES = 16
MAX_JSON_BYTES = 32 * 2**20
"""Maximum size of a JSON file in bytes; the files of a run have a few hundred kilobytes."""
_FORMULA = re.compile(r"\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""Pattern for the start of a CSV cell that a spreadsheet may evaluate as a formula, even after leading blanks."""
_TEMPORARY = f".{{}}.{12 * '[0-9a-f]'}.myxtts{{}}.tmp"
"""Glob pattern of temporary paths. `format` inserts 40 characters of the final name, and a kind: "", ".old" or "*"."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")


class CheckpointError(UserError):
    """Error for a checkpoint that is missing, damaged, or from another model."""


def new_hasher() -> "hashlib._Hash":
    """Returns a new BLAKE2b hash object whose digest has `DIGEST_BYTES` bytes."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def user_cache() -> Path:
    """Returns the cache folder, for files that can be downloaded or computed again. Raises `UserError` without one."""
    folder = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    require(not folder.startswith("~"), "XDG_CACHE_HOME", "a writable folder, as this user has no home", folder)
    return Path(folder, "myxtts")


def digest_bytes(content: bytes, size: int = DIGEST_BYTES) -> str:
    """Returns the BLAKE2b digest of `content` as hexadecimal text; the digest has `size` bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def digest_file(path: AnyPath) -> str:
    """Returns the digest that `digest_bytes` gives for a file's content. Does not load the whole file into memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, new_hasher).hexdigest()


@contextmanager
def write_whole(path: AnyPath, partial: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path next to `path`. If the block ends without an error, the temporary file replaces `path`.

    The new file is on disk before it replaces the old file, so that a power cut leaves one of the two. Permissions are
    kept. If `path` is a link, its target is replaced. If `path` is a device or a pipe, the content is copied to it.
    If `partial` (see `partial_path`) is given, yields this path, and keeps the incomplete file after an error.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            yield (temporary := Path(folder, "content"))
            with _named(path), open(temporary, "rb") as source, open(path, "wb") as device:
                shutil.copyfileobj(source, device)
        return
    target = Path(os.path.realpath(path))
    temporary = partial or temporary_path(target)
    with _named(path, temporary):
        # A private file must not become readable while it is written.
        mode = target.stat().st_mode & 0o777 | 0o600 if target.exists() else 0o666
        _had_leftovers(target.parent)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        try:
            _claim(descriptor, target)
            yield temporary
            if target.exists():
                shutil.copymode(target, temporary)
            sync_path(temporary)
            os.replace(temporary, target)
        finally:
            os.close(descriptor)
            if not partial:
                temporary.unlink(missing_ok=True)


@contextmanager
def _named(path, temporary=None):
    """Sets the `filename` of an `OSError` in a `with` block to `path`, if it was None or `temporary` before."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextmanager
def refusing_unwritable(path: AnyPath) -> Iterator[None]:
    """Converts an `OSError` in a `with` block to a `UserError` with the message that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Choose another folder.") from error


@contextmanager
def write_whole_folder(path: AnyPath, sync: bool = True, replaced_name: str | None = None) -> Iterator[Path]:
    """Yields an empty temporary folder, which replaces `path` when the block ends without an error.

    If `sync`, all files are on disk before `path` is replaced. The old folder is renamed (to `replaced_name` if given)
    and deleted; after a kill in between, the renamed folder remains. Raises `UserError` if `path` is a mount point.
    """
    path = Path(os.path.realpath(path))
    if path.is_mount():  # such as a volume of Docker
        raise UserError(f"{path} is a mount point, which cannot be replaced. Name a folder in it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    replaced = path.with_name(replaced_name or temporary.with_suffix(".old.tmp").name)
    _had_leftovers(path.parent)
    temporary.mkdir()
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        with _named(path):
            _claim(descriptor, path)
            yield temporary
            for written in (*temporary.rglob("*"), temporary) if sync else ():
                sync_path(written)
            if path.exists():
                shutil.rmtree(replaced, ignore_errors=True)  # left by a killed process
                os.replace(path, replaced)
            os.replace(temporary, path)
            if sync:
                sync_path(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if replaced.exists() and not path.exists():
            os.replace(replaced, path)
        raise
    finally:
        os.close(descriptor)
    shutil.rmtree(replaced, ignore_errors=True)


@functools.cache
def _had_leftovers(folder):
    """Returns whether `folder` contained temporary paths at the first call. Cached, because listing files is slow."""
    return any(folder.glob(_TEMPORARY.format("*", "*")))


def _claim(descriptor, path):
    """Locks an open temporary file or folder. Removes temporary versions of `path` that killed processes left."""
    with suppress(OSError):  # without locks, the others may be in use
        lock(descriptor)
        if _had_leftovers(path.parent):
            # If `path` is missing, a replaced folder (`.old.tmp`) may be its only version.
            remove_leftovers(path.parent, glob.escape(path.name[:40]), "*" if path.exists() else "")


def remove_leftovers(folder: AnyPath, name: str = "*", kind: str = "*") -> None:
    """Removes temporary files and folders that killed processes left in `folder`, except those that are locked.
    `name` is a glob pattern for the first 40 characters of the name that the finished file would have had.
    `kind` selects what to remove: "" removes new files and folders that were being written, ".old" removes old
    versions of folders that were being replaced, and "*" removes both.
    If the file system has no locks, the caller must ensure that no process writes to `folder`."""
    for leftover in () if os.path.islink(folder) else Path(folder).glob(_TEMPORARY.format(name, kind)):
        with suppress(OSError):  # it is a link, or another user's; opening a pipe must not wait for a writer
            descriptor = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:  # no locks
                pass
            finally:
                os.close(descriptor)
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def write_text(path: AnyPath, text: str) -> None:
    """Writes UTF-8 text to a file atomically, see `write_whole`."""
    with write_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def csv_text(rows: Iterable[Sequence[Any]], separator: str = ",", end: str = "\n", is_safe: bool = True) -> str:
    """Formats rows as CSV. If `is_safe`, escapes control characters and text that looks like a formula."""
    content = io.StringIO()
    rows = (map(_plain_cell, row) for row in rows) if is_safe else rows
    csv.writer(content, delimiter=separator, lineterminator=end).writerows(rows)
    return content.getvalue()


def _plain_cell(cell):
    if cell is None or isinstance(cell, (int, float)):
        return cell
    cell = str(cell)
    is_formula = _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return "'" * bool(is_formula) + printable(cell)  # an apostrophe turns a formula into text


def append_line(path: AnyPath, line: str) -> None:
    """Appends a line of UTF-8 text to a file. If the file's last line has no line end, first adds one."""
    with open(path, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = f"\n{line}"
        file.write(f"{line}\n".encode())


def read_csv(path: AnyPath) -> list[dict[str, str]]:
    """Returns the rows of a CSV file as `{column name: text}`; [] if the file does not exist. The separator may be a
    comma or a semicolon (see `csv_delimiter`). Replaces bytes that cannot be decoded as UTF-8."""
    text = Path(path).read_text("utf-8-sig", errors="replace") if Path(path).is_file() else ""
    return list(csv.DictReader(io.StringIO(text), delimiter=csv_delimiter(text), restval=""))


def csv_delimiter(text: str) -> str:
    """Returns the delimiter of a CSV text: a semicolon if the first line contains one, otherwise a comma."""
    return ";" if ";" in text.partition("\n")[0] else ","


def write_json(path: AnyPath, value: Any) -> None:
    """Writes a JSON file atomically, see `write_whole`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: AnyPath) -> Any:
    """Reads a JSON file. If it is missing, invalid or larger than `MAX_JSON_BYTES`, raises `CheckpointError`."""
    path = Path(path)
    try:
        text = read_bounded(path, MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} does not exist. Is this the folder of a run or of `myxtts convert`?") from None
    except ValueError as error:
        raise CheckpointError(f"{path} {error}. No training run wrote it.") from None
    return parse_json(text, path)


def parse_json(text: str | bytes, path: AnyPath) -> Any:
    """Parses JSON text. If the text is invalid, raises a `CheckpointError` that names the file `path`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def free_path(path: Path) -> Path:
    """Returns `path` if it does not exist, else the first of `path_2`, `path_3`, … that does not exist."""
    paths = itertools.chain([path], (path.with_name(f"{path.name}_{number}") for number in itertools.count(2)))
    return next(free for free in paths if not os.path.lexists(free))


def partial_path(path: AnyPath) -> Path:
    """Returns an unused path for an incomplete version of the file `path`, such as `a.partial.wav` for `a.wav`."""
    target = Path(os.path.realpath(path))
    free = (target.with_stem(f"{target.stem[:50]}.partial{number or ''}") for number in itertools.count())
    return next(one for one in free if not os.path.lexists(one))


def temporary_path(path: Path) -> Path:
    """Returns an unused temporary path next to `path`, which `remove_leftovers` recognizes by its name."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}.myxtts.tmp")


def sync_path(path: AnyPath) -> None:
    """Waits until a file, or the list of a folder's entries, is stored on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Locks a folder during a `with` block. If the file system has no locks, logs a warning instead.

    Raises `CheckpointError` with the message `busy` if another process has locked the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor)
        except BlockingIOError:
            raise CheckpointError(busy) from None
        except OSError as error:
            message = "%s cannot be locked (%s): make sure that no second run writes to it."
            logger.warning(message, folder, error.strerror)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, is_shared: bool = False) -> None:
    """Locks a file or folder until `descriptor` is closed. Raises `BlockingIOError` if another lock conflicts."""
    fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


@contextmanager
def claimed(path: Path, number: int, waits: bool) -> Iterator[bool]:
    """Claims item `number` of a job that several processes share; yields whether the claim succeeded.

    The claim is a lock on byte `number` of the file `path`. If another process holds this lock, the claim fails or, if
    `waits` is True, waits for the lock. If the file system has no locks, all claims succeed.
    """
    is_ours = True
    with open(path, "ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
        except (BlockingIOError, PermissionError):  # POSIX permits either error
            is_ours = False
        except OSError as error:
            logger.warning("%s cannot be locked (%s): let only one process at a time write.", path, error.strerror)
        yield is_ours

"""Files and folders written whole or not at all, JSON that is read with care, and the digest of a content."""

import csv
import errno
import hashlib
import io
import itertools
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from myxtts.config.checks import UserError, printable, read_bounded

AnyPath = str | os.PathLike
DIGEST_BYTES = 16
MAX_JSON_BYTES = 32 * 2**20
"""A run's settings, history and manifest take a few hundred kilobytes; a larger file is not ours."""


_FORMULA = re.compile(r"\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""How a cell begins that a spreadsheet computes, after blanks that some leave out."""

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or of another model; the message names what and what to do."""


def new_hasher(size: int = DIGEST_BYTES) -> "hashlib._Hash":
    """An empty BLAKE2b hash with a digest of `size` bytes, to be updated piece by piece."""
    return hashlib.blake2b(digest_size=size)


def digest_bytes(content: bytes, size: int = DIGEST_BYTES) -> str:
    """BLAKE2b digest of `content` as hexadecimal digits, two for each of `size` bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def digest_file(path: AnyPath) -> str:
    """Digest of a file's content, as `digest_bytes` gives it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, new_hasher).hexdigest()


def digest_foreign_file(path: AnyPath, name: str, prefix: bytes = b"") -> str:
    """Digest of `prefix` and a file's content in hexadecimal digits, by the hash that whoever published it uses."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, prefix)).hexdigest()


@contextmanager
def write_whole(path: AnyPath) -> Iterator[Path]:
    """Yields a temporary path next to `path`. When the block ends, what was written there is whole under `path`; when
    it raises an error, `path` is as it was and the temporary file is gone. After a power cut, `path` is the old file or
    the new one: the content is waited for, the name is not.

    A symbolic link stays, and the file that it leads to is replaced; a replaced file's permissions stay. A device or a
    named pipe stays too: the content is copied into it once it is complete.
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
    temporary = temporary_path(target)
    try:
        # Private from the start where the file it replaces is: nobody may read it while it is made.
        mode = target.stat().st_mode & 0o777 | 0o600 if target.exists() else 0o666
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    except OSError as error:
        error.filename = str(path)  # the name that the user gave
        raise
    try:
        with _named(path, temporary):
            yield temporary
            if target.exists():
                shutil.copymode(target, temporary)
            sync_path(temporary)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _named(path, temporary=None):
    """Inside, errors of the system that name no file, as those of a full disk, or a temporary one, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextmanager
def write_whole_folder(path: AnyPath, sync: bool = True, replaced_name: str | None = None) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `path` when the block ends; when it raises, `path` is as it was.

    `sync` waits until all files are on the disk, which takes milliseconds for each. Between two renames the folder that
    is replaced has another name, and after a kill there nobody knows it but who chose it: `replaced_name`.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    replaced = path.with_name(replaced_name or temporary.with_suffix(".old.tmp").name)
    temporary.mkdir()
    try:
        yield temporary
        for written in (*temporary.rglob("*"), temporary) if sync else ():
            sync_path(written)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)  # left by a kill after it had been replaced
            os.replace(path, replaced)
        os.replace(temporary, path)
        if sync:
            sync_path(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if replaced.exists() and not path.exists():
            os.replace(replaced, path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(folder: AnyPath, name: str = "*") -> None:
    """Removes what killed processes left half written under names of `temporary_path`, as far as it can be removed.

    `name` is that of the one file meant, of at most 40 characters; by default all are.

    To be called while nobody writes there. Links are not followed, nor are they removed: none was made here.
    """
    ours = f".{name}.{12 * '[0-9a-f]'}.myxtts*.tmp"
    for leftover in () if os.path.islink(folder) else Path(folder).glob(ours):
        if not leftover.is_symlink():
            with suppress(OSError):
                remove = shutil.rmtree if leftover.is_dir() else os.unlink
                remove(leftover)


def write_text(path: AnyPath, text: str) -> None:
    """Writes UTF-8 text whole or not at all."""
    with write_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def csv_text(rows: Iterable[Sequence[Any]], separator: str = ",", end: str = "\n") -> str:
    """Rows as CSV for people: no spreadsheet computes a cell, and no terminal obeys it. Numbers stay as they are."""
    content = io.StringIO()
    csv.writer(content, delimiter=separator, lineterminator=end).writerows(map(_plain_cell, row) for row in rows)
    return content.getvalue()


def _plain_cell(cell):
    if cell is None or isinstance(cell, (int, float)):
        return cell
    cell = str(cell)
    # An apostrophe makes a spreadsheet take the cell for text.
    is_formula = _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return "'" * bool(is_formula) + printable(cell)


def append_line(path: AnyPath, line: str) -> None:
    """Adds a line of UTF-8 to a file, which is made if need be; one that a kill cut short before ends first."""
    with open(path, "a+b") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            line = f"\n{line}"
        file.write(f"{line}\n".encode())


def write_json(path: AnyPath, value: Any) -> None:
    """Writes JSON whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: AnyPath) -> Any:
    """Reads a JSON file of ours.

    Raises:
        CheckpointError: The file is missing, not a regular file, larger than `MAX_JSON_BYTES`, or not JSON.
    """
    path = Path(path)
    try:
        text = read_bounded(path, MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        hint = "Is this the folder of a training run or of `myxtts convert`?"
        raise CheckpointError(f"{path} is not there. {hint}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} {error}. No training run wrote it.") from None
    return parse_json(text, path)


def parse_json(text: str | bytes, path: AnyPath) -> Any:
    """What the content of a JSON file at `path` says.

    Raises:
        CheckpointError: It is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def free_path(path: Path) -> Path:
    """`path` itself, or the first of `path_2`, `path_3`, ... that nothing has as its name."""
    paths = itertools.chain([path], (path.with_name(f"{path.name}_{number}") for number in itertools.count(2)))
    return next(free for free in paths if not os.path.lexists(free))


def temporary_path(path: Path) -> Path:
    """A name next to `path` that nobody else has, and that `remove_leftovers` knows."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}.myxtts.tmp")


def sync_path(path: AnyPath) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

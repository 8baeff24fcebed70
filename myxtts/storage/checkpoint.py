"""Checkpoints: one folder of safetensors and JSON files per step, written completely or not at all.

The folder of a run contains a folder for each stage. A stage's folder contains a folder for each kept step:

    RUN/config.json  RUN/vocab.json
    RUN/gpt/step_00001000/{model.safetensors, optimizer.safetensors, vocab.json, state.json, manifest.json}
    RUN/gpt/best.json    {"step": 1000}, for other programs; MyXTTS reads the best step from `state.json`

Files are not trusted. The manifest lists sizes and checksums of the other files, with a checksum of the list. Only
plain files are read, and no links are followed.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from myxtts.storage import files
from myxtts.storage.files import AnyPath, CheckpointError
from myxtts.storage.saved_state import SavedState, checked_state

logger = logging.getLogger(__name__)
FORMAT = 1
"""Version of the checkpoint layout; checkpoints of other versions cannot be read."""
MANIFEST = "manifest.json"
STATE = "state.json"
_STEP = re.compile(r"step_(\d{8})|\.step_(\d{8})\.replaced")
"""Pattern of the names of checkpoint folders. When a checkpoint is written again, its old folder is first renamed to
`.step_….replaced`. If the process is killed before the new folder is in place, the old one is read."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+\.(safetensors|json)")
_manifest_digest = lambda *content: files.digest_bytes(json.dumps(content, sort_keys=True).encode())

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"}
_DTYPES |= {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_DTYPES |= {"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
"""NumPy data types by their names in safetensors files, without bfloat16 and float8, which NumPy does not have."""


def write_tensors(path: AnyPath, arrays: Mapping[str, np.ndarray], values: Iterable[np.ndarray] | None = None) -> None:
    """Writes a safetensors file one tensor at a time, which takes less memory than the writer of `safetensors`.

    Names, shapes and data types come from `arrays`. If `values` is given, the data come from it, in the same order;
    otherwise, the data also come from `arrays`.
    """
    # Header of names, shapes and offsets, then the values: https://huggingface.co/docs/safetensors/index#format
    header, end, names = {}, 0, {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with files.write_whole(path) as temporary, open(temporary, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for (name, array), value in zip(arrays.items(), values or arrays.values(), strict=True):
            if value.shape != array.shape:
                raise ValueError(f"{name} must have the shape {array.shape}. Received: {value.shape}.")
            file.write(np.ascontiguousarray(value, array.dtype).data)


class StoredTensors(Mapping):
    """Mapping of names to the tensors in a safetensors file; a tensor is read only when it is looked up.

    Raises `CheckpointError` for a missing or damaged file and, in a lookup, for a tensor with an unsupported dtype.
    """

    def __init__(self, path: AnyPath):
        self.path = path
        try:
            self._file = safe_open(path, framework="numpy", backend="pread")  # a mapped file would count as memory
        except (FileNotFoundError, SafetensorError) as error:  # its message may quote the whole file
            raise CheckpointError(f"{path} cannot be read: {error!s:.300}.") from None
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.offset_keys()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        dtype = self._file.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise CheckpointError(f"{self.path} cannot be read: it has {dtype!r}, not float32 or whole numbers.")
        try:
            return self._file.get_tensor(name)
        except (SafetensorError, ValueError) as error:  # a file that was truncated since, or more than 64 axes
            raise CheckpointError(f"{self.path} cannot be read: {error}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class CheckpointVersionError(CheckpointError):
    """Error for an intact checkpoint whose format version is not `FORMAT`."""


def write_manifest(folder: Path) -> None:
    """Writes a folder's manifest: the format version, each file's size and digest, and a checksum of all these."""
    found = (file for file in sorted(folder.iterdir()) if file.name != MANIFEST)
    entries = {file.name: {"bytes": file.stat().st_size, "blake2b": files.digest_file(file)} for file in found}
    manifest = {"format": FORMAT, "files": entries, "blake2b": _manifest_digest(FORMAT, entries)}
    files.write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, dict]:
    """Returns `{file name: {"bytes": size, "blake2b": digest}}` from a checkpoint's manifest. Raises `CheckpointError`
    if the manifest is missing or damaged, and `CheckpointVersionError` if its format version is not `FORMAT`."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{path} is missing from the checkpoint. Repeat the command, or copy the folder again.")
    manifest = files.read_json(path)
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    # The checksum is checked before the format, so that a flipped bit in the format is reported as damage.
    if not isinstance(entries, dict) or manifest.get("blake2b") != _manifest_digest(manifest.get("format"), entries):
        raise CheckpointError(f"{path} is damaged: it is not a list of files with the right checksum.")
    if (number := manifest["format"]) != FORMAT:
        raise CheckpointVersionError(
            f"{folder} has checkpoint format {number}; this reads format {FORMAT}. Update MyXTTS."
        )
    for name, entry in entries.items():
        if not (isinstance(entry, dict) and entry.keys() == {"bytes", "blake2b"} and _PLAIN_NAME.fullmatch(name)):
            raise CheckpointError(f"{path} names {name!r}, which cannot be a checkpoint's file. Nothing was opened.")
    return entries


def _entry(file):
    entries = read_manifest(file.parent)
    if file.name not in entries:
        raise CheckpointError(f"{file} is not part of the checkpoint.")
    return entries[file.name]


def _check_file(file, entry):
    if not file.is_file():
        raise CheckpointError(f"{file} is missing from the checkpoint.")
    if file.is_symlink():
        raise CheckpointError(f"{file} is a link, which is not followed. Put the file itself there.")
    if (size := file.stat().st_size) != entry["bytes"]:
        raise CheckpointError(f"{file} has {size} bytes instead of {entry['bytes']}.")
    if files.digest_file(file) != entry["blake2b"]:
        raise CheckpointError(f"{file} has been altered: its checksum does not match the manifest.")


class CheckpointStore:
    """Checkpoints of one stage. `folder` need not exist. `write` keeps the `keep` newest checkpoints and the best."""

    def __init__(self, folder: AnyPath, keep: int = 2):
        self.folder = Path(folder)
        self.keep = keep
        self._sound = set()  # steps of verified checkpoints, so that large files are verified only once

    def path(self, step: int) -> Path:
        """Returns the folder of the checkpoint at `step`."""
        path = self.folder / f"step_{step:08d}"
        replaced = path.with_name(f".{path.name}.replaced")
        return replaced if replaced.is_dir() and not path.exists() else path

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, including damaged ones, in ascending order."""
        found = (_STEP.fullmatch(entry.name) for entry in self.folder.glob("*step_*") if entry.is_dir())
        return sorted({int(match[1] or match[2]) for match in found if match})

    def newest_state(self) -> SavedState | None:
        """Returns the state of the newest checkpoint whose state can be read; None if there is none."""
        return self._newest(self.read_state)

    def newest_file(self, name: str) -> Path | None:
        """Returns the path of the file `name` in the newest checkpoint, or None if it has no such file. If the
        file or the manifest is damaged, uses the next older checkpoint."""
        return self._newest(lambda step: self.file(step, name))

    def _newest(self, read):
        """Returns `read(step)` for the newest step at which it raises no `CheckpointError`; None if there is none."""
        for step in reversed(steps := self.steps()):
            try:
                return read(step)
            except CheckpointError as error:
                follows = "There is none before it." if step == steps[0] else "Using the checkpoint before it."
                logger.warning("%s %s", error, follows)
        return None

    def best_step(self) -> int | None:
        """Returns the step of the best checkpoint, as recorded in the newest checkpoint's state; None if unknown."""
        best = (self.newest_state() or {}).get("best_step")
        return best if best in self.steps() else None

    def _list_best(self):
        """Updates `best.json`, which stores `best_step` for other programs."""
        best, path = self.best_step(), self.folder / "best.json"
        with suppress(CheckpointError):
            if best is None or files.read_json(path) == {"step": best}:
                return
        files.write_json(path, {"step": best})

    def write(
        self, step: int, tensors: Mapping[str, Mapping], state: dict, best: bool = False, copies: Mapping | None = None
    ) -> Path:
        """Writes a checkpoint, removes older checkpoints that are no longer kept, and returns the new folder.

        Raises `OSError` if the checkpoint cannot be written. Earlier checkpoints are then unchanged.

        Args:
            tensors: `{file name without suffix: {tensor name: NumPy array}}`.
            state: JSON values for `state.json`.
            best: Whether this is the best checkpoint so far, which is kept until there is a better one.
            copies: Additional files, as `{file name: bytes}`.
        """
        self._sound.discard(step)
        marks = {"step": step, "best_step": step if best else self.best_step()}
        path = self.folder / f"step_{step:08d}"
        with files.write_whole_folder(path, replaced_name=f".{path.name}.replaced") as folder:
            for name, arrays in tensors.items():
                # As in the library's files, dtypes with the largest items come first, so that all offsets are aligned.
                ordered = sorted(arrays.items(), key=lambda named: (-named[1].itemsize, named[0]))
                write_tensors(folder / f"{name}.safetensors", dict(ordered))
            for name, content in (copies or {}).items():
                (folder / name).write_bytes(content)
            files.write_json(folder / STATE, marks | state | marks)
            write_manifest(folder)
        kept = {*self.steps()[-self.keep :], self.best_step()}
        for old in self.steps():
            if old not in kept:
                # Renamed first: a kill during the deletion must not leave half a checkpoint under its name.
                going = files.temporary_path(self.path(old))
                os.replace(self.path(old), going)
                shutil.rmtree(going)
        self._list_best()
        return self.path(step)

    def verify(self, step: int) -> None:
        """Raises `CheckpointError` if a file of a checkpoint is missing or altered; the message names the file."""
        self._sound.discard(step)
        folder = self.path(step)
        for name, entry in read_manifest(folder).items():
            _check_file(folder / name, entry)
        self.read_state(step)
        self._sound.add(step)

    def digest(self, step: int, name: str = "model") -> str:
        """Returns the digest of the tensor file `name`, as recorded in the manifest."""
        return _entry(self.path(step) / f"{name}.safetensors")["blake2b"]

    def file(self, step: int, name: str) -> Path | None:
        """Returns the path of a file; None if it is not in the manifest. Raises `CheckpointError` if it is damaged."""
        path = self.path(step) / name
        if (entry := read_manifest(path.parent).get(name)) is None:
            return None
        _check_file(path, entry)
        return path

    def newest_sound(self, warn: Callable[[str], Any]) -> int | None:
        """Returns the step of the newest intact checkpoint, or None. Renames each damaged checkpoint that is newer, and
        calls `warn` with a message about it. If the format version of the newest intact checkpoint is not `FORMAT`,
        raises `CheckpointVersionError` and does not rename this checkpoint."""
        while steps := self.steps():
            step = steps[-1]
            try:
                self.verify(step)
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                aside = self.put_away(step, "damaged")
                follows = "the checkpoint before it is used" if self.steps() else "there is none before it"
                warn(f"{error} It was set aside as {aside}; {follows}.")
            else:
                # After a kill, renames of replaced checkpoints and `best.json` may be unfinished.
                with suppress(OSError):  # not necessary for reading, and the folder may belong to another user
                    for replaced in self.folder.glob(".step_*.replaced"):
                        path = replaced.with_name(replaced.stem[1:])
                        shutil.rmtree(replaced) if path.exists() else replaced.replace(path)
                    self._list_best()
                return step
        return None

    def has_sound(self) -> bool:
        """Returns whether there is an intact checkpoint of any format. Changes no files."""
        for step in self.steps():
            with suppress(CheckpointError):
                with suppress(CheckpointVersionError):
                    self.verify(step)
                return True
        return False

    def put_away(self, step: int, why: str) -> Path:
        """Renames a checkpoint to `{why}_step_…`, so that MyXTTS no longer uses it. Returns the new path."""
        return self.path(step).replace(files.free_path(self.folder / f"{why}_step_{step:08d}"))

    def read(self, step: int, names: Iterable[str]) -> tuple[dict[str, dict[str, np.ndarray]], dict]:
        """Returns the tensors of the files `names` as `{file name: {tensor name: array}}`, and the step's state."""
        return {name: dict(self.open(step, name)) for name in names}, self.read_state(step)

    def open(self, step: int, name: str = "model") -> StoredTensors:
        """Verifies a checkpoint and returns the tensors of its file `name`. Each tensor is read when looked up."""
        if step not in self._sound:
            self.verify(step)
        path = self.path(step) / f"{name}.safetensors"
        _entry(path)
        return StoredTensors(path)

    def read_state(self, step: int) -> SavedState:
        """Reads a checkpoint's `state.json`. Raises `CheckpointError` if it is damaged or belongs to another step."""
        path = self.path(step) / STATE
        _check_file(path, _entry(path))
        state = files.read_json(path)
        if (found := state.get("step") if isinstance(state, dict) else None) != step:
            raise CheckpointError(f"{path} is of step {found!s:.20}, not of step {step}: it was moved or damaged.")
        return checked_state(state, path)


def assign_by_name(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray], what: str) -> None:
    """Assigns arrays to variables by name. If names or shapes differ, raises `CheckpointError` and assigns nothing.

    In the error message, `what` is the name of the file or option that the arrays come from.
    """
    unfit = f"{what} does not fit this model's size or vocabulary:"
    missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
    if missing or unknown:
        lacks, extra = ([name[:100] for name in names[:3]] or "nothing" for names in (missing, unknown))
        raise CheckpointError(f"{unfit} missing {lacks}, unexpected {extra} ({len(missing)}, {len(unknown)} in all).")
    stored = arrays.shapes if isinstance(arrays, StoredTensors) else {name: arrays[name].shape for name in arrays}
    for name, variable in variables.items():
        theirs, ours = tuple(stored[name]), tuple(variable.shape)
        if theirs != ours:
            raise CheckpointError(f"{unfit} {name} has the shape {theirs} instead of {ours}.")
    for name, variable in variables.items():
        variable.assign(arrays[name])

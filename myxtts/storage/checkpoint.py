"""Checkpoints: safetensors and JSON in one folder per step, written whole or not at all.

A run's folder holds one folder per stage, in it one folder per kept step:

    RUN/config.json  RUN/vocab.json
    RUN/gpt/step_00001000/{model.safetensors, optimizer.safetensors, vocab.json, state.json, manifest.json}
    RUN/gpt/best.json    {"step": 1000}, for other programs: `state.json` says it, so that it appears with its folder

Nothing in a folder is believed: a manifest with checksums, itself under a checksum, names plain files of known sizes,
and none is opened through a link that leads elsewhere.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from myxtts.storage import files
from myxtts.storage.files import AnyPath, CheckpointError, digest_bytes, digest_file, free_path, read_json, write_json
from myxtts.storage.saved_state import SavedState, checked_state
from myxtts.storage.tensor_file import read_tensors, tensor_names

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the layout above; a checkpoint of another one is refused, not guessed at."""
MANIFEST = "manifest.json"
STATE = "state.json"
_STEP = re.compile(r"step_(\d{8})|\.step_(\d{8})\.replaced")
"""Folder of a checkpoint, and that of one being replaced: all there is after a kill between two renames."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+\.(safetensors|json)")


class CheckpointVersionError(CheckpointError):
    """A checkpoint that is whole but was written in another layout: neither damaged nor readable here."""


def write_manifest(folder: Path, entries: Mapping[str, dict]) -> None:
    """Writes the manifest of a checkpoint: `{file name: {"bytes": size, "blake2b": digest}}` under a checksum."""
    write_json(folder / MANIFEST, {"format": FORMAT, "files": entries, "blake2b": _manifest_digest(FORMAT, entries)})


def read_manifest(folder: Path) -> dict[str, dict]:
    """The entries of a checkpoint's manifest, as `write_manifest` takes them.

    Raises:
        CheckpointVersionError: The checkpoint is of another format.
        CheckpointError: The manifest is missing or damaged, or names a file outside the folder.
    """
    path = folder / MANIFEST
    manifest = read_json(path)
    damaged = CheckpointError(f"{path} is damaged: it is not the list of files that it should be.")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise damaged
    entries = manifest["files"]
    # Before the format: a flipped bit in the number must not pass for another version.
    if manifest.get("blake2b") != _manifest_digest(manifest.get("format"), entries):
        raise damaged
    if (number := manifest["format"]) != FORMAT:
        hint = "Use the version that wrote it, or a newer one."
        raise CheckpointVersionError(
            f"{folder} has checkpoint format {number}; this version of MyXTTS reads format {FORMAT}. {hint}"
        )
    for name, entry in entries.items():
        if not _PLAIN_NAME.fullmatch(name):
            raise CheckpointError(f"{path} names {name!r}, which cannot be a checkpoint's file; nothing was opened.")
        if not isinstance(entry, dict) or entry.keys() != {"bytes", "blake2b"}:
            raise damaged
    return entries


def _manifest_digest(number, entries):
    return digest_bytes(json.dumps([number, entries], sort_keys=True).encode())


def _save_tensors(path, arrays):
    path.touch()  # with the permissions that the umask gives; the library makes private files
    mode = path.stat().st_mode
    try:
        # Not `ascontiguousarray`, which makes a scalar an array of one.
        save_file({key: np.asarray(value, order="C") for key, value in arrays.items()}, path)
    except SafetensorError as error:
        # The library hides what the operating system said: a full disk, a folder that is gone.
        raise OSError(f"{path.name}: {error}") from error
    path.chmod(mode & 0o777)


def _check_file(file, entry):
    if entry is None:
        raise CheckpointError(f"{file} is not part of the checkpoint.")
    if not file.is_file():
        raise CheckpointError(f"{file} is missing from the checkpoint.")
    if file.is_symlink():
        raise CheckpointError(f"{file} is a link; it was not followed. Put the file itself there.")
    if (size := file.stat().st_size) != entry["bytes"]:
        raise CheckpointError(f"{file} has {size} bytes instead of {entry['bytes']}.")
    if digest_file(file) != entry["blake2b"]:
        raise CheckpointError(f"{file} has been altered: its checksum does not match the manifest.")


class CheckpointStore:
    """The checkpoints of one stage, in a folder that the first one makes: the newest `keep` of them and the best."""

    def __init__(self, folder: AnyPath, keep: int = 2):
        self.folder = Path(folder)
        self.keep = keep
        self._sound = {}  # manifests of verified checkpoints, so that a start reads large files once

    def path(self, step: int) -> Path:
        """Folder of the checkpoint at `step`."""
        path = self.folder / f"step_{step:08d}"
        replaced = path.with_name(f".{path.name}.replaced")
        return replaced if replaced.is_dir() and not path.exists() else path

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in ascending order."""
        return [step for step in self._folders() if (self.path(step) / MANIFEST).is_file()]

    def _folders(self):
        """Steps that have a folder, in ascending order; one without a manifest has been damaged."""
        found = (_STEP.fullmatch(entry.name) for entry in self.folder.glob("*step_*") if entry.is_dir())
        return sorted({int(match[1] or match[2]) for match in found if match})

    def newest_state(self) -> SavedState | None:
        """What the newest checkpoint whose state can be read holds besides tensors; None where there is none."""
        for step in reversed(self.steps()):
            try:
                return self.read_state(step)
            except CheckpointError as error:
                logger.warning("%s The checkpoint before it says what is asked for.", error)
        return None

    def best_step(self) -> int | None:
        """The step of the best checkpoint, or None: the newest one that can be read says which it is."""
        state = self.newest_state()
        if state is None:
            return None
        return next((step for step in self.steps() if step == state.get("best_step")), None)

    def _list_best(self):
        best, path = self.best_step(), self.folder / "best.json"
        with suppress(CheckpointError):
            if best is None or read_json(path) == {"step": best}:
                return
        write_json(path, {"step": best})

    def write(
        self,
        step: int,
        tensors: Mapping[str, Mapping],
        state: dict,
        best: bool = False,
        copies: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Writes one checkpoint, removes those no longer kept, and returns its folder.

        `tensors` is `{file name: {tensor name: NumPy array}}`; `state` is what else a run needs to resume, as JSON
        values; `copies` are contents of other files by name. One marked as the `best` so far is kept until there is a
        better one.

        Raises:
            OSError: It could not be written; earlier checkpoints are as they were.
        """
        self._sound.pop(step, None)
        says = {"step": step, "best_step": step if best else self.best_step()}
        path = self.folder / f"step_{step:08d}"
        with files.write_whole_folder(path, replaced_name=f".{path.name}.replaced") as folder:
            for name, arrays in tensors.items():
                _save_tensors(folder / f"{name}.safetensors", arrays)
            for name, content in (copies or {}).items():
                (folder / name).write_bytes(content)
            write_json(folder / STATE, says | state | says)
            written = sorted(folder.iterdir())
            write_manifest(folder, {f.name: {"bytes": f.stat().st_size, "blake2b": digest_file(f)} for f in written})
        self._prune()
        self._list_best()
        return self.path(step)

    def _prune(self):
        steps = self.steps()
        kept = {*steps[-self.keep :], self.best_step()}
        for step in steps:
            if step not in kept:
                # Renamed first: a kill in between must not leave half a checkpoint under a checkpoint's name.
                going = files.temporary_path(self.path(step))
                os.replace(self.path(step), going)
                shutil.rmtree(going)

    def verify(self, step: int) -> None:
        """Raises `CheckpointError` naming the first file of a checkpoint that is missing, cut short or altered."""
        self._sound.pop(step, None)
        folder = self.path(step)
        entries = read_manifest(folder)
        for name, entry in entries.items():
            _check_file(folder / name, entry)
        self.read_state(step)
        self._sound[step] = entries

    def digest(self, step: int, name: str = "model") -> str:
        """Digest of one tensor file of a checkpoint, from its manifest."""
        entries, file = read_manifest(self.path(step)), f"{name}.safetensors"
        if file not in entries:
            _check_file(self.path(step) / file, None)
        return entries[file]["blake2b"]

    def file(self, step: int, name: str) -> Path | None:
        """A file of a checkpoint, whose checksum holds, or None where it has no file of that name."""
        path = self.path(step) / name
        entry = read_manifest(path.parent).get(name)
        if entry is None:
            return None
        _check_file(path, entry)
        return path

    def newest_sound(self, warn: Callable[[str], Any]) -> int | None:
        """The newest step whose checkpoint is whole, or None. A damaged one is set aside and named through `warn`.

        Raises:
            CheckpointVersionError: It is whole, but has another format; it stays where it is.
        """
        while steps := self._folders():
            step = steps[-1]
            try:
                self.verify(step)
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                aside = self.put_away(step, "damaged")
                follows = "the checkpoint before it is used" if self._folders() else "there is none before it"
                warn(f"{error} It was set aside as {aside}; {follows}.")
            else:
                with suppress(OSError):  # tidiness only, and the folder may be another's
                    self._tidy()
                return step
        return None

    def has_sound(self) -> bool:
        """Whether there is a whole checkpoint, be it of another format. Changes nothing."""
        for step in self.steps():
            with suppress(CheckpointError):
                try:
                    self.verify(step)
                except CheckpointVersionError:
                    pass
                return True
        return False

    def _tidy(self):
        """Ends what a kill cut short: names of replaced checkpoints, and `best.json`."""
        for replaced in self.folder.glob(".step_*.replaced"):
            path = replaced.with_name(replaced.stem[1:])
            shutil.rmtree(replaced) if path.exists() else replaced.replace(path)
        self._list_best()

    def put_away(self, step: int, why: str) -> Path:
        """Renames a checkpoint so that no run takes it for one; returns its new path, `{why}_step_…`."""
        return self.path(step).replace(free_path(self.folder / f"{why}_step_{step:08d}"))

    def read(self, step: int, names: Iterable[str]) -> tuple[dict[str, dict[str, np.ndarray]], dict]:
        """Tensors of the files `names` of a checkpoint, `{file name: {tensor name: array}}`, and its state."""
        if step not in self._sound:
            self.verify(step)
        tensors = {}
        for name in names:
            path = self.path(step) / f"{name}.safetensors"
            if path.name not in self._sound[step]:
                _check_file(path, None)
            tensors[name] = dict(zip(tensor_names(path), read_tensors(path)))
        return tensors, self.read_state(step)

    def read_state(self, step: int) -> SavedState:
        """What a checkpoint holds besides tensors.

        Raises:
            CheckpointError: It is damaged, or of another step than the folder's name says; or later, when a key is read
                that it lacks.
        """
        path = self.path(step) / STATE
        _check_file(path, read_manifest(path.parent).get(STATE))
        state = read_json(path)
        if not isinstance(state, dict) or state.get("step") != step:
            found = f"step {state.get('step')!s:.20}" if isinstance(state, dict) else "no step at all"
            raise CheckpointError(f"{path} is of {found} and not of step {step}: the folder was renamed or damaged.")
        return checked_state(state, path)


def assign_by_name(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray], what: str) -> None:
    """Puts arrays into variables of the same names and shapes.

    Raises:
        CheckpointError: A name is missing on either side, or a shape differs; nothing has been assigned then.
    """
    unfit = f"{what} does not fit this model:"
    missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
    if missing or unknown:
        missing_few, unknown_few = ([name[:100] for name in names[:3]] or "nothing" for names in (missing, unknown))
        lacks = f"it lacks {missing_few} and has {unknown_few} too many"
        counts = f"({len(missing)} and {len(unknown)} in all)"
        raise CheckpointError(f"{unfit} {lacks} {counts}. Was it made with another model size?")
    for name, variable in variables.items():
        theirs, ours = tuple(arrays[name].shape), tuple(variable.shape)
        if theirs != ours:
            way_out = "Was it made with another model size or vocabulary?"
            raise CheckpointError(f"{unfit} {name} is {theirs} there and {ours} here. {way_out}")
    for name, variable in variables.items():
        variable.assign(arrays[name])

"""Checkpoints: safetensors and JSON in one folder per step, written whole or not at all.

A run's folder holds one folder per stage, in it one folder per kept step:

    RUN/config.json  RUN/vocab.json
    RUN/gpt/step_00001000/{model.safetensors, optimizer.safetensors, state.json, manifest.json}
    RUN/gpt/best.json    {"step": 1000}

Nothing in a folder is believed: a manifest with checksums, itself under a checksum, names plain files of known sizes, and
none of them is opened through a link that leads elsewhere.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import stat
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from myxtts.storage.tensor_file import CheckpointError, read_tensors, tensor_names

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the layout above; a checkpoint of another one is refused, not guessed at."""
MANIFEST = "manifest.json"
STATE = "state.json"
MAX_JSON_BYTES = 64 * 2**20
"""A run's settings, history and manifest take a few hundred kilobytes; a larger file is not ours."""
_STEP = re.compile(r"step_(\d{8})$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+\.(safetensors|json)")


class CheckpointVersionError(CheckpointError):
    """A checkpoint that is whole but was written in another layout: neither damaged nor readable here."""


def write_json(path, value):
    """Writes JSON whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path):
    """Reads a JSON file of ours.

    Raises:
        CheckpointError: The file is missing, no plain file, larger than `MAX_JSON_BYTES`, or not JSON.
    """
    path = Path(path)
    try:
        status = os.stat(path)
        # Before it is opened: a pipe would wait for a writer for ever.
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is not a regular file.")
        if status.st_size > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path} has {status.st_size} bytes; at most {MAX_JSON_BYTES} are read. It was not "
                "written by a training run."
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{path} is not there. Is this the folder of a training run or of `myxtts convert`?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def write_manifest(folder, entries):
    """Writes the manifest of a checkpoint: `{file name: {"bytes": size, "blake2b": digest}}` under a checksum."""
    write_json(folder / MANIFEST, {"format": FORMAT, "files": entries, "blake2b": _manifest_digest(FORMAT, entries)})


def read_manifest(folder):
    """The entries of a checkpoint's manifest, as `write_manifest` takes them.

    Raises:
        CheckpointVersionError: The checkpoint is of another format.
        CheckpointError: The manifest is missing or damaged, or names something that is no plain file of the folder.
    """
    path = folder / MANIFEST
    manifest = read_json(path)
    damaged = CheckpointError(f"{path} is damaged: it is not the list of files that it should be.")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise damaged
    if manifest.keys() == {"files"}:
        raise CheckpointVersionError(
            f"{folder} was written before checkpoints had a format number; this version reads "
            f"format {FORMAT}. Read it with the version that wrote it."
        )
    entries = manifest["files"]
    # First of all: a flipped bit in the number must not pass for another version.
    if manifest.get("blake2b") != _manifest_digest(manifest.get("format"), entries):
        raise damaged
    if manifest["format"] != FORMAT:
        raise CheckpointVersionError(
            f"{folder} is of checkpoint format {manifest['format']}; this version of MyXTTS reads "
            f"format {FORMAT}. Use the version that wrote it, or a newer one."
        )
    for name, entry in entries.items():
        if not _PLAIN_NAME.fullmatch(name):
            raise CheckpointError(f"{path} names {name!r}, which is no file of a checkpoint; nothing was opened.")
        if not isinstance(entry, dict) or entry.keys() != {"bytes", "blake2b"}:
            raise damaged
    return entries


def _manifest_digest(number, entries):
    content = json.dumps([number, entries], sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest(path):
    hasher = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def _save_tensors(path, arrays):
    try:
        # Not `ascontiguousarray`, which makes a scalar an array of one.
        save_file({key: np.asarray(value, order="C") for key, value in arrays.items()}, path)
    except SafetensorError as error:
        # The library hides what the operating system said: a full disk, a folder that is gone.
        raise OSError(f"{path.name}: {error}") from error


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CheckpointStore:
    """The checkpoints of one stage.

    Args:
        folder: Folder of the stage; made when the first checkpoint is written.
        keep: Newest checkpoints kept besides the best one.
    """

    def __init__(self, folder, keep=2):
        self.folder = Path(folder)
        self.keep = keep
        self._sound = {}  # entries of checkpoints that were verified, so that a start reads large files once

    def path(self, step):
        """Folder of the checkpoint at `step`."""
        return self.folder / f"step_{step:08d}"

    def steps(self):
        """Steps that have a checkpoint, rising."""
        return [step for step in self._folders() if (self.path(step) / MANIFEST).is_file()]

    def _folders(self):
        """Steps that have a folder, rising; one without a manifest has been damaged."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.match(entry.name) for entry in self.folder.iterdir() if entry.is_dir())
        return sorted(int(match.group(1)) for match in found if match)

    def best_step(self):
        """The step marked best, or None."""
        path = self.folder / "best.json"
        if not path.is_file():
            return None
        try:
            return int(read_json(path)["step"])
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s cannot be used, so the newest checkpoint counts as the best: %s", path, error)
            return None

    def mark_best(self, step):
        """Marks a step as the best; it is then kept."""
        write_json(self.folder / "best.json", {"step": step})

    def write(self, step, tensors, state, best=False):
        """Writes one checkpoint, then removes those no longer kept.

        Args:
            step: Optimizer steps taken.
            tensors: `{file name: {tensor name: NumPy array}}`.
            state: What else a run needs to go on, as JSON values.
            best: Mark it as the best so far.

        Returns:
            Its folder.

        Raises:
            OSError: It could not be written; the checkpoints before are as they were.
        """
        self._sound.pop(step, None)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".step_{step:08d}.{os.getpid()}.tmp"
        final, replaced = self.path(step), temporary.with_suffix(".old.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            for name, arrays in tensors.items():
                _save_tensors(temporary / f"{name}.safetensors", arrays)
            write_json(temporary / STATE, {"step": step, **state})
            files = sorted(temporary.iterdir())
            for file in files:
                _sync(file)
            write_manifest(
                temporary, {file.name: {"bytes": file.stat().st_size, "blake2b": _digest(file)} for file in files}
            )
            _sync(temporary)
            if final.exists():
                os.replace(final, replaced)
            os.replace(temporary, final)
            _sync(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            if replaced.exists() and not final.exists():
                os.replace(replaced, final)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
        if best:
            self.mark_best(step)
        self._prune()
        return final

    def _prune(self):
        steps = self.steps()
        kept = {*steps[-self.keep :], self.best_step()}
        for step in steps:
            if step not in kept:
                # Renamed first: a kill in between must not leave half a checkpoint under a checkpoint's name.
                going = self.folder / f".step_{step:08d}.{os.getpid()}.going.tmp"
                os.replace(self.path(step), going)
                shutil.rmtree(going)

    def clear_leftovers(self):
        """Removes what a killed run has left half written. To be called while no run writes here."""
        for leftover in self.folder.glob(".*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def set_aside(self):
        """Renames the stage's folder, so that a fresh start loses nothing.

        Returns:
            The new path, or None where there was no checkpoint.
        """
        if not self.steps():
            return None
        number = 1
        while (aside := self.folder.with_name(f"{self.folder.name}_before_reset_{number}")).exists():
            number += 1
        os.replace(self.folder, aside)
        return aside

    def verify(self, step):
        """Raises `CheckpointError` naming the first file of a checkpoint that is missing, cut short or altered."""
        self._sound.pop(step, None)
        folder = self.path(step)
        entries = read_manifest(folder)
        for name, entry in entries.items():
            size, digest = entry["bytes"], entry["blake2b"]
            file = folder / name
            if not file.is_file():
                raise CheckpointError(f"{file} is missing from the checkpoint.")
            if file.is_symlink():
                raise CheckpointError(f"{file} is a link; it was not followed. Put the file itself there.")
            if file.stat().st_size != size:
                raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}.")
            if _digest(file) != digest:
                raise CheckpointError(f"{file} has been altered: its checksum does not match the manifest.")
        self._sound[step] = entries

    def digest(self, step, name="model"):
        """Checksum of one tensor file of a checkpoint, as its manifest has it."""
        return read_manifest(self.path(step))[f"{name}.safetensors"]["blake2b"]

    def newest_sound(self, warn):
        """The newest step whose checkpoint is whole, or None. A damaged one is set aside and named through `warn`.

        Raises:
            CheckpointVersionError: It is whole, but of another format; it stays where it is.
        """
        for step in reversed(self._folders()):
            try:
                self.verify(step)
                return step
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                warn(f"{error} It was set aside as {self.put_away(step, 'damaged')}; the checkpoint before it is used.")
        return None

    def put_away(self, step, why):
        """Renames a checkpoint so that no run takes it for one; returns its new path, `{why}_step_…`."""
        aside = self.path(step).with_name(f"{why}_{self.path(step).name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(self.path(step), aside)
        return aside

    def read(self, step, names):
        """Tensors and state of a checkpoint.

        Args:
            step: Which.
            names: Tensor files to read.

        Returns:
            `({file name: {tensor name: array}}, state)`.
        """
        if step not in self._sound:
            self.verify(step)
        tensors = {}
        for name in names:
            path = self.path(step) / f"{name}.safetensors"
            if path.name not in self._sound[step]:
                raise CheckpointError(f"{path} is not part of the checkpoint.")
            tensors[name] = dict(zip(tensor_names(path), read_tensors(path)))
        return tensors, self.read_state(step)

    def read_state(self, step):
        """What a checkpoint holds besides tensors."""
        return read_json(self.path(step) / STATE)


def assign_by_name(variables, arrays, what):
    """Puts arrays into variables of the same names and shapes.

    Raises:
        CheckpointError: A name is missing on either side, or a shape differs; nothing has been assigned then.
    """
    missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
    if missing or unknown:
        raise CheckpointError(
            f"{what} does not fit this model: it lacks {missing[:3] or 'nothing'} and has "
            f"{unknown[:3] or 'nothing'} too many ({len(missing)} and {len(unknown)} in all). "
            "Was it made with another model size?"
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != tuple(arrays[name].shape):
            raise CheckpointError(
                f"{what} does not fit this model: {name} is {tuple(arrays[name].shape)} there and "
                f"{tuple(variable.shape)} here. Was it made with another model size or vocabulary?"
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])

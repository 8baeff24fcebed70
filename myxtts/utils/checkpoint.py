"""Checkpoints: safetensors and JSON in one folder per step, written whole or not at all.

A run's folder holds one folder per stage, in it one folder per kept step:

    RUN/config.json  RUN/vocab.json
    RUN/gpt/step_00001000/{model.safetensors, optimizer.safetensors, state.json, manifest.json}
    RUN/gpt/best.json    {"step": 1000}
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

MANIFEST = "manifest.json"
STATE = "state.json"
_STEP = re.compile(r"step_(\d{8})$")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another model; the message names what and what to do."""


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
        CheckpointError: The file is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not there. Is this the folder of a training run or of `myxtts convert`?") \
            from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def _digest(path):
    hasher = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


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

    def path(self, step):
        """Folder of the checkpoint at `step`."""
        return self.folder / f"step_{step:08d}"

    def steps(self):
        """Steps that have a checkpoint, rising."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.match(entry.name) for entry in self.folder.iterdir() if (entry / MANIFEST).is_file())
        return sorted(int(match.group(1)) for match in found if match)

    def best_step(self):
        """The step marked best, or None."""
        if not (self.folder / "best.json").is_file():
            return None
        return read_json(self.folder / "best.json")["step"]

    def write(self, step, tensors, state, best=False):
        """Writes one checkpoint, then removes those no longer kept.

        Args:
            step: Optimizer steps taken.
            tensors: `{file name: {tensor name: NumPy array}}`.
            state: What else a run needs to go on, as JSON values.
            best: Mark it as the best so far.

        Returns:
            Its folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".step_{step:08d}.{os.getpid()}.tmp"
        final, replaced = self.path(step), temporary.with_suffix(".old.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            for name, arrays in tensors.items():
                # Not `ascontiguousarray`, which makes a scalar an array of one.
                save_file({key: np.asarray(value, order="C") for key, value in arrays.items()},
                          temporary / f"{name}.safetensors")
            write_json(temporary / STATE, {"step": step, **state})
            files = sorted(temporary.iterdir())
            for file in files:
                _sync(file)
            write_json(temporary / MANIFEST, {"files": {file.name: {"bytes": file.stat().st_size, "blake2b": _digest(file)}
                                                        for file in files}})
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
            write_json(self.folder / "best.json", {"step": step})
        self._prune()
        return final

    def _prune(self):
        steps = self.steps()
        kept = {*steps[-self.keep:], self.best_step()}
        for step in steps:
            if step not in kept:
                shutil.rmtree(self.path(step))
        for leftover in self.folder.glob(".step_*.tmp"):
            if f".{os.getpid()}." not in leftover.name:
                shutil.rmtree(leftover, ignore_errors=True)

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
        folder = self.path(step)
        manifest = read_json(folder / MANIFEST)
        try:
            files = {name: (entry["bytes"], entry["blake2b"]) for name, entry in manifest["files"].items()}
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{folder / MANIFEST} is damaged: it is not the list of files that it should be.") \
                from None
        for name, (size, digest) in files.items():
            file = folder / name
            if not file.is_file():
                raise CheckpointError(f"{file} is missing from the checkpoint.")
            if file.stat().st_size != size:
                raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}.")
            if _digest(file) != digest:
                raise CheckpointError(f"{file} has been altered: its checksum does not match the manifest.")

    def digest(self, step, name="model"):
        """Checksum of one tensor file of a checkpoint, as its manifest has it."""
        return read_json(self.path(step) / MANIFEST)["files"][f"{name}.safetensors"]["blake2b"]

    def newest_sound(self, warn):
        """The newest step whose checkpoint is whole, or None. A damaged one is set aside and named through `warn`."""
        for step in reversed(self.steps()):
            try:
                self.verify(step)
                return step
            except CheckpointError as error:
                aside = self.path(step).with_name(f"damaged_step_{step:08d}")
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(self.path(step), aside)
                warn(f"{error} It was set aside as {aside}; the checkpoint before it is used.")
        return None

    def read(self, step, names):
        """Tensors and state of a checkpoint.

        Args:
            step: Which.
            names: Tensor files to read.

        Returns:
            `({file name: {tensor name: array}}, state)`.
        """
        self.verify(step)
        folder = self.path(step)
        tensors = {}
        for name in names:
            try:
                tensors[name] = load_file(folder / f"{name}.safetensors")
            except (FileNotFoundError, SafetensorError) as error:
                raise CheckpointError(f"{folder / name}.safetensors cannot be read: {error}.") from None
        return tensors, read_json(folder / STATE)


def assign_by_name(variables, arrays, what):
    """Puts arrays into variables of the same names and shapes.

    Raises:
        CheckpointError: A name is missing on either side, or a shape differs; nothing has been assigned then.
    """
    missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
    if missing or unknown:
        raise CheckpointError(f"{what} does not fit this model: it lacks {missing[:3] or 'nothing'} and has "
                              f"{unknown[:3] or 'nothing'} too many ({len(missing)} and {len(unknown)} in all). "
                              "Was it made with another model size?")
    for name, variable in variables.items():
        if tuple(variable.shape) != tuple(arrays[name].shape):
            raise CheckpointError(f"{what} does not fit this model: {name} is {tuple(arrays[name].shape)} there and "
                                  f"{tuple(variable.shape)} here. Was it made with another model size or vocabulary?")
    for name, variable in variables.items():
        variable.assign(arrays[name])

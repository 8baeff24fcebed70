"""The parts of a model as checkpoints hold them, with the names that weights have today."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.tensor_file import tensor_names

MEL_STATS = "mel_stats"
"""Name of `mel_stats`, and of the file of the GPT's checkpoint that holds it when a model comes without a DVAE."""
RENAMED_WEIGHTS = {"vocoder/": "decoder/"}
"""How weights' names began in older checkpoints, and how they begin now."""
FORMER_HOMES = {"speaker": "decoder"}
"""Parts that older folders keep among the weights of another part."""
PREFIXES = {"speaker": "speaker_encoder/", "decoder": "decoder/"}
"""How the names of weights begin, of parts that older folders keep together."""
JUDGED = ("gpt", "decoder")
"""Parts whose best checkpoint speaks; the others are built on as they were at the end."""
TAKEN_FROM = "taken_from"
"""Of a checkpoint's state: the folder that the weights were copied from."""


def current_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays under today's names, from names of any age."""
    for old, new in RENAMED_WEIGHTS.items():
        arrays = {new + name.removeprefix(old) if name.startswith(old) else name: a for name, a in arrays.items()}
    return arrays


def part_store(folder: str | os.PathLike, part: str) -> CheckpointStore:
    """The checkpoints that hold a part in the folder of a run or of `myxtts convert`, in whichever place.

    Raises:
        CheckpointError: The place where an older folder may have it is damaged.
    """
    store = CheckpointStore(Path(folder) / part)
    if store.steps() or part not in FORMER_HOMES:
        return store
    former = CheckpointStore(Path(folder) / FORMER_HOMES[part])
    if not (steps := former.steps()):
        return store
    names = tensor_names(former.path(steps[-1]) / "model.safetensors")
    return former if any(name.startswith(PREFIXES[part]) for name in names) else store


def chosen_step(store: CheckpointStore, part: str, which: str = "best") -> int:
    """Step of the checkpoint of a part that counts: the `best` or the `last` of what is `JUDGED`, else the last.

    `store`, from `part_store`, must have one.
    """
    best = store.best_step() if which == "best" and part in JUDGED else None
    return store.steps()[-1] if best is None else best


def read_part(
    store: CheckpointStore, step: int, names: Iterable[str] = ("model",), part: str | None = None
) -> tuple[dict[str, dict], dict]:
    """Tensors and state of a checkpoint, as `CheckpointStore.read` gives them, under today's names.

    Of `model` only the weights of `part`, whose checkpoints `part_store` gave; None is the part that the store's folder
    is named after.
    """
    tensors, state = store.read(step, names)
    tensors = {file: current_names(arrays) for file, arrays in tensors.items()}
    prefix = PREFIXES.get(part or store.folder.name)
    if prefix and "model" in tensors:
        tensors["model"] = {name: array for name, array in tensors["model"].items() if name.startswith(prefix)}
    return tensors, state


def copy_part(source: str | os.PathLike, target: str | os.PathLike, part: str) -> None:
    """Copies the newest checkpoint of a part from one folder into another that has none of its own, if there is one."""
    store, own = part_store(source, part), CheckpointStore(Path(target) / part)
    steps = store.steps()
    if steps and not own.steps():
        names = [file.stem for file in store.path(steps[-1]).glob("*.safetensors")]
        tensors, state = read_part(store, steps[-1], names, part)
        own.write(steps[-1], tensors, state | {TAKEN_FROM: str(source)})

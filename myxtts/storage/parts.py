"""The parts of a model as checkpoints hold them, with the names that weights have today."""

from collections.abc import Iterable

import numpy as np

from myxtts.storage.checkpoint import CheckpointStore

MEL_STATS = "mel_stats"
"""Name of `mel_stats`, and of the file of the GPT's checkpoint that holds it when a model comes without a DVAE."""
RENAMED_WEIGHTS = {"vocoder/": "decoder/"}
"""How weights' names began in older checkpoints, and how they begin now."""


def current_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays under today's names, from names of any age."""
    for old, new in RENAMED_WEIGHTS.items():
        arrays = {new + name.removeprefix(old) if name.startswith(old) else name: a for name, a in arrays.items()}
    return arrays


def read_part(store: CheckpointStore, step: int, names: Iterable[str] = ("model",)) -> tuple[dict[str, dict], dict]:
    """Tensors and state of a checkpoint, as `CheckpointStore.read` gives them, under today's names."""
    tensors, state = store.read(step, names)
    return {file: current_names(arrays) for file, arrays in tensors.items()}, state

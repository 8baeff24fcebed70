"""The parts of a model in checkpoints: names of files and of weights, those of older versions included."""

from collections.abc import Iterable, Mapping
from typing import Any

from myxtts.storage.checkpoint import CheckpointStore

MEL_STATS = "mel_stats"
"""The scale of the mel: a weight of the DVAE, and a file of the GPT's checkpoint in a model without a DVAE."""
RENAMED_WEIGHTS = {"vocoder/": "decoder/"}
"""First words of weights' names in older checkpoints, and those of today."""


def current_names(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under the names that the model gives its weights today."""
    renamed = {}
    for name, value in arrays.items():
        old = next((old for old in RENAMED_WEIGHTS if name.startswith(old)), "")
        renamed[RENAMED_WEIGHTS.get(old, "") + name.removeprefix(old)] = value
    return renamed


def read_part(store: CheckpointStore, step: int, files: Iterable[str] = ("model",)) -> dict[str, Any]:
    """Weights of one part of a model.

    Args:
        store: Of the part.
        step: Its checkpoint.
        files: Tensor files to read.

    Returns:
        NumPy arrays by current names, those of all files together.

    Raises:
        CheckpointError: The checkpoint is damaged or lacks one of the files.
    """
    tensors, _ = store.read(step, tuple(files))
    return current_names({name: array for arrays in tensors.values() for name, array in arrays.items()})

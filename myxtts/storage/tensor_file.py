"""Safetensors files: written one float32 tensor at a time, read by name."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from safetensors import SafetensorError, safe_open

from myxtts.storage.files import AnyPath, CheckpointError, new_hasher, write_whole


def write_tensors(path: AnyPath, shapes: Mapping[str, Sequence[int]], values: Iterable[np.ndarray]) -> dict:
    """Writes a file with only one tensor in memory; the library's writer holds all of them twice.

    The format is a header of names, shapes and offsets, followed by the values
    (https://huggingface.co/docs/safetensors/index#format).

    Args:
        values: The tensors, in the order of `shapes`.

    Returns:
        The file's entry in a checkpoint's manifest.
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    hasher = new_hasher()
    with write_whole(path) as temporary, open(temporary, "wb") as file:

        def write(content):
            hasher.update(content)
            file.write(content)

        write(len(encoded).to_bytes(8, "little"))
        write(encoded)
        for (name, shape), value in zip(shapes.items(), values, strict=True):
            if value.shape != tuple(shape):
                raise ValueError(f"{name} must have the shape {tuple(shape)}. Received: {value.shape}.")
            write(np.ascontiguousarray(value, "<f4").reshape(-1).view(np.uint8).data)
    return {"bytes": 8 + len(encoded) + end, "blake2b": hasher.hexdigest()}


def tensor_names(path: AnyPath) -> list[str]:
    """Returns the names of a file's tensors. Raises `CheckpointError` if it is missing or damaged."""
    with _open(path) as file:
        return list(file.keys())


def read_tensors(path: AnyPath, names: Iterable[str] | None = None) -> list[np.ndarray]:
    """Reads the tensors `names`, by default all, after checking the header's sizes.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    with _open(path) as file:
        try:
            arrays = [file.get_tensor(name) for name in (file.keys() if names is None else names)]
            if foreign := [array.dtype for array in arrays if array.dtype.isbuiltin != 1]:  # bfloat16, if registered
                raise TypeError(f"data type '{foreign[0]}' not understood")
            return arrays
        # NumPy has no bfloat16, no float8 and no array of 65 axes.
        except (AttributeError, TypeError, ValueError, SafetensorError) as error:
            stored = "MyXTTS stores float32 and whole numbers."
            raise CheckpointError(f"{path} cannot be read: {error!s:.300}. {stored}") from None


def _open(path):
    try:
        return safe_open(path, framework="numpy")
    except (FileNotFoundError, SafetensorError) as error:  # which may quote the whole file
        raise CheckpointError(f"{path} cannot be read: {error!s:.300}.") from None

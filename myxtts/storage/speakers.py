"""Voices that come with a model: conditioning latents and speaker vector of each, by name."""

import difflib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from myxtts.storage.files import AnyPath, CheckpointError
from myxtts.storage.tensor_file import read_tensors, tensor_names, write_tensors

SPEAKERS_FILE = "speakers.safetensors"
_LATENTS, _VECTOR = "/latents", "/speaker"


def write_speakers(folder: AnyPath, speakers: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Writes a model's voices by name: latents `(1, num_latents, width)`, vector `(1, speaker_width)`, float32."""
    arrays = {}
    for name, (latents, vector) in speakers.items():
        arrays |= {name + _LATENTS: latents, name + _VECTOR: vector}
    shapes = {name: array.shape for name, array in arrays.items()}
    write_tensors(Path(folder) / SPEAKERS_FILE, shapes, arrays.values())


def speaker_names(folder: AnyPath) -> list[str]:
    """Names of the voices that come with the model in `folder`, sorted; empty where there are none."""
    path = Path(folder) / SPEAKERS_FILE
    if not path.is_file():
        return []
    return sorted(name.removesuffix(_LATENTS) for name in tensor_names(path) if name.endswith(_LATENTS))


def read_speaker(folder: AnyPath, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Latents and speaker vector of one of the voices that come with a model, as `write_speakers` takes them.

    Raises:
        CheckpointError: There is no such voice; the message names similar ones.
    """
    names = speaker_names(folder)
    if not names:
        rule = f"--speaker needs a model that comes with voices. {folder} has no {SPEAKERS_FILE}."
        way_out = "Convert the model with --speakers speakers_xtts.pth, or give --reference-audio."
        raise CheckpointError(f"{rule} {way_out}")
    if name not in names:
        near = ", ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3])
        rule = f"--speaker must be one of the model's {len(names)} voices."
        raise CheckpointError(f"{rule} Received: {name}. Near it: {near:.300}.")
    latents, vector = read_tensors(Path(folder) / SPEAKERS_FILE, (name + _LATENTS, name + _VECTOR))
    return latents, vector

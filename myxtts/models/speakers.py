"""Voices that come with a model: conditioning latents and speaker vector of each, by name."""

import difflib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from myxtts.utils.checkpoint import CheckpointError

SPEAKERS_FILE = "speakers.safetensors"
_LATENTS, _VECTOR = "/latents", "/speaker"


def write_speakers(folder, speakers):
    """Writes the voices of a model.

    Args:
        folder: Of the model.
        speakers: `{name: (latents, vector)}`, `(1, num_latents, width)` and `(1, speaker_width)` float32.
    """
    arrays = {}
    for name, (latents, vector) in speakers.items():
        arrays |= {name + _LATENTS: np.ascontiguousarray(latents), name + _VECTOR: np.ascontiguousarray(vector)}
    (Path(folder) / SPEAKERS_FILE).write_bytes(save(arrays))


def speaker_names(folder):
    """Names of the voices that come with the model in `folder`, sorted; empty where there are none."""
    path = Path(folder) / SPEAKERS_FILE
    if not path.is_file():
        return []
    with _open(path) as file:
        return sorted(key.removesuffix(_LATENTS) for key in file.keys() if key.endswith(_LATENTS))


def read_speaker(folder, name):
    """One of the voices that come with a model.

    Args:
        folder: Of the model.
        name: See `speaker_names`.

    Returns:
        Latents, `(1, num_latents, width)`, and speaker vector, `(1, speaker_width)`, float32.

    Raises:
        CheckpointError: There is no such voice; the message names those that are near.
    """
    names = speaker_names(folder)
    if not names:
        raise CheckpointError(f"--speaker needs a model that comes with voices. {folder} has no {SPEAKERS_FILE}. "
                              "Convert the model with --speakers speakers_xtts.pth, or give --reference-audio.")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        raise CheckpointError(f"--speaker must be one of the model's {len(names)} voices. Received: {name}. "
                              f"Near it: {', '.join(near)}.")
    with _open(Path(folder) / SPEAKERS_FILE) as file:
        return file.get_tensor(name + _LATENTS), file.get_tensor(name + _VECTOR)


def _open(path):
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}. Convert the model again.") from None

"""Voices that come with a model: conditioning latents and speaker vector of each, by name."""

import difflib
from pathlib import Path

from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.tensor_file import read_tensors, tensor_names, write_tensors

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
        arrays |= {name + _LATENTS: latents, name + _VECTOR: vector}
    shapes = {name: array.shape for name, array in arrays.items()}
    write_tensors(Path(folder) / SPEAKERS_FILE, shapes, arrays.values())


def speaker_names(folder):
    """Names of the voices that come with the model in `folder`, sorted; empty where there are none."""
    path = Path(folder) / SPEAKERS_FILE
    if not path.is_file():
        return []
    return sorted(name.removesuffix(_LATENTS) for name in tensor_names(path) if name.endswith(_LATENTS))


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
        raise CheckpointError(
            f"--speaker needs a model that comes with voices. {folder} has no {SPEAKERS_FILE}. "
            "Convert the model with --speakers speakers_xtts.pth, or give --reference-audio."
        )
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
        raise CheckpointError(
            f"--speaker must be one of the model's {len(names)} voices. Received: {name}. Near it: {', '.join(near)}."
        )
    latents, vector = read_tensors(Path(folder) / SPEAKERS_FILE, (name + _LATENTS, name + _VECTOR))
    return latents, vector

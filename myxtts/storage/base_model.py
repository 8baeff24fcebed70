"""Location and names of the bundled model, which needs no training to speak and can be fine-tuned."""

import os
from collections.abc import Sequence
from pathlib import Path

from myxtts.storage.files import AnyPath, CheckpointError

BASE_NAME = "base"
"""Name of the bundled model wherever a model folder is expected; `./base` is an ordinary folder."""
BASE_FOLDER: Path = Path(__file__).resolve().parents[1] / "bundled" / "base"
EXPORT, MODEL, RELEASE, SETTINGS = "gpt.onnx", "*/*step_*/manifest.json", "*model.pth", "config.json"
RUNS, FOLDER, FILE, NEW = "*/config.json", "**", "file", "new"
KINDS = {
    EXPORT: "is an exported model: `myxtts serve` and its speak.py speak with it",
    "*step_*/manifest.json": "is one stage of {path.parent}: give that folder",
    MODEL: "is a model: --init-from starts from it, `myxtts say --checkpoint` speaks with it",
    RELEASE: "is a released model: --init-from starts from it, `myxtts say --checkpoint` speaks with it",
    "model.bin": "is a recognizer: --recognizer takes it",
    "model.safetensors": "is one checkpoint or a model of another program: give the folder of a run",
    SETTINGS: "has settings and no checkpoint",
    RUNS: "holds models: give one of them",
    FOLDER: "has no config.json. --train-data takes recordings",
    BASE_NAME: "is the bundled model: --init-from base starts from it, ./base is a folder",
    FILE: "is a file, or in one",
    NEW: "is not a folder",
}
"""Kinds of folders by the first file that they have, other kinds of paths and names, and what errors say of them."""
MODELS, PLACES = (BASE_NAME, MODEL, SETTINGS), (RUNS, FOLDER, NEW)
"""Kinds of models, and of folders that runs can be written to."""
FORMS = "the folder of a training run, of `myxtts convert` or of XTTS v2, base, or hf://owner/name"


def kind_of(source: AnyPath) -> str:
    """Returns the key in `KINDS` of a path or name."""
    path = Path(source)
    other = FILE if any(map(os.path.isfile, (path, *path.parents))) else NEW
    return BASE_NAME if is_base(source) else next((mark for mark in KINDS if any(path.glob(mark))), other)


def require_kind(
    source: AnyPath, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS, forms: str = FORMS
) -> Path:
    """Returns the folder of `base`, else `source`; raises `CheckpointError` unless it is of one of the `kinds`.

    `what` and `forms` are for the error: the option, and what it can be.
    """
    if (kind := kind_of(source)) in kinds:
        return base_folder() if kind == BASE_NAME else Path(source)
    found = KINDS[kind].format(path=Path(os.path.abspath(source)))
    raise CheckpointError(f"{what} must be {forms}. {source or '.'} {found}.")


def is_base(source: AnyPath | None) -> bool:
    """Whether `source` names the bundled model."""
    return source is not None and os.fspath(source) in (BASE_NAME, str(BASE_FOLDER))


def base_folder() -> Path:
    """Returns the folder of the bundled model. Raises `CheckpointError` if the installation lacks it."""
    if not (BASE_FOLDER / "config.json").is_file():
        hint = "Install the package again, or give the folder of another model with --checkpoint or --init-from."
        raise CheckpointError(f"The base model is missing from {BASE_FOLDER}. {hint}")
    return BASE_FOLDER


def model_name(folder: AnyPath) -> str:
    """Returns the display name of a model: `base` for the bundled model, else its folder."""
    return BASE_NAME if is_base(folder) else str(folder)


def default_speaker(folder: AnyPath, language: str) -> str | None:
    """Returns the bundled model's first voice of a language, else its first voice; None for other models."""
    from myxtts.storage.speakers import speaker_names  # imports NumPy, which plans do not need

    names = speaker_names(folder) if is_base(folder) else []
    return next((name for name in names if name.startswith(f"{language}_")), next(iter(names), None))

"""The bundled model: a small one that comes with the package, to speak at once and to start training from."""

import os
from pathlib import Path

from myxtts.storage.files import AnyPath, CheckpointError

BASE_NAME = "base"
"""What it is called where the folder of a model is asked for; a folder of that name is `./base`."""
BASE_FOLDER: Path = Path(__file__).resolve().parents[1] / "bundled" / "base"


MODEL_FORMS = "the folder of a training run or of `myxtts convert`, base, or hf://owner/name"
"""What may be named where a model is asked for."""


def require_model_folder(folder: AnyPath, what: str) -> None:
    """Raises `CheckpointError`, which names all that `what` may be, where a folder is not there."""
    path = Path(folder)
    if not path.is_dir() and not (path.suffix == ".pth" and path.is_file()):
        raise CheckpointError(f"{what} must be {MODEL_FORMS}. {folder} is not a folder.")


def is_base(source: AnyPath | None) -> bool:
    """Whether the bundled model is meant."""
    return source is not None and os.fspath(source) in (BASE_NAME, str(BASE_FOLDER))


def base_folder() -> Path:
    """Folder of the bundled model. Raises `CheckpointError` where the package came without it."""
    if not (BASE_FOLDER / "config.json").is_file():
        way_out = "Install the package again, or give the folder of another model with --checkpoint or --init-from"
        raise CheckpointError(f"The base model is missing from {BASE_FOLDER}. {way_out}.")
    return BASE_FOLDER


def model_name(folder: AnyPath) -> str:
    """What people call the model in a folder: `base`, wherever the package lies, else the folder itself."""
    return BASE_NAME if is_base(folder) else str(folder)


def default_speaker(folder: AnyPath, language: str) -> str | None:
    """The voice of its own that a model speaks a language in where none is given; only the bundled model has one."""
    from myxtts.storage.speakers import speaker_names  # brings NumPy, which plans do without

    names = speaker_names(folder) if is_base(folder) else []
    return next((name for name in names if name.startswith(f"{language}_")), next(iter(names), None))

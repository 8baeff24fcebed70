"""Location and names of the bundled model, which needs no training to speak and can be fine-tuned."""

import os
from pathlib import Path

from myxtts.storage.files import AnyPath, CheckpointError

BASE_NAME = "base"
"""Name of the bundled model wherever a model folder is expected; `./base` is an ordinary folder."""
BASE_FOLDER: Path = Path(__file__).resolve().parents[1] / "bundled" / "base"


def require_model_folder(folder: AnyPath, what: str, exported: bool = True) -> None:
    """Raises `CheckpointError` unless a folder, Coqui checkpoint, `base` or hub name is given for the option `what`.

    `exported` is whether the output folder of `myxtts export` is accepted, which only `myxtts serve` can load.
    """
    path, is_elsewhere = Path(folder), is_base(folder) or os.fspath(folder).startswith("hf://")
    if not (is_elsewhere or path.is_dir() or (path.suffix == ".pth" and path.is_file())):
        forms = "the folder of a training run or of `myxtts convert`, base, or hf://owner/name"
        raise CheckpointError(f"{what} must be {forms}. {folder} is not a folder.")
    if not (exported or is_elsewhere) and (path / "gpt.onnx").is_file():
        raise CheckpointError(f"{folder} is an exported model: `myxtts serve` and its speak.py speak with it.")


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

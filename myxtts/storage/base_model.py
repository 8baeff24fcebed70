"""Kinds of model folders and how to recognize them, and the location of the bundled model."""

import os
from collections.abc import Sequence
from pathlib import Path

from myxtts.config.checks import read_toml
from myxtts.config.settings import BASE_NAME, path_text
from myxtts.storage.files import AnyPath, CheckpointError

BASE_FOLDER: Path = Path(__file__).resolve().parents[1] / "bundled" / "base"
_READ = read_toml(__file__, "kinds.toml")
KINDS: dict[str, str] = {kind["mark"]: kind["text"] for kind in _READ.values()}
"""Error texts by kind of path. A kind is a glob pattern: a folder has the first kind that matches a path inside."""
_marks = lambda names: [_READ[name]["mark"] for name in names.split()]
MODEL, SETTINGS, EXPORT, STAGE, RELEASE, TRAINER = _marks("model settings export stage release trainer")
RUNS, FOLDER, FILE, NEW = _marks("runs folder file new")
MODELS = (BASE_NAME, MODEL, SETTINGS)
HOMES = (RUNS, FOLDER, NEW, MODEL, SETTINGS, *_marks("recognizer foreign"))
"""Kinds of paths that are allowed as the folder of a run (`--checkpoint-dir`)."""
FORMS = "the folder of a training run, of `myxtts convert` or of XTTS v2, base, or hf://owner/name"


def kind_of(source: AnyPath) -> str:
    """Returns a path's kind, a key of `KINDS`. The string "base" is the bundled model; `Path("base")` is a folder."""
    if is_base(source):
        return BASE_NAME
    path = Path(source)
    other = FILE if any(map(os.path.isfile, (path, *path.parents))) else NEW
    return next((mark for mark in KINDS if source and any(path.glob(mark))), other)


def require_kind(
    source: AnyPath, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS, forms: str = FORMS
) -> Path:
    """Returns `source` as a path, or the bundled model's folder for `base`.

    Raises `CheckpointError` if `kind_of(source)` is not in `kinds`. The message begins with "`what` must be `forms`".
    """
    if (kind := kind_of(source)) in kinds:
        return base_folder() if kind == BASE_NAME else Path(source)
    forms += ", or the folder of `myxtts export`" * (EXPORT in kinds and forms == FORMS)
    found = KINDS[kind].format(at=Path(os.path.realpath(source)))
    raise CheckpointError(f"{what} must be {forms}. {source or repr('')} {found}.")


def is_base(source: AnyPath | None) -> bool:
    """Returns whether `source` is the name (`base`) or the folder of the bundled model."""
    return source == BASE_NAME or str(source) == str(BASE_FOLDER)  # Path("./base") is an ordinary folder


def base_folder() -> Path:
    """Returns the folder of the bundled model. Raises `CheckpointError` if the installation lacks it."""
    if not (BASE_FOLDER / "config.json").is_file():
        raise CheckpointError(f"The base model is missing from {BASE_FOLDER}. Reinstall myxtts, or choose another.")
    return BASE_FOLDER


def model_name(folder: AnyPath) -> str:
    """Returns `base` for the bundled model, otherwise the folder's path. The path `base` is returned as `./base`."""
    return BASE_NAME if is_base(folder) else path_text(Path(folder))

"""What is to be judged and where the result goes; checked before anything that takes long is imported."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.files import read_json

JSON_FILE, CSV_FILE, PAGE, SOUNDS = "evaluation.json", "evaluation.csv", "report.html", "sounds"
WRITTEN = (JSON_FILE, CSV_FILE, PAGE, SOUNDS)
MODEL_FILE = "config.json"
"""What the folder of a run or of a converted model has."""
WHICH = ("best", "last")


@dataclass(frozen=True)
class Subject:
    """What is to be judged: a folder, and of a run's checkpoints which."""

    folder: Path
    which: str
    name: str
    is_model: bool


def subjects(asked: Sequence[str], which: str, local_folder: Callable[[str], str] = str) -> list[Subject]:
    """Reads `FOLDER` and `FOLDER@best` or `FOLDER@last`; each gets a name that no other has.

    Args:
        local_folder: Gives the folder of a model that is named otherwise.

    Raises:
        UserError: One of them is no folder that can be judged.
    """
    found, names = [], Counter()
    for one in asked:
        folder, at, chosen = one.rpartition("@")
        is_chosen = bool(at) and chosen in WHICH
        asked_for = folder if is_chosen else one
        path = Path(local_folder(asked_for))
        if not path.is_dir():
            rule = "What is evaluated must be the folder of a run, of a converted model, or of spoken files"
            raise UserError(f"{rule} with a metadata.csv. {one} is not a folder.")
        end = f"@{chosen}" if is_chosen else ""
        plain, parent = Path(asked_for).resolve().name, Path(asked_for).resolve().parent.name
        short, long = (model_name(path),) * 2 if is_base(path) else (plain, f"{parent}/{plain}")
        found.append((path, chosen if is_chosen else which, short + end, long + end))
    shorts, result = Counter(short for _, _, short, _ in found), []
    for path, chosen, short, long in found:
        name = long if shorts[short] > 1 else short
        names[name] += 1
        name = name if names[name] == 1 else f"{name} ({names[name]})"
        result.append(Subject(path, chosen, name, (path / MODEL_FILE).is_file()))
    return result


def check_output(folder: Path) -> None:
    """Raises `UserError` unless nothing is there, or only what an evaluation wrote."""
    if folder.is_symlink() or folder.exists() and not folder.is_dir():
        raise UserError(f"--output must name a folder. {folder} is something else.")
    if not folder.is_dir():
        return
    names = {one.name for one in folder.iterdir()}
    found = read_json(folder / JSON_FILE) if JSON_FILE in names else None
    is_ours = isinstance(found, dict) and found.get("format") == "myxtts evaluation"
    if names and not (is_ours and names <= set(WRITTEN)):
        raise UserError(f"--output must be a new folder or an earlier evaluation's. {folder} holds something else.")

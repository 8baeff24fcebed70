"""Models and files to evaluate, and the output folder. Imports no TensorFlow, so that errors are reported at once."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.files import read_json

JSON_FILE, CSV_FILE, PAGE, SOUNDS = "evaluation.json", "evaluation.csv", "report.html", "sounds"
MODEL_FILE = "config.json"
"""Present in the folder of a run or a converted model."""
WHICH = ("best", "last")


@dataclass(frozen=True)
class Subject:
    """A model and its checkpoint, or a folder of audio files."""

    folder: Path
    which: str
    name: str
    is_model: bool


def subjects(asked: Sequence[str], which: str, local_folder: Callable[[str], str] = str) -> list[Subject]:
    """Parses `FOLDER`, `FOLDER@best` and `FOLDER@last`; each subject gets a unique name.

    Args:
        which: Checkpoint where none is given.
        local_folder: Returns the folder of a model on the hub.

    Raises:
        UserError: A folder does not exist.
    """
    found, names = [], Counter()
    for one in asked:
        folder, at, chosen = one.rpartition("@")
        given, end = (folder, f"@{chosen}") if at and chosen in WHICH else (one, "")
        path = Path(local_folder(given))
        if not path.is_dir():
            rule = "FOLDER must be a run, a converted model, or spoken files with a metadata.csv"
            raise UserError(f"{rule}. {one} is not a folder.")
        plain, parent = Path(given).resolve().name, Path(given).resolve().parent.name
        short, long = (model_name(path),) * 2 if is_base(path) else (plain, f"{parent}/{plain}")
        found.append((path, end[1:] or which, short + end, long + end))
    shorts, result = Counter(short for _, _, short, _ in found), []
    for path, chosen, short, long in found:
        name = long if shorts[short] > 1 else short
        names[name] += 1
        name = name if names[name] == 1 else f"{name} ({names[name]})"
        result.append(Subject(path, chosen, name, (path / MODEL_FILE).is_file()))
    return result


def check_output(folder: Path) -> None:
    """Raises `UserError` unless the output folder is new, empty or of an earlier evaluation."""
    if folder.is_symlink() or folder.exists() and not folder.is_dir():
        raise UserError(f"--output must name a folder. {folder} is something else.")
    names = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    found = read_json(folder / JSON_FILE) if JSON_FILE in names else None
    is_ours = isinstance(found, dict) and found.get("format") == "myxtts evaluation"
    if names and not (is_ours and names <= {JSON_FILE, CSV_FILE, PAGE, SOUNDS}):
        raise UserError(f"--output must be a new folder or an earlier evaluation's. {folder} holds something else.")

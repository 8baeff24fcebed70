"""The folder of a run: checked, locked, moved aside when training is reset."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.storage.files import AnyPath, CheckpointError, free_path, remove_leftovers, sync_path, write_whole_folder
from myxtts.storage.locks import locked_folder
from myxtts.storage.provenance import VOCABULARY
from myxtts.storage.speakers import SPEAKER_CLIPS, SPEAKERS_FILE

GATHERED = ".before_reset"
"""Folder in which files are gathered before they are set aside together."""
METRICS = "metrics.jsonl"
"""Figures of a run, one JSON object per line."""
_SHOWN = ("samples", "tensorboard", METRICS, "curves.png")
RUN_FILES = ("config.json", VOCABULARY, SPEAKERS_FILE, SPEAKER_CLIPS, *_SHOWN)
"""Files of a run besides the folders of its stages."""
LOG = "train.log"
_REPORTS = (LOG, "inspected_*.json", "clips_*.csv", "diverged_*.json")
"""Reports of a run, which stay when a run is set aside."""


@contextmanager
def own_run_folder(folder: AnyPath) -> Iterator[Path]:
    """Creates a run's folder if necessary, locks it, and cleans up after a killed run.

    A new folder is removed again if the run is refused before anything but its log was written.

    Raises:
        CheckpointError: The folder cannot be written to, another run writes to it, or it contains links.
    """
    folder = Path(folder)
    refuse_file(folder)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
            stack.enter_context(locked_folder(folder))
        except BlockingIOError:
            message = f"Another run is writing to {folder}. Wait for it, stop it, or name another --checkpoint-dir."
            raise CheckpointError(message) from None
        except OSError as error:
            rule = "--checkpoint-dir must be a folder that can be written to."
            raise CheckpointError(f"{rule} {folder}: {error.strerror}. Repair it, or name another.") from error
        _refuse_links(folder)
        _put_back(folder)
        for place in (folder.resolve(), folder / "samples", folder / SPEAKER_CLIPS):
            remove_leftovers(place)
        try:
            yield folder
        except UserError:
            if made and {path.name for path in folder.iterdir()} <= {LOG}:
                (folder / LOG).unlink(missing_ok=True)
                with suppress(OSError):  # other files are there by now
                    for place in made:
                        place.rmdir()
            raise


def refuse_file(folder: AnyPath, flag: str = "--checkpoint-dir") -> None:
    """Raises `CheckpointError` if the folder that `flag` names, or one that contains it, is a file."""
    for place in (folder := Path(folder), *folder.parents):
        if place.exists() and not place.is_dir():
            raise CheckpointError(f"{flag} must be a folder. {place} is a file. Name another.")


def set_aside(folder: Path, names: Iterable[str], shared: Iterable[str] = ()) -> Path:
    """Moves the existing files `names` of a run into `before_reset` or the next free such name, and returns it.

    After an error, or at the next start (`own_run_folder`) after a kill, all of them are back. Folders in `shared` are
    copied instead, since the next run uses them too.
    """
    gathered = folder / GATHERED
    with write_whole_folder(gathered) as new:
        for name in shared:
            shutil.copytree(folder / name, new / name)
    try:
        for name in filter(lambda name: os.path.lexists(folder / name), names):
            os.replace(folder / name, gathered / name)
        aside = gathered.replace(free_path(folder / "before_reset"))
    except BaseException:
        for name in shared:
            shutil.rmtree(gathered / name, ignore_errors=True)
        _put_back(folder)
        raise
    sync_path(folder)
    return aside


def _put_back(folder):
    gathered = folder / GATHERED
    if not gathered.is_dir() or gathered.is_symlink():
        return
    for entry in list(gathered.iterdir()):
        if not os.path.lexists(folder / entry.name):
            entry.replace(folder / entry.name)
    # After a kill, copies of shared folders are left. They are kept, since the user may need them.
    if any(gathered.iterdir()):
        gathered.replace(free_path(folder / "before_reset"))
    else:
        gathered.rmdir()


def _refuse_links(folder):
    """Raises `CheckpointError` for links and devices, through which a run would write to other files."""
    places = [path for path in folder.iterdir() if any(map(path.match, (*RUN_FILES, *_REPORTS, *STAGES)))]
    for path in chain(places, (inner for place in places if place.is_dir() for inner in place.iterdir())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CheckpointError(
                f"{path} is a link, a pipe or a device, which a run does not write to. Put the file or folder itself "
                "there, or name another --checkpoint-dir."
            )


def read_metrics(folder: AnyPath) -> list[dict]:
    """Reads a run's `metrics.jsonl`, without lines that a kill cut short."""
    path, found = Path(folder, METRICS), []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue
            if isinstance(one, dict) and {"stage", "step", "kind"} <= one.keys():
                found.append(one)
    return found

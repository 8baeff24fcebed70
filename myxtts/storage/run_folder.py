"""The folder of a run: fit to be written to, written to by one run at a time, and set aside as one."""

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
"""Holds what is about to be set aside, until it is all of a run."""
METRICS = "metrics.jsonl"
"""Every figure of a run, a JSON object a line."""
SHOWN = ("samples", "tensorboard", METRICS, "curves.png")
"""What a run says of its course to people."""
RUN_FILES = ("config.json", VOCABULARY, SPEAKERS_FILE, SPEAKER_CLIPS, *SHOWN)
"""What a run has in its folder besides the folders of its parts, and is nothing without or for itself alone."""
LOG = "train.log"
_REPORTS = (LOG, "inspected_*.json", "clips_*.csv", "diverged_*.json")
"""What else a run writes there, about its recordings and itself; it stays when a run is set aside."""


@contextmanager
def own_run_folder(folder: AnyPath) -> Iterator[Path]:
    """Makes a run's folder if need be, keeps other runs out of it, clears or undoes what a killed one left half done.

    A folder that it made goes away again where the run is refused before anything but its log is in it.

    Raises:
        CheckpointError: It cannot be written to, another run writes to it, or something in it leads elsewhere.
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
            way_out = "Wait for it, stop it, or name another --checkpoint-dir."
            raise CheckpointError(f"Another run is writing to {folder}. {way_out}") from None
        except OSError as error:
            rule = "--checkpoint-dir must be a folder that can be written to."
            raise CheckpointError(f"{rule} {folder}: {error.strerror}. Free or mend it, or name another.") from error
        _refuse_links(folder)
        _put_back(folder)
        for place in (folder.resolve(), folder / "samples", folder / SPEAKER_CLIPS):
            remove_leftovers(place)
        try:
            yield folder
        except UserError:
            if made and {path.name for path in folder.iterdir()} <= {LOG}:
                (folder / LOG).unlink(missing_ok=True)
                with suppress(OSError):  # another's files are beside it by now
                    for place in made:
                        place.rmdir()
            raise


def refuse_file(folder: AnyPath) -> None:
    """Raises `CheckpointError` where a run's folder, or one that it is to be made in, is a file."""
    for place in (folder := Path(folder), *folder.parents):
        if place.exists() and not place.is_dir():
            raise CheckpointError(f"--checkpoint-dir must be a folder. {place} is a file. Name another.")


def set_aside(folder: Path, names: Iterable[str], shared: Iterable[str] = ()) -> Path:
    """Moves files and folders of a run, where they are there, into `before_reset` or the next free such name.

    All of them are moved or, after an error or at the next start (`own_run_folder`) after a kill, none. What the next
    run shares stays, and is copied there as well.

    Returns:
        The new folder, which is one of a run.
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
    # A kill leaves the copies of what was shared; whose they are is for the user to say, so nothing is deleted.
    if any(gathered.iterdir()):
        gathered.replace(free_path(folder / "before_reset"))
    else:
        gathered.rmdir()


def _refuse_links(folder):
    """A folder that somebody else made may hold links, by which a run would write to files that are not its own."""
    places = [path for path in folder.iterdir() if any(map(path.match, (*RUN_FILES, *_REPORTS, *STAGES)))]
    for path in chain(places, (inner for place in places if place.is_dir() for inner in place.iterdir())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problem = f"{path} is a link, a pipe or a device, and a run writes to plain files in its own folder"
            raise CheckpointError(f"{problem}. Put the file or folder itself there, or name another --checkpoint-dir.")


def read_metrics(folder: AnyPath) -> list[dict]:
    """The lines of a run's `metrics.jsonl` in their order, but for those that a kill cut short."""
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

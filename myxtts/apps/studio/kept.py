"""What is kept beside the page: runs, data sets, exports and the evaluation, with a way to the trash."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from myxtts.apps.studio.data_sets import FOLDER
from myxtts.apps.studio.processes import require_free
from myxtts.apps.studio.run_view import runs_in
from myxtts.apps.studio.studio import EVALUATION, EXPORTS
from myxtts.config.checks import UserError
from myxtts.storage.files import free_path

TRASH = "_trash"
"""Beside the runs; nothing in it is ever deleted by the page."""


class Kept(NamedTuple):
    """A folder that is kept."""

    kind: str
    """`run`, `data`, `export` or `evaluation`."""
    folder: Path
    size: str
    changed: str
    """Date and time of the last change in it."""


def kept_in(home: Path) -> dict[str, Kept]:
    """All that is kept, by its place within the folder of the runs; newest first within each kind."""
    found = [("run", home / name) for name in runs_in(home)]
    found += [
        (kind, path) for kind, place in (("data", FOLDER), ("export", EXPORTS)) for path in home.glob(f"{place}/*/")
    ]
    found += [("evaluation", path) for path in home.glob(f"{EVALUATION}/")]
    return {str(path.relative_to(home)): _measure(kind, path) for kind, path in found}


def to_trash(home: Path, place: str | None) -> Path:
    """Moves what is kept at a place of `kept_in` into the trash; returns its new folder. Raises `UserError` where
    nothing is there, or a run trains in it."""
    one = kept_in(home).get(place or "")
    if one is None:
        raise UserError(f"Nothing is kept at {place}. Choose one of the list.")
    require_free(one.folder)
    (home / TRASH).mkdir(exist_ok=True)
    return one.folder.replace(free_path(home / TRASH / one.folder.name))


def _measure(kind, folder):
    files = [Path(place, name).lstat() for place, _, names in os.walk(folder) for name in names]
    megabytes = sum(one.st_size for one in files) / 2**20
    size = f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
    changed = max([one.st_mtime for one in files], default=folder.stat().st_mtime)
    return Kept(kind, folder, size, time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)))

"""Files beside the runs: votes, and the list of runs, data sets, exports and the evaluation, with its trash."""

import csv
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.apps.studio.data_sets import EVALUATION, EXPORTS, FOLDER
from myxtts.apps.studio.processes import require_free
from myxtts.apps.studio.run_view import runs_in
from myxtts.config.checks import UserError
from myxtts.storage.files import append_line, csv_text, free_path

TRASH = "_trash"
"""Beside the runs; the page deletes nothing in it."""
VOTES = "_votes.csv"
COLUMNS = ("time", "first", "second", "better", "blind", "text", "seed")
SAME = "same"


class Kept(NamedTuple):
    """A run, data set or export, or the evaluation, as listed by `kept_in`."""

    kind: str
    """`run`, `data`, `export` or `evaluation`."""
    folder: Path
    size: str
    changed: str
    """Date and time of the last change in it."""


def kept_in(home: Path) -> dict[str, Kept]:
    """Runs, data sets, exports and the evaluation by their path within the folder of the runs; newest runs first."""
    found = [("run", home / name) for name in runs_in(home)]
    patterns = {"data": f"{FOLDER}/*/", "export": f"{EXPORTS}/*/", "evaluation": f"{EVALUATION}/"}
    found += [(kind, path) for kind, pattern in patterns.items() for path in home.glob(pattern)]
    return {str(path.relative_to(home)): _measure(kind, path) for kind, path in found}


def to_trash(home: Path, place: str | None) -> Path:
    """Moves an entry of `kept_in` into the trash; returns its new folder.

    Raises:
        UserError: There is no such entry, or a run trains in it.
    """
    one = kept_in(home).get(place or "")
    if one is None:
        raise UserError(f"{place} is not in the list. Choose an entry.")
    require_free(one.folder)
    (home / TRASH).mkdir(exist_ok=True)
    return one.folder.replace(free_path(home / TRASH / one.folder.name))


def _measure(kind, folder):
    files = [Path(place, name).lstat() for place, _, names in os.walk(folder) for name in names]
    megabytes = sum(one.st_size for one in files) / 2**20
    size = f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
    changed = max([one.st_mtime for one in files], default=folder.stat().st_mtime)
    return Kept(kind, folder, size, time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)))


class Votes:
    """Votes for the better of two models, in a file beside the runs that is only appended to."""

    def __init__(self, home: Path):
        self.path: Path = home / VOTES

    def add(self, sides: Sequence[str], better: int | None, blind: bool, text: str, seed: int) -> None:
        """Appends a vote.

        Args:
            sides: Names of the two models, in the order of listening.
            better: Index of the better one; None for a tie.
        """
        if not self.path.exists():
            append_line(self.path, csv_text([COLUMNS], end=""))
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        chosen = SAME if better is None else sides[better]
        append_line(self.path, csv_text([(at, *sides, chosen, int(blind), text, seed)], end=""))

    def counts(self) -> list[list]:
        """For each pair: its names, the votes for each, and ties."""
        found: dict[tuple, Counter] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else ()
        for one in csv.DictReader(lines):
            if one.get("better"):
                pair = tuple(sorted((one["first"], one["second"])))
                found.setdefault(pair, Counter())[one["better"]] += 1
        return [[*pair, votes[pair[0]], votes[pair[1]], votes[SAME]] for pair, votes in found.items()]

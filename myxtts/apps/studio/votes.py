"""Which of two voices listeners prefer, counted over all comparisons."""

import csv
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from myxtts.storage.files import append_line, csv_text

FILE = "_votes.csv"
COLUMNS = ("time", "first", "second", "better", "blind", "text", "seed")
SAME = "same"


class Votes:
    """Votes in a file beside the runs, a line each, never changed."""

    def __init__(self, home: Path):
        self.path: Path = home / FILE

    def add(self, sides: Sequence[str], better: int | None, blind: bool, text: str, seed: int) -> None:
        """Writes a vote down.

        Args:
            sides: Names of the two, as they were heard.
            better: Index of the better one; None for none.
        """
        if not self.path.exists():
            append_line(self.path, _line(COLUMNS))
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        chosen = SAME if better is None else sides[better]
        append_line(self.path, _line((at, *sides, chosen, int(blind), text, seed)))

    def counts(self) -> list[list]:
        """Of each pair: its names, how often each was better, and how often neither."""
        found: dict[tuple, Counter] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else ()
        for one in csv.DictReader(lines):
            if one.get("better"):
                pair = tuple(sorted((one["first"], one["second"])))
                found.setdefault(pair, Counter())[one["better"]] += 1
        return [[*pair, votes[pair[0]], votes[pair[1]], votes[SAME]] for pair, votes in found.items()]


def _line(values):
    return csv_text([values], end="")

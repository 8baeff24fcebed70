"""The folder of a data set: clips in `wavs/`, lists of clips and segments, and a record of each recording."""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from myxtts.config.checks import UserError
from myxtts.storage.files import csv_text, locked_folder, read_json, remove_leftovers, write_json, write_text

MARK = "make_dataset.json"
TRAINING, VALIDATION, SEGMENTS, REPORT = "metadata_train.csv", "metadata_eval.csv", "segments.csv", "report.html"
WAVS, SOURCES = "wavs", "sources"
LIST_COLUMNS = ("audio_file", "text", "speaker_name", "language")
SEGMENT_COLUMNS = ("source", "start_seconds", "end_seconds", "verdict", "reason", "detail", "clip", "text")

_FORMAT = 1


class SetFolder:
    """A data set on disk, open in one process. Existing lines of its lists are never changed.

    The record of a recording in `sources/` is written last; what an interrupted run left without it is replaced.
    """

    def __init__(self, path: Path):
        self.path = path

    def record_path(self, source_id: str) -> Path:
        """File of a recording's record."""
        return self.path / SOURCES / f"{source_id}.json"

    def records(self) -> list[dict[str, Any]]:
        """Returns the records of all recordings, in the order of their addition."""
        return sorted(map(read_json, (self.path / SOURCES).glob("*.json")), key=lambda record: record["number"])

    def has_clips(self, name: str, but_source: str) -> bool:
        """Whether a list has clips of other recordings than `but_source`."""
        return any(not line.startswith(f"{WAVS}/{but_source}/") for line in self._lines(name))

    def cache_path(self, source_id: str) -> Path:
        """Cache of the recognizer's results, until a recording is done."""
        return self.path / SOURCES / f"{source_id}.heard"

    def add(self, record: dict[str, Any]) -> None:
        """Adds a recording whose clips are written to the lists, then its record (of `make.make_dataset`)."""
        source_id, rate = record["id"], record["sample_rate"]
        for name, held in ((TRAINING, False), (VALIDATION, True)):
            rows = [row for row in record["rows"] if row["clip"] and row["validation"] == held]
            lines = [(row["clip"], row["text"], record["speaker"], record["language"]) for row in rows]
            self._append(name, LIST_COLUMNS, lines, f"{WAVS}/{source_id}/", "|")
        lines = []
        for row in record["rows"]:
            times = (f"{row['start'] / rate:.6f}", f"{row['end'] / rate:.6f}")
            verdict = "kept" if row["clip"] else "left out"
            lines.append((source_id, *times, verdict, *(row[name] for name in SEGMENT_COLUMNS[4:])))
        self._append(SEGMENTS, SEGMENT_COLUMNS, lines, f"{source_id},", ",")
        number = 1 + max((one["number"] for one in self.records()), default=0)
        write_json(self.record_path(source_id), {**record, "number": number})
        self.cache_path(source_id).unlink(missing_ok=True)

    def _append(self, name, columns, lines, start, separator):
        """Appends the lines of a recording, which begin with `start`; those of an interrupted run are replaced."""
        kept = [line for line in self._lines(name) if not line.startswith(start)]
        if not kept and not lines:
            (self.path / name).unlink(missing_ok=True)
            return
        content = io.StringIO()
        if name == SEGMENTS:
            content.write(csv_text(lines, separator))
        else:  # training texts are not escaped for spreadsheets
            csv.writer(content, delimiter=separator, lineterminator="\n").writerows(lines)
        write_text(self.path / name, "\n".join([separator.join(columns), *kept, content.getvalue()]))

    def _lines(self, name):
        path = self.path / name
        return path.read_text(encoding="utf-8").splitlines()[1:] if path.is_file() else []


@contextmanager
def open_set(path: Path) -> Iterator[SetFolder]:
    """Creates or opens the folder of a data set and locks it; a new one that stays empty is removed.

    Raises:
        UserError: The folder has other content, or another process writes to it.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"--output must be a folder. {path} is a file.")
    names = {one.name for one in path.iterdir() if not one.name.startswith(".")} if path.is_dir() else set()
    if MARK not in names and not names <= {WAVS, SOURCES}:
        raise UserError(f"--output must be a new or empty folder, or one of make-dataset. {path} holds something else.")
    folders = (path / WAVS, path / SOURCES)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(path))
        except BlockingIOError:
            raise UserError(f"Another run is writing to {path}. Wait for it, or give another --output.") from None
        for folder in (path, *folders):
            remove_leftovers(folder)
        if not (path / MARK).is_file():
            write_json(path / MARK, {"format": _FORMAT})
        if read_json(path / MARK).get("format") != _FORMAT:
            raise UserError(f"{path} was made by another version of make-dataset. Give another --output.")
        try:
            yield SetFolder(path)
        finally:
            is_unused = {one.name for one in path.iterdir()} == {MARK, WAVS, SOURCES}
            if MARK not in names and is_unused and not any(any(one.iterdir()) for one in folders):
                (path / MARK).unlink()
                for folder in (*folders, path):
                    folder.rmdir()


def source_id(name: str, digest: str) -> str:
    """Returns the file name of a recording in the data set: ASCII characters of its name and part of its digest."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", Path(name).stem).strip("_")[:40]
    return f"{plain or 'source'}-{digest[:10]}"

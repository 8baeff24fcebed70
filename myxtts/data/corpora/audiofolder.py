"""Hugging Face audiofolder: `metadata.jsonl` or `metadata.csv` with `file_name`, perhaps one in each of `train/`, …"""

import json
from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError
from myxtts.data.corpora.split_lists import VALIDATION, read_header_list, read_parts
from myxtts.data.corpora.tables import Dialect, Table, cells_to_utterance, first_line, header_table, names_to_columns

LIST_NAMES = ("metadata.jsonl", "metadata.csv")


def read(reading: Reading, place: Place) -> bool:
    """Reads the list of the folder, or those of its `train` and `validation` folders, also below `data/`."""
    if place.list_path:
        return place.list_path.suffix == ".jsonl" and _read_list(reading, place, place.list_path)
    if reading.folder.has(place.path, "metadata.jsonl"):
        return _read_list(reading, place, place.path / "metadata.jsonl")
    for root in (place, place.below(place.path / "data")):
        folders = {path.name: path for path in reading.folder.subfolders(root.path)}
        if "train" in folders and _list_of(reading, folders["train"]):
            named = {name: folders[name] for name in ("train", *VALIDATION) if name in folders}
            parts = {name: path for name, path in named.items() if _list_of(reading, path)}
            read_part = lambda part: _read_list(reading, part, _list_of(reading, part.path))
            read_parts(reading, root, parts, "train", read_part)
            return True
    return False


def _list_of(reading, path: Path) -> Path | None:
    return next((path / name for name in LIST_NAMES if reading.folder.has(path, name)), None)


def _read_list(reading, place, path):
    if path.suffix == ".jsonl":
        return _read_json_lines(reading, place, path)
    table = header_table(reading, path, (path.parent,))
    if table is None:
        raise CorpusError(f"{path} must begin with a line that names its columns, such as file_name,transcription.")
    read_header_list(reading, place, table)
    return True


def _read_json_lines(reading, place, path):
    lines = reading.folder.read_lines(path)
    if first_line(lines) is None:
        raise CorpusError(f"{path} is empty: no clips. Write one line such as {_EXAMPLE} per clip.")
    for number, line in enumerate(lines, 1):
        row = _row(line)
        name = next((row[key] for key in row if names_to_columns([key]) == ("id",)), "")
        with reading.clip(name if isinstance(name, str) else "", number, path):
            reading.add(_row_to_utterance(reading, place, path, row, number))
    return True


def _row(line):
    try:
        row = json.loads(line) if len(line) <= MAX_LINE_CHARACTERS else None
    except (ValueError, RecursionError):
        row = None
    return row if isinstance(row, dict) else {}


def _row_to_utterance(reading, place, path, row, number):
    # Numbers are names of clips or speakers; a line break is white space, as in a list it could not be written.
    texts = {name: str(value) for name, value in row.items() if isinstance(value, str | int)}
    columns = names_to_columns([*texts])
    cells = {column: " ".join(value.splitlines()).strip() for column, value in zip(columns, texts.values()) if column}
    if "id" not in cells or not {"text", "normalized"} & {*cells}:
        raise ClipRefused("not a clip", f"The line must be an object such as {_EXAMPLE}.")
    table = Table(path, Dialect("", False), tuple(cells), (path.parent,))
    return cells_to_utterance(reading, place, table, cells, number)


_EXAMPLE = '{"file_name": "a.wav", "text": "Good morning."}'
_HINT = "a metadata.jsonl or metadata.csv that names file_name and text (Hugging Face audiofolder), or one in train/"
FORMAT = CorpusFormat("audiofolder", 8, _HINT, read, ("metadata.jsonl", "train/"))

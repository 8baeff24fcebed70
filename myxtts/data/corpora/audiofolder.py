"""Hugging Face audiofolder: `metadata.jsonl` or `metadata.csv` with `file_name`, perhaps one in each of `train/`, …"""

import json
from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError
from myxtts.data.corpora.tables import (
    VALIDATION,
    cells_to_utterance,
    first_line,
    header_table,
    names_to_columns,
    read_header_list,
    read_parts,
)

_EXAMPLE = '{"file_name": "a.wav", "text": "Good morning."}'


def read(reading: Reading, place: Place) -> bool:
    """Reads the list of the folder, or those of its `train` and `validation` folders, also below `data/`."""
    if place.list_path:
        return place.list_path.suffix == ".jsonl" and _read_list(reading, place, place.list_path)
    if reading.folder.has(place.path, "metadata.jsonl"):
        return _read_list(reading, place, place.path / "metadata.jsonl")
    for root in (place, place.below(place.path / "data")):
        folders = {path.name: path for path in reading.folder.subfolders(root.path)}
        parts = {name: folders[name] for name in ("train", *VALIDATION) if name in folders}
        parts = {name: path for name, path in parts.items() if _list_of(reading, path)}
        if "train" in parts:
            read_parts(
                reading, root, parts, "train", lambda part: _read_list(reading, part, _list_of(reading, part.path))
            )
            return True
    return False


def _list_of(reading, path: Path) -> Path | None:
    names = ("metadata.jsonl", "metadata.csv")
    return next((path / name for name in names if reading.folder.has(path, name)), None)


def _read_list(reading, place, path):
    if path.suffix != ".jsonl":
        table = header_table(reading, path, (path.parent,))
        if table is None:
            raise CorpusError(f"{path} must begin with a line that names its columns, such as file_name,transcription.")
        read_header_list(reading, place, table)
        return True
    lines = reading.folder.read_lines(path)
    if first_line(lines) is None:
        raise CorpusError(f"{path} is empty: no clips. Write one line such as {_EXAMPLE} per clip.")
    for number, line in enumerate(lines, 1):
        cells = _line_to_cells(line)
        with reading.clip(cells.get("id", ""), number, path):
            if "id" not in cells or not {"text", "normalized"} & {*cells}:
                raise ClipRefused("not a clip", f"The line must be an object such as {_EXAMPLE}.")
            reading.add(cells_to_utterance(reading, place, cells, number, (path.parent,)))
    return True


def _line_to_cells(line):
    """The named cells of a line of JSON; none where it is not an object."""
    try:
        row = json.loads(line) if len(line) <= MAX_LINE_CHARACTERS else None
    except (ValueError, RecursionError):
        row = None
    # Numbers are names of clips or speakers; a line break is white space, as in a list it could not be written.
    row = row if isinstance(row, dict) else {}
    texts = {name: str(value) for name, value in row.items() if isinstance(value, str | int)}
    cells = (" ".join(value.splitlines()).strip() for value in texts.values())
    return {column: cell for column, cell in zip(names_to_columns([*texts]), cells) if column}


_HINT = "a metadata.jsonl or metadata.csv that names file_name and text (Hugging Face audiofolder), or one in train/"
FORMAT = CorpusFormat("audiofolder", 8, _HINT, read, ("metadata.jsonl", "train/"))

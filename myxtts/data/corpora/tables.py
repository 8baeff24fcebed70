"""Lists with one clip per line: what separates columns, what a header means, and the `speakers.csv` next to a list."""

import csv
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import brief, counted
from myxtts.data.corpora.base import Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name, parts_to_id

LIST_NAME = "metadata.csv"
SEPARATORS = "|\t,;"
_NAMES_OF_COLUMN = {
    "id": "file_name,audio_file,audio_filepath,audio_path,wav_path,wav_filename,wav_file,audio,wav,filename,file,path,"
    "clip,id",
    "text": "text,sentence,transcript,transcription,raw_text",
    "normalized": "normalized,normalised,normalized_text,normalised_text,normalized text,normalized_transcription,"
    "normalized transcription,text_normalized",
    "speaker": "speaker,speaker_name,speaker_id,client_id",
    "language": "language,lang,locale",
}
"""Names of columns, those first that are taken where a header has several of one meaning."""
_COLUMN_OF_NAME = {name: column for column, names in _NAMES_OF_COLUMN.items() for name in names.split(",")}
_RANK = {name: rank for rank, name in enumerate(_COLUMN_OF_NAME)}


class Dialect(NamedTuple):
    """How the lines of a list are written. In a `quoted` one a cell in double quotes may hold the separator."""

    separator: str
    quoted: bool

    def split(self, line: str) -> list[str]:
        """The cells of a line. Raises `ClipRefused` for a quoted cell that does not end, or not before a separator."""
        if not self.quoted or '"' not in line:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        except csv.Error:
            detail = "A cell that begins with a double quote does not end with one in this line."
            raise ClipRefused("unclosed quote", detail) from None


class Table(NamedTuple):
    """What it takes to understand a list: where it is, how it is written, what its columns mean and where audio lies.

    `columns` has None where a column is not used. Where no line names it, `language` is that of the list, if not empty.
    """

    path: Path
    dialect: Dialect
    columns: tuple[str | None, ...]
    audio_places: tuple[Path, ...]
    header_line: int | None = None
    language: str = ""


def find_dialect(lines: list[str], separator: str) -> Dialect:
    """Whether double quotes around cells are part of how a list is written, or of its text.

    In comma-separated lists they are of the writing. Elsewhere every cell that begins with one must be quoted soundly:
    speech is full of quotes, and an unbalanced one must not swallow what follows.
    """
    if separator in ",;":
        return Dialect(separator, True)
    marked = [line for line in lines if f'{separator}"' in line or line.startswith('"')]
    quoted = Dialect(separator, True)
    return Dialect(separator, bool(marked) and all(cells_or_none(quoted, line) for line in marked))


def first_line(lines: list[str]) -> int | None:
    """Index of the first line with anything in it."""
    return next((index for index, line in enumerate(lines) if line.strip()), None)


def header_table(reading: Reading, path: Path, audio_places: Sequence[Path], language: str = "") -> Table | None:
    """How to read a list whose first line names its columns; None where it does not name those for clip and text."""
    lines = reading.folder.read_lines(path)
    index = first_line(lines)
    for separator in SEPARATORS if index is not None else ():
        columns = names_to_columns(lines[index].replace('"', "").split(separator))
        if separator in lines[index] and "id" in columns and not {"text", "normalized"}.isdisjoint(columns):
            return Table(path, find_dialect(lines, separator), columns, tuple(audio_places), index, language)
    return None


def names_to_columns(names: list[str]) -> tuple[str | None, ...]:
    """The meaning of each column of a header: None for an unknown one, and for all but the best of one meaning."""
    names = [name.strip().lower() for name in names]
    best = {}
    for name in names:
        column = _COLUMN_OF_NAME.get(name)
        if column and (column not in best or _RANK[name] < _RANK[best[column]]):
            best[column] = name
    known = {name: column for column, name in best.items()}
    # The first of two columns of the same name counts.
    return tuple(known.pop(name, None) for name in names)


def read_table(reading: Reading, place: Place, table: Table, left_out: Collection[str] = ()):
    """Makes an utterance or a rejection of every line of a list but its header, and those of the clips `left_out`."""
    lines = reading.folder.read_lines(table.path)
    if first_line(lines) is None or table.header_line == len(lines) - 1:
        raise CorpusError(f"{table.path} is empty: no clips. Write one line 'id|text|normalized text' per clip.")
    speakers = read_speakers(reading, table.path.with_name("speakers.csv"))
    column, order = table.columns.index("id"), {column: index for index, column in enumerate(table.columns)}
    # Only a second text column and what follows it may be left out at the end of a line.
    needed = [order[column] for column in ("id", "speaker", "language") if column in order]
    least = 1 + max(*needed, min(order[column] for column in ("text", "normalized") if column in order))
    for index, line in enumerate(lines):
        if index != table.header_line:
            name = "".join(line.split(table.dialect.separator, column + 1)[column : column + 1]).strip()
            if name.strip('"') in left_out:
                continue
            with reading.clip(name, index + 1, table.path):
                cells = _line_to_cells(table, least, line)
                reading.add(cells_to_utterance(reading, place, table, cells, index + 1, speakers))


def cells_to_utterance(
    reading: Reading,
    place: Place,
    table: Table,
    cells: dict[str, str],
    line: int,
    speakers: dict[str, tuple[str, str]] | None = None,
) -> Utterance:
    """The utterance of one clip, by its named cells; `speakers` as `read_speakers` gives them.

    Raises:
        ClipRefused: Something is missing, or not as it should be.
    """
    parts = reading.folder.name_to_parts(cells["id"])
    name = parts_to_id(parts)
    text = checked_text(cells.get("normalized") or cells.get("text", ""))
    reading.check_new(place.prefix + name, text)
    wav_path = reading.folder.find_audio(table.audio_places, parts)
    listed = (speakers or {}).get(name, ("", ""))
    speaker = cells.get("speaker") or listed[0]
    if not speaker and (speakers is not None or "speaker" in table.columns):
        raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
    language = cells.get("language") or listed[1] or table.language
    if not (is_name(speaker) and is_name(language)):
        raise ClipRefused("bad label", "Its speaker or language is too long or holds control or direction characters.")
    language = language.lower().replace("_", "-") or reading.language
    speaker = speaker or place.speaker
    return Utterance(place.prefix + name, wav_path, text, speaker, language, line, place.validation)


def _line_to_cells(table, least, line):
    if not line.strip():
        raise ClipRefused("empty line", "The line is empty.")
    if line.lstrip().startswith("#") and table.dialect.separator not in line:
        raise ClipRefused("comment line", "The line is a comment.")
    if len(line) > MAX_LINE_CHARACTERS:
        raise ClipRefused("line too long", f"The line has {len(line)} characters; the most is {MAX_LINE_CHARACTERS}.")
    cells, separator = table.dialect.split(line), brief(table.dialect.separator)
    if not least <= len(cells) <= len(table.columns):
        count = f"{len(cells)} column{'s' * (len(cells) != 1)} instead of {len(table.columns)}"
        raise ClipRefused("wrong number of columns", f"The line has {count}; {separator} separates them.")
    return {column: cell.strip() for column, cell in zip(table.columns, cells) if column}


def guess_separator(lines: list[str]) -> str:
    """What separates the columns of a list without header: `|` wherever there is one, else what most lines agree on."""
    lines = [line for line in lines if line.strip()]
    if any("|" in line for line in lines):
        return "|"
    for separator in "\t,;":
        dialect = Dialect(separator, separator != "\t")
        sizes = Counter(len(cells_or_none(dialect, line) or "") for line in lines)
        if sum(sizes[size] for size in (2, 3)) > len(lines) / 2:
            return separator
    return "|"


def cells_or_none(dialect: Dialect, line: str) -> list[str] | None:
    """The cells of a line; None where they cannot be told apart."""
    try:
        return dialect.split(line)
    except ClipRefused:
        return None


def read_speakers(reading: Reading, path: Path) -> dict[str, tuple[str, str]] | None:
    """`{id: (speaker, language or "")}` of a `speakers.csv`, with a note on faulty lines; None where there is none."""
    folder = reading.folder
    if path.name not in folder.files(path.parent):
        return None
    lines = folder.read_lines(path) or [""]
    columns = names_to_columns(lines[0].split(","))
    if "id" not in columns or "speaker" not in columns:
        rule = f"{path} must begin with the line 'id,speaker' or 'id,speaker,language'."
        raise CorpusError(f"{rule} Received: {lines[0][:100]!r}.")
    speakers, faulty = {}, []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split(",")
        row = {column: cell.strip() for column, cell in zip(columns, cells)}
        parts = [part for part in row.get("id", "").replace("\\", "/").split("/") if part]
        labels = (row.get("speaker", ""), row.get("language", ""))
        if len(cells) != len(columns) or not parts or speakers.setdefault(parts_to_id(parts), labels) != labels:
            faulty.append(number)
    if faulty:
        why = f"being incomplete or at odds with an earlier line; the first is line {faulty[0]}."
        left_out = f"{counted(len(faulty), 'line')} of {folder.relative(path)} {'was' if len(faulty) == 1 else 'were'}"
        reading.notes.append(f"{left_out} left out, {why}")
    return speakers

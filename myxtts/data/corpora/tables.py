"""Lists with one clip per line: separators and quotes, headers, the `speakers.csv` next to a list, and lists of parts
of a data set that belong together: one to train on, one for validation, and those that are not used."""

import csv
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import brief, counted, printable
from myxtts.data.corpora.base import Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name, parts_to_id

VALIDATION = ("validation", "valid", "val", "dev", "eval", "test")
"""Names of parts of a data set, those first that are validated on where there are several."""
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

    def split_or_none(self, line: str) -> list[str] | None:
        """The cells of a line; None where they cannot be told apart."""
        try:
            return self.split(line)
        except ClipRefused:
            return None


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
    quoted = Dialect(separator, True)
    if separator in ",;":
        return quoted
    marked = [line for line in lines if f'{separator}"' in line or line.startswith('"')]
    return Dialect(separator, bool(marked) and all(map(quoted.split_or_none, marked)))


def guess_separator(lines: list[str]) -> str:
    """What separates the columns of a list without header: `|` wherever there is one, else what most lines agree on."""
    lines = [line for line in lines if line.strip()]
    if any("|" in line for line in lines):
        return "|"
    for separator in "\t,;":
        dialect = Dialect(separator, separator != "\t")
        sizes = [len(dialect.split_or_none(line) or "") for line in lines]
        if sizes.count(2) + sizes.count(3) > len(lines) / 2:
            return separator
    return "|"


def first_line(lines: list[str]) -> int | None:
    """Index of the first line with anything in it."""
    return next((index for index, line in enumerate(lines) if line.strip()), None)


def names_to_columns(names: Sequence[str]) -> tuple[str | None, ...]:
    """The meaning of each column of a header: None for an unknown one, and for all but the best of one meaning."""
    names = [name.strip().lower() for name in names]
    columns: list[str | None] = [None] * len(names)
    for column, known in _NAMES_OF_COLUMN.items():
        if best := next((name for name in known.split(",") if name in names), None):
            columns[names.index(best)] = column
    return tuple(columns)


def header_table(reading: Reading, path: Path, audio_places: Sequence[Path], language: str = "") -> Table | None:
    """How to read a list whose first line names its columns; None where it does not name those for clip and text."""
    lines = reading.folder.read_lines(path)
    index = first_line(lines)
    for separator in "|\t,;" if index is not None else ():
        columns = names_to_columns(lines[index].replace('"', "").split(separator))
        if separator in lines[index] and "id" in columns and not {"text", "normalized"}.isdisjoint(columns):
            return Table(path, find_dialect(lines, separator), columns, tuple(audio_places), index, language)
    return None


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
        name = "".join(line.split(table.dialect.separator, column + 1)[column : column + 1]).strip()
        if index == table.header_line or name.strip('"') in left_out:
            continue
        with reading.clip(name, index + 1, table.path):
            cells = _line_to_cells(table, least, line)
            where = index + 1, table.audio_places, speakers, table.language
            reading.add(cells_to_utterance(reading, place, cells, *where))


def cells_to_utterance(
    reading: Reading,
    place: Place,
    cells: dict[str, str],
    line: int,
    audio_places: Sequence[Path],
    speakers: dict[str, tuple[str, str]] | None = None,
    language: str = "",
) -> Utterance:
    """The utterance of one clip, by its named cells; `speakers` as `read_speakers` gives them, `language` of the list.

    Raises:
        ClipRefused: Something is missing, or not as it should be.
    """
    parts = reading.folder.name_to_parts(cells["id"])
    name = parts_to_id(parts)
    text = checked_text(cells.get("normalized") or cells.get("text", ""))
    reading.check_new(place.prefix + name, text)
    wav_path = reading.folder.find_audio(audio_places, parts)
    listed = (speakers or {}).get(name, ("", ""))
    speaker = cells.get("speaker") or listed[0]
    if not speaker and (speakers is not None or "speaker" in cells):
        raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
    language = cells.get("language") or listed[1] or language
    if not (is_name(speaker) and is_name(language)):
        raise ClipRefused("bad label", "Its speaker or language is too long or holds control or direction characters.")
    language = language.lower().replace("_", "-") or reading.language
    return Utterance(place.prefix + name, wav_path, text, speaker or place.speaker, language, line, place.validation)


def _line_to_cells(table, least, line):
    if not line.strip():
        raise ClipRefused("empty line", "The line is empty.")
    if line.lstrip().startswith("#") and table.dialect.separator not in line:
        raise ClipRefused("comment line", "The line is a comment.")
    if len(line) > MAX_LINE_CHARACTERS:
        raise ClipRefused("line too long", f"The line has {len(line)} characters; the most is {MAX_LINE_CHARACTERS}.")
    cells, separator = table.dialect.split(line), brief(table.dialect.separator)
    if not least <= len(cells) <= len(table.columns):
        count = f"{counted(len(cells), 'column')} instead of {len(table.columns)}"
        raise ClipRefused("wrong number of columns", f"The line has {count}; {separator} separates them.")
    return {column: cell.strip() for column, cell in zip(table.columns, cells) if column}


def read_speakers(reading: Reading, path: Path) -> dict[str, tuple[str, str]] | None:
    """`{id: (speaker, language or "")}` of a `speakers.csv`, with a note on faulty lines; None where there is none."""
    if not reading.folder.has(path.parent, path.name):
        return None
    lines = reading.folder.read_lines(path) or [""]
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
        left_out = f"{counted(len(faulty), 'line')} of {reading.folder.relative(path)} left out"
        reading.notes.append(f"{left_out}: incomplete, or in conflict with an earlier line; first line {faulty[0]}.")
    return speakers


def read_header_list(reading: Reading, place: Place, table: Table, left_out: Collection[str] = ()):
    """Reads a list with a header, and notes which line that was."""
    line = reading.folder.read_lines(table.path)[table.header_line][:100]
    where = f"Line {table.header_line + 1} of {reading.folder.relative(table.path)}"
    reading.notes.append(f"{where} was read as a header: {printable(line)}")
    read_table(reading, place, table, left_out)


def read_split(
    reading: Reading,
    place: Place,
    training: Path,
    validation: Path | None,
    others: Sequence[Path],
    audio_places: Sequence[Path],
    language: str = "",
) -> bool:
    """Reads a training list, and a validation list where there is one. Returns False where `training` has no header.

    Clips that the validation list or one of the `others` names are not trained on. A validation list that leaves
    nothing to train on is passed over.
    """
    table, relative = header_table(reading, training, audio_places, language), reading.folder.relative
    if table is None:
        return False
    named, kept_back = _clip_names(reading, table), set()
    for path in filter(None, (validation, *others)):
        other = header_table(reading, path, audio_places, language)
        names = _clip_names(reading, other) if other else set()
        if other is None or named <= names:
            why = "its first line names no columns" if other is None else f"it names all clips of {relative(training)}"
            reading.notes.append(f"{relative(path)} was passed over: {why}.")
            continue
        kept_back |= names
        if path == validation:
            read_header_list(reading, place._replace(validation=True), other)
        else:
            reading.notes.append(f"{relative(path)} was left for tests: none of its clips is used.")
    if common := len(named & kept_back):
        reading.notes.append(f"{counted(common, 'clip')} of {relative(training)} left out: another list has them, too.")
    read_header_list(reading, place, table, kept_back)
    return True


def read_parts(reading: Reading, place: Place, parts: dict[str, Path], training: str, read: Callable[[Place], object]):
    """Reads the folder of a data set's training part and, for validation, the best suited of `VALIDATION`.

    Others of these are noted as left for tests. `read` is called with the place of each part that is used.
    """
    validation, *others = [name for name in VALIDATION if name in parts and name != training] or [None]
    for name in others:
        reading.notes.append(f"The folder {reading.folder.relative(parts[name])} was left for tests: it is not used.")
    for name in filter(None, (validation, training)):
        read(place.below(parts[name], validation=name == validation))


def _clip_names(reading, table):
    """Names in the column of clips; lines that cannot be split are reported when the list is read."""
    lines, column = reading.folder.read_lines(table.path), table.columns.index("id")
    rows = [table.dialect.split_or_none(line) or [] for i, line in enumerate(lines) if i != table.header_line]
    return {cells[column].strip() for cells in rows if len(cells) > column}

"""Lists with one clip per line: separators and quotes, headers, the `speakers.csv` next to a list, and lists of parts
of a data set that belong together: one to train on, one for validation, and those that are not used."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import brief, counted, printable
from myxtts.data.corpora.base import Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name, parts_to_id

JSON_EXAMPLE = '{"file_name": "a.wav", "text": "Good morning."}'
_SAMPLE_LINES = 100
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
        """The cells of a line; None where they cannot be separated."""
        try:
            return self.split(line)
        except ClipRefused:
            return None


class Table(NamedTuple):
    """What it takes to understand a list: where it is, how it is written, what its columns mean and where audio lies.

    A list without a `dialect` has an object of JSON in each line. `columns` has None where a column is not used. Where
    no line names it, `language` is that of the list, if not empty.
    """

    path: Path
    dialect: Dialect | None
    columns: tuple[str | None, ...]
    audio_places: tuple[Path, ...]
    header_line: int | None = None
    language: str = ""

    def name_of(self, line: str) -> str:
        """What a line calls its clip; empty where it does not."""
        if self.dialect is None:
            return _json_to_cells(line).get("id", "")
        column = self.columns.index("id")
        return "".join(line.split(self.dialect.separator, column + 1)[column : column + 1]).strip()

    def cells_of(self, line: str) -> dict[str, str]:
        """The cells of a line by the meaning of their columns. Raises `ClipRefused` where it is no clip."""
        if self.dialect is None:
            cells = _json_to_cells(line)
            if "id" not in cells or not {"text", "normalized"} & {*cells}:
                raise ClipRefused("not a clip", f"The line must be an object such as {JSON_EXAMPLE}.")
            return cells
        if not line.strip():
            raise ClipRefused("empty line", "The line is empty.")
        if line.lstrip().startswith("#") and self.dialect.separator not in line:
            raise ClipRefused("comment line", "The line is a comment.")
        if len(line) > MAX_LINE_CHARACTERS:
            detail = f"The line has {len(line)} characters; the most is {MAX_LINE_CHARACTERS}."
            raise ClipRefused("line too long", detail)
        cells, separator = self.dialect.split(line), brief(self.dialect.separator)
        # Only a second text column and what follows it may be left out at the end of a line.
        order = {column: index for index, column in enumerate(self.columns)}
        needed = [order[column] for column in ("id", "speaker", "language") if column in order]
        least = 1 + max(*needed, min(order[column] for column in ("text", "normalized") if column in order))
        if not least <= len(cells) <= len(self.columns):
            count = f"{counted(len(cells), 'column')} instead of {len(self.columns)}"
            raise ClipRefused("wrong number of columns", f"The line has {count}; {separator} separates them.")
        return {column: cell.strip() for column, cell in zip(self.columns, cells) if column}


def _json_to_cells(line):
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
    if path.suffix in (".json", ".jsonl"):
        is_list = index is not None and "id" in _json_to_cells(lines[index]) or path.suffix == ".jsonl"
        table = Table(path, None, ("id", "text"), tuple(audio_places), None, language)
        return _located(reading, table) if is_list else None
    for separator in "|\t,;" if index is not None else ():
        columns = names_to_columns(lines[index].replace('"', "").split(separator))
        if separator in lines[index] and "id" in columns and not {"text", "normalized"}.isdisjoint(columns):
            dialect, places = find_dialect(lines, separator), tuple(audio_places)
            return _located(reading, Table(path, dialect, columns, places, index, language))
    return None


def content_table(reading: Reading, path: Path, audio_places: Sequence[Path], language: str = "") -> Table | None:
    """How to read a list by what is in its columns: one names audio, and the one with the most letters is the text.

    Without a header, and with audio in the first column, it is `id|text|normalized text`, perhaps with a fourth column
    of speakers. None where no column names audio in half of the lines.
    """
    lines = reading.folder.read_lines(path)
    sample = [line for line in lines[:_SAMPLE_LINES] if line.strip()]
    places, best, most = (*audio_places, *reading.folder.subfolders(path.parent)), None, 0
    for dialect in (find_dialect(sample, separator) for separator in "|\t,;"):
        rows = [cells for line in sample if len(cells := dialect.split_or_none(line) or ()) > 1]
        for column in range(max(map(len, rows), default=0)):
            names = [row[column].strip() if len(row) > column else "" for row in rows]
            found = [n.lower().endswith(AUDIO_EXTENSIONS) or reading.folder.has_audio(places, n) for n in names]
            if sum(found) > most:
                most, best = sum(found), (dialect, rows, column, found)
    if best is None or 2 * most < len(sample) - 1:
        return None
    dialect, rows, column, found = best
    header = first_line(lines) if _is_header(rows, column, found) else None
    if header is None and column == 0 and len(rows[0]) <= 4:
        return plain_table(reading, path, audio_places, language)
    body, width = rows[header is not None :], max(map(len, rows))
    letters = [sum(sum(map(str.isalpha, row[k])) for row in body if len(row) > k) for k in range(width)]
    letters[column] = -1
    columns = tuple("id" if k == column else "text" if k == letters.index(max(letters)) else None for k in range(width))
    what = "in the first line" if header is not None else "in it"
    taken = f"column {column + 1} names the clip, column {columns.index('text') + 1} is its text"
    note = f"{reading.folder.relative(path)}: {taken}. Names such as file, text and speaker {what} tell it otherwise."
    reading.notes.append(note)
    return _located(reading, Table(path, dialect, columns, tuple(audio_places), header, language))


def plain_table(reading: Reading, path: Path, audio_places: Sequence[Path], language: str = "") -> Table:
    """How to read a list without a header: `id|text|normalized text`, perhaps with a fourth column of speakers."""
    lines = reading.folder.read_lines(path)
    dialect = find_dialect(lines, guess_separator(lines))
    rows = [cells for line in lines if dialect.separator in line and (cells := dialect.split_or_none(line))]
    sizes = Counter(map(len, rows))
    # A '|' in the text of the only line is more likely than a speaker.
    has_speakers = sizes[4] > 1 and sizes[4] > len(rows) / 2
    if not has_speakers:
        _refuse_speakers_for_text(path, rows)
    columns = ("id", "text", "normalized", "speaker")[: 3 + has_speakers]
    return _located(reading, Table(path, dialect, columns, tuple(audio_places), None, language))


def _refuse_speakers_for_text(path, rows):
    """Raises `CorpusError` for `id|text|speaker`, as some tools write it: the names would be trained as speech."""
    texts = [(row[1].casefold().split(), row[2].casefold().split()) for row in rows if len(row) == 3 and row[2].strip()]
    sentences, names = {tuple(text) for text, _ in texts}, {tuple(third) for _, third in texts}
    alike = any(not set(text).isdisjoint(third) for text, third in texts)
    if len(sentences) >= 8 and len(names) <= len(sentences) / 4 and not alike:
        raise CorpusError(
            f"{path} has no header, and its third column, where the normalized text belongs, looks like "
            f"a speaker: {len(names)} values in {len(texts)} lines. Write 'id|text|speaker' above them."
        )


def _is_header(rows, column, found):
    """Whether the first row names columns and is no clip whose audio is missing."""
    has_name = any(map(str.isalpha, rows[0][column])) if len(rows[0]) == len(rows[-1]) else False
    if found[0] or sum(found) < len(found) - 1 or not has_name:
        return False
    if all(row[column].strip().lower().endswith(AUDIO_EXTENSIONS) for row in rows[1:]):
        return True
    cells = "".join(rows[0])
    return sum(found) >= 3 and len(cells) <= 80 and not any(c.isdigit() or c in ".!?؟…/\\" for c in cells)


def _located(reading, table):
    """The table; where none of its first clips is in its places, the folders one below are looked into as well."""
    names = [*_clip_names(reading, table)]
    reading.folder.allow_named(names)
    if any(reading.folder.has_audio(table.audio_places, name) for name in names[:_SAMPLE_LINES]):
        return table
    return table._replace(audio_places=(*table.audio_places, *reading.folder.subfolders(table.path.parent)))


def read_table(reading: Reading, place: Place, table: Table, left_out: Collection[str] = ()):
    """Makes an utterance or a rejection of every line of a list but its header, and those of the clips `left_out`.

    A header is noted.
    """
    lines = reading.folder.read_lines(table.path)
    if first_line(lines) is None or table.header_line == len(lines) - 1:
        example = "such as " + JSON_EXAMPLE if table.dialect is None else "'id|text|normalized text'"
        raise CorpusError(f"{table.path} is empty: no clips. Write one line {example} per clip.")
    if table.header_line is not None:
        where = f"Line {table.header_line + 1} of {reading.folder.relative(table.path)}"
        reading.notes.append(f"{where} was read as a header: {printable(lines[table.header_line][:100])}")
    speakers = read_speakers(reading, table.path.with_name("speakers.csv"))
    for index, line in enumerate(lines):
        name = table.name_of(line)
        if index == table.header_line or name.strip('"') in left_out:
            continue
        with reading.clip(name, index + 1, table.path):
            where = index + 1, table.audio_places, speakers, table.language
            reading.add(cells_to_utterance(reading, place, table.cells_of(line), *where))


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


def read_split(reading: Reading, place: Place, training: Table, validation: Table | None, others: Sequence[Table]):
    """Reads a training list, and a validation list where there is one.

    Clips that the validation list or one of the `others` names are not trained on. A validation list that leaves
    nothing to train on is passed over.
    """
    named, kept_back, relative = _clip_names(reading, training), set(), reading.folder.relative
    for table in filter(None, (validation, *others)):
        names = _clip_names(reading, table)
        if named <= names:
            why = f"it names all clips of {relative(training.path)}"
            reading.notes.append(f"{relative(table.path)} was passed over: {why}.")
            continue
        kept_back |= names
        if table is validation:
            read_table(reading, place._replace(validation=True), table)
        else:
            reading.notes.append(f"{relative(table.path)} was left for tests: none of its clips is used.")
    if common := len(named & kept_back):
        left_out = f"{counted(common, 'clip')} of {relative(training.path)} left out"
        reading.notes.append(f"{left_out}: another list has them, too.")
    read_table(reading, place, training, kept_back)


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
    lines = reading.folder.read_lines(table.path)
    names = (table.name_of(line).strip('"') for index, line in enumerate(lines) if index != table.header_line)
    return {name: None for name in names if name}.keys()

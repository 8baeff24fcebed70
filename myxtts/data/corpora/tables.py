"""Reads lists with one clip per line. Detects their separators and columns, and uses `speakers.csv`."""

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from myxtts.audio.files import MEDIA_EXTENSIONS
from myxtts.config.checks import counted, printable, read_toml
from myxtts.data.corpora.base import Place, Reading, to_code
from myxtts.data.corpora.folder import ClipRefused, CorpusError, parts_to_id
from myxtts.text.languages import LANGUAGES
from myxtts.text.languages.with_functions import normalize_persian

JSON_EXAMPLE = '{"file_name": "a.wav", "text": "Good morning."}'
VALIDATION = ("validation", "valid", "val", "dev", "eval", "test")
"""Names of splits that can be used for validation, in order of preference."""
_OFFSET = re.compile(r'"offset"\s*:\s*+(?!(?:null|0*+\.?0*+)\s*(?:[,}]|$))')  # a start time in a list of NVIDIA NeMo
_NAMES_OF_COLUMN = read_toml(__file__, "columns.toml")
"""Known names of each column in a header, in order of preference: `{column: names separated by white space}`."""


class Dialect(NamedTuple):
    """Syntax of a list: the `separator` of columns, and whether cells can be `quoted` with double quotes as in CSV."""

    separator: str
    quoted: bool

    def split(self, line: str) -> list[str]:
        """Splits a line into cells; returns no cells if a quoted cell is not closed."""
        if not self.quoted or '"' not in line:
            return line.split(self.separator)
        with suppress(csv.Error):
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        return []


class Table(NamedTuple):
    """List of clips in the file `path`. The audio files are in the folders `audio_places`.

    If `dialect` is None, each line is a JSON object. In `columns`, None stands for an unused column. `header_line` is
    the index of the header. `is_guess` is True if columns were guessed from their content: all columns of a list
    without a header, or the text column of a list with a header.
    """

    path: Path
    dialect: Dialect | None
    columns: tuple[str | None, ...]
    audio_places: tuple[Path, ...]
    header_line: int | None = None
    is_guess: bool = False

    def name_of(self, line: str) -> str:
        """Returns the name of the clip in a line, or "" if the line has none."""
        if self.dialect is None:
            return _json_to_cells(line).get("id", "")
        cells = self.dialect.split(line) or line.split(self.dialect.separator)
        return dict(zip(self.columns, cells)).get("id", "").strip()

    def cells_of(self, line: str) -> dict[str, str]:
        """Returns the cells of a line as `{column: cell}`. Raises `ClipRefused` if the line describes no clip."""
        if self.dialect is None:
            cells = _json_to_cells(line)
            if "id" not in cells or not {"text", "normalized"} & {*cells}:
                raise ClipRefused("not a clip", f"The line must be an object such as {JSON_EXAMPLE}.")
            return cells
        separator = self.dialect.separator
        if not line.strip():
            raise ClipRefused("empty line", "The line is empty.")
        if line[:-1] == "sep=" or line.lstrip().startswith("#") and separator not in line:
            raise ClipRefused("comment line", "The line is a comment, or names the separator.")
        if not (cells := self.dialect.split(line)):
            raise ClipRefused("unclosed quote", "A cell starts with a double quote, but does not end with one.")
        # At the end of a line, the second text column and unused columns may be missing.
        order = {column: index for index, column in enumerate(self.columns)}
        needed = [order[column] for column in ("id", "speaker", "language") if column in order]
        least = 1 + max(*needed, min(order[column] for column in ("text", "normalized") if column in order))
        most = len(self.columns)
        if not least <= len(cells) <= most:
            raise ClipRefused("wrong number of columns", f"{len(cells)} instead of {most}, separated by {separator!r}.")
        return {column: cell.strip() for column, cell in zip(self.columns, cells) if column}


def _json_to_cells(line):
    """Parses a JSON object. Returns `{column: cell}` for columns that MyXTTS knows, or {} for any other line."""
    row = None
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
    row = row if isinstance(row, dict) else {}
    # Numbers may be names of clips or speakers; line breaks become spaces.
    texts = {name: str(value) for name, value in row.items() if isinstance(value, str | int)}
    cells = (" ".join(value.splitlines()).strip() for value in texts.values())
    return {column: cell for column, cell in zip(names_to_columns([*texts]), cells) if column}


def find_dialect(lines: list[str], separator: str) -> Dialect:
    """Returns the dialect of a list: decides whether double quotes around cells are syntax or part of the text.

    With commas or semicolons, quotes are syntax. With other separators, they are syntax only if every cell that starts
    with a quote also ends with a quote, because transcripts often contain quotes, and unclosed quotes merge cells.
    """
    if separator in ",;":
        return Dialect(separator, True)
    marked = [line for line in lines if f'{separator}"' in line or line.startswith('"')]
    return Dialect(separator, bool(marked) and all(map(Dialect(separator, True).split, marked)))


def _guess_separator(lines):
    """Returns `|` if any line contains `|`. Otherwise, returns the separator (tab, semicolon or comma) that splits the
    most lines into 2 or 3 cells. If no separator does this for more than half of the lines, returns `|`."""
    lines = [line for line in lines if line.strip()]
    splits = lambda one: sum(len(cells) in (2, 3) for cells in map(find_dialect(lines, one).split, lines))
    best = max("\t;,", key=splits)
    return "|" if any("|" in line for line in lines) or 2 * splits(best) <= len(lines) else best


def _first_line(lines):
    """Returns the index of the first line that is not blank, not a comment and not Excel's `sep=;`, or else None."""
    is_note = lambda line: line[:1] == "#" and not any(names_to_columns(re.split("[|\t,;]", line.strip("# "))))
    return next((k for k, line in enumerate(lines) if line.strip() and line[:-1] != "sep=" and not is_note(line)), None)


def names_to_columns(names: Sequence[str]) -> tuple[str | None, ...]:
    """Maps each name in a header to `id`, `text`, `normalized`, `speaker`, `language` or None (unknown or repeated)."""
    names = [re.sub("[\\s\u200c]+", "_", normalize_persian(name.strip().lower())) for name in names]
    columns: list[str | None] = [None] * len(names)
    for column, known in _NAMES_OF_COLUMN.items():
        if best := next((name for name in known.split() if name in names), None):
            columns[names.index(best)] = column
    return tuple(columns)


def header_table(reading: Reading, place: Place, path: Path) -> Table | None:
    """Returns the `Table` of a list if it is in JSON or has a header with clip and text columns; otherwise, None."""
    lines = reading.folder.read_lines(path)
    index = _first_line(lines)
    first = "" if index is None else lines[index]
    if path.suffix in (".json", ".jsonl"):
        is_list = path.suffix == ".jsonl" or "id" in _json_to_cells(first)
        return _located(reading, place, path, None, ("id", "text")) if is_list else None
    for separator in "|\t,;":
        columns = names_to_columns(first.replace('"', "").split(separator))
        if separator in first and "id" in columns and not {"text", "normalized"}.isdisjoint(columns):
            return _located(reading, place, path, find_dialect(lines, separator), columns, index)
    return None


def content_table(reading: Reading, place: Place, path: Path) -> Table | None:
    """Returns the `Table` of a list if at least half of the cells in one of its columns name audio files; otherwise,
    None. If there is no header, `columns_by_content` finds the columns. If the header names no text column, the text
    column is the one with the most letters among the columns with unknown names."""
    lines = reading.folder.read_lines(path)
    first = _first_line(lines) or 0
    sample = [line for line in lines[first : first + 100] if line.strip()]
    places = place.path / "wavs", place.path, *reading.folder.subfolders(path.parent)
    is_media = lambda name: name.lower().endswith(MEDIA_EXTENSIONS)
    best, most = None, 0
    for separator, other in zip("|\t,;", "\0\0;,"):  # the name "text;a.wav" is a line split at the wrong one of , and ;
        dialect = find_dialect(sample, separator)
        rows = [cells for cells in map(dialect.split, sample) if len(cells) > 1 and any(map(str.strip, cells))]
        for column, cells in enumerate(itertools.zip_longest(*rows, fillvalue="")):
            names = [cell.strip() for cell in cells]
            found = [is_media(n) and other not in n or reading.folder.has_audio(places, n) for n in names]
            if sum(found) > most:
                most, best = sum(found), (dialect, rows, column, found)
    if best is None or 2 * most < len(sample) - 1:
        return None
    dialect, rows, column, found = best
    size = Counter(len(cells) for cells in reversed(rows) if len(cells) > column).most_common(1)[0][0]
    has_header = len(rows[0]) == size and _is_header(rows, column, found)
    if not has_header and column == 0 and size <= 4:
        return plain_table(reading, place, path, dialect.separator)
    if not has_header:
        columns, _ = columns_by_content(rows, size, column)
        return _located(reading, place, path, dialect, columns, is_guess=True)
    cells = [*itertools.zip_longest(*rows, fillvalue="")]
    letters = [sum(map(str.isalpha, "".join(others[1:]))) for others in cells]
    columns = [None if name == "id" else name for name in names_to_columns([others[0] for others in cells])]
    is_guess = {"text", "normalized"}.isdisjoint(columns)  # by the header, which may call the audio's column a text
    columns[column] = "id"
    if {"text", "normalized"}.isdisjoint(columns):
        if not (unknown := [k for k, name in enumerate(columns) if name is None]):
            raise CorpusError(f"{path} has no column of texts. Add one, or transcribe: `myxtts make-dataset`.")
        columns[max(unknown, key=letters.__getitem__)] = "text"
    header_line = next(index for index, line in enumerate(lines) if dialect.split(line) == rows[0])
    return _located(reading, place, path, dialect, tuple(columns), header_line, is_guess)


def plain_table(reading: Reading, place: Place, path: Path, separator: str | None = None) -> Table:
    """Returns the `Table` of a list without a header. `columns_by_content` finds the columns; usual columns are
    `id|text|normalized text` and `id|text|normalized text|speaker`. If `separator` is None, it is guessed."""
    lines = reading.folder.read_lines(path)
    dialect = find_dialect(lines, separator or _guess_separator(lines))
    rows = [cells for cells in map(dialect.split, lines) if len(cells) > 1 and any(cells)]
    sizes = Counter(map(len, rows))
    # A "|" in the text of the only line is more likely than a speaker.
    columns, is_guess = columns_by_content(rows, 4 if sizes[4] > 1 and sizes[4] > len(rows) / 2 else 3)
    return _located(reading, place, path, dialect, columns, is_guess=is_guess)


def columns_by_content(rows: Sequence[list[str]], size: int, clip: int = 0) -> tuple[tuple[str | None, ...], bool]:
    """Returns the columns of a list without a header, and whether they are a guess that users should check.

    Uses only rows with `size` cells. `clip` is the index of the clip column. The column with the most letters is the
    text column. A column of speakers or languages has words that are short or repeat often, and that do not occur in
    the text. Columns with many different numbers, such as durations, are ignored.
    """
    plain = ("id", "text", "normalized", "speaker")[:size]
    words = [[tuple(cell.casefold().split()) for cell in row] for row in rows if len(row) == size]
    full = [*filter(all, words)]
    is_usual = clip == 0 and size <= len(plain)
    if is_usual and 2 * len(full) <= max(len(rows), 2):
        return plain, False
    letters = [sum(map(str.isalpha, "".join(itertools.chain(*column)))) for column in zip(*words)] or size * [0]
    cells = [*zip(*full)] or size * [()]
    varied = [len({*column}) for column in cells]
    others = [k for k in range(size) if k != clip]
    alike = lambda a, b: 2 * sum(not {*one}.isdisjoint(other) for one, other in zip(cells[a], cells[b])) > len(full)
    is_plain = is_usual and size > 2 and alike(1, 2)
    texts = [1, 2] if is_plain else [max(others, key=letters.__getitem__)]
    text = texts[-1]
    columns: list[str | None] = [None] * size
    columns[clip] = "id"
    for k in (k for k in others if full and k not in texts):
        # Numbers or words that repeat with the texts are another form of them, as in `id|3|three`.
        is_form = len({*zip(cells[k], cells[text])}) == varied[k] == varied[text] < len(full)
        is_short = 4 * letters[k] < letters[text] and all(len(cell) < 4 for cell in cells[k])
        is_label = is_plain or not is_form and not alike(k, text) and (is_short or 4 * varied[k] <= varied[text])
        is_few = is_plain or 2 * varied[k] <= len(full)
        is_name = letters[k] or is_few and all("".join(cell).isdigit() for cell in cells[k])
        if not is_label:
            texts += [k] if is_usual and len(texts) < 2 else []
        elif all(to_code(" ".join(cell)) in LANGUAGES for cell in {*cells[k]}) and "language" not in columns:
            columns[k] = "language"
        elif is_name and "speaker" not in columns:
            columns[k] = "speaker"
    for k, name in zip(sorted(texts), ("text", "normalized")):
        columns[k] = name
    return tuple(columns), not (is_plain and tuple(columns) == plain)


def _is_header(rows, column, found):
    """Returns True if the first row is a header, and False if it describes a clip. `column` is the index of the clip
    column. `found` contains a bool for each row: whether the cell in that column is the name of an audio file."""
    header, *others = rows
    if found[0] or not any(map(str.isalpha, header[column])):
        return False
    named, cells = names_to_columns(header), "".join(header)
    if named[column] or len(named) - named.count(None) > 1:
        return True
    if not all(found[1:]) or any(map(str.isdigit, header[column])):
        return False
    if all(row[column].strip().lower().endswith(MEDIA_EXTENSIONS) for row in others):
        return True
    return len(others) >= 3 and len(cells) <= 80 and not any(c.isdigit() or c in ".!?؟…/\\" for c in cells)


def _located(reading, place, path, dialect, columns, header_line=None, is_guess=False):
    """Creates a `Table`. Audio may be in `wavs/`, `place`, their subfolders, or a folder that `allow_named` adds."""
    table = Table(path, dialect, columns, (place.path / "wavs", place.path), header_line, is_guess)
    reading.folder.allow_named([*_clip_names(reading, table)])
    reading.folder.searched = {*reading.folder.given_roots, *table.audio_places}
    return table


def read_table(reading: Reading, place: Place, table: Table, left_out: Collection[str] = ()) -> None:
    """Adds an utterance or a rejection for each line, except the header and clips whose ids are in `left_out`."""
    lines = reading.folder.read_lines(table.path)
    if not any(map(str.strip, lines)) or table.header_line == len(lines) - 1:
        example = "such as " + JSON_EXAMPLE if table.dialect is None else "'id|text|normalized text'"
        raise CorpusError(f"{table.path} is empty: no clips. Write one line {example} per clip.")
    starts = [table.name_of(line) for line in lines if _OFFSET.search(line)] if table.dialect is None else []
    if len({*starts}) < len(starts):  # several parts of one recording
        raise CorpusError(f"{table.path} has offsets. Cut the clips: ffmpeg -ss OFFSET -t DURATION -i long.wav a.wav")
    if (header := table.header_line) is not None:
        names = [name.strip()[:60] for name in table.dialect.split(lines[header])]
        pairs = [("audio" if one == "id" else one, name) for one, name in zip(table.columns, names) if name]
        taken = ", ".join(f"{one} from {name}" for one, name in pairs if one)
        unused = ", ".join(name for one, name in pairs if not one)[:100]
        note = f"was read as a header: {taken}."
        if unused:
            note += f" Not used: columns {unused}."
        if names_to_columns(names) != table.columns:
            note += " To choose others, name them file, text and speaker."
        reading.note(f"Line {header + 1} of ", reading.folder.relative(table.path), printable(f" {note}"))
    elif table.is_guess:
        read_as = table.dialect.separator.join({"id": "file", None: "other"}.get(name, name) for name in table.columns)
        taken = f" has no header: its columns are read as {read_as!r}. To choose others, write such a line above them."
        reading.note("", reading.folder.relative(table.path), taken)
    reading.lists.append(reading.folder.relative(table.path))
    speakers = _read_speakers(reading, table.path.with_name("speakers.csv"))
    for index, line in list(enumerate(lines))[0 if header is None else header + 1 :]:  # comments are above the header
        name = table.name_of(line)
        if left_out and _to_id(reading, name) in left_out:
            continue
        with reading.clip(name, index + 1, table.path):
            reading.add(place, table.cells_of(line), index + 1, table.audio_places, speakers)


def _read_speakers(reading, path):
    """Returns `{id: (speaker, language or "")}` from `speakers.csv`, or None if it is missing. Skips bad lines."""
    if not reading.folder.has(path.parent, path.name):
        return None
    header, *lines = reading.folder.read_lines(path) or [""]
    split = Dialect(",", True).split
    columns = names_to_columns(split(header))
    if "id" not in columns or "speaker" not in columns:
        raise CorpusError(f"{path} must begin with the line 'id,speaker[,language]', not {header[:100]!r}.")
    speakers, faulty = {}, []
    for number, cells in enumerate(map(split, lines), 2):
        row = dict.fromkeys(columns, "") | {column: cell.strip() for column, cell in zip(columns, cells)}
        name, labels = _to_id(reading, row["id"]), (row["speaker"], row.get("language", ""))
        if len(cells) != len(columns) or not name or speakers.setdefault(name, labels) != labels:
            faulty.append(number)
    if faulty:
        skipped = f"{counted(len(faulty), 'line')} of {reading.folder.relative(path)} skipped, first line {faulty[0]}"
        reading.note("", skipped, ": incomplete, or in conflict with an earlier line.")
    return speakers


def read_split(reading: Reading, place: Place, training: Table, validation: Table | None, others: Sequence[Table]):
    """Reads a training list and a validation list. Skips training clips that are also in the validation list or in
    `others`, such as test lists. Ignores a validation or test list that contains all training clips."""
    plain = [one for one in (training, validation) if one and one.dialect and one.header_line is None]
    form_of = lambda table: (table.dialect.separator, len(table.columns))
    if len(plain) == 2 and (training.is_guess or form_of(training) == form_of(validation)):  # the better sample
        validation = validation._replace(columns=training.columns, is_guess=training.is_guess)
    ids_of = lambda table: {_to_id(reading, name) for name in _clip_names(reading, table)}
    named, kept_back = ids_of(training), set()
    relative = reading.folder.relative
    for table in filter(None, (validation, *others)):
        names = ids_of(table)
        if named <= names:
            reading.note(f"{relative(table.path)} was ignored: it has all clips of {relative(training.path)}")
            continue
        kept_back |= names
        if table is validation:
            read_table(reading, place._replace(validation=True), table)
        else:
            reading.note("", relative(table.path), " is not used for training.")
    if common := named & kept_back:
        clips = f"{counted(len(common), 'clip')} of {relative(training.path)}"
        reading.note(f"{clips} skipped: also in a list for validation or tests")
    read_table(reading, place, training, kept_back)


def read_parts(reading: Reading, place: Place, parts: dict[str, Path], training: str, read: Callable[[Place], object]):
    """Calls `read` for the validation split in `parts` (`{split: folder}`), if any, and then for `parts[training]`."""
    validation, *others = [name for name in VALIDATION if name in parts and name != training] or [None]
    for name in others:
        reading.note("The folder ", reading.folder.relative(parts[name]), " is not used.")
    for name in filter(None, (validation, training)):
        read(place.below(parts[name], validation=name == validation))


def _to_id(reading, name):
    """Converts a name in a list to a clip id: both `c` and `wavs/c.wav` to `c`. Returns an invalid name unchanged."""
    with suppress(ClipRefused):
        return parts_to_id(reading.folder.name_to_parts(name))
    return name


def _clip_names(reading, table):
    lines = reading.folder.read_lines(table.path)
    return {table.name_of(line) for line in lines[0 if table.header_line is None else table.header_line + 1 :]} - {""}

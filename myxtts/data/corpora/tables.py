"""`metadata.csv`: one clip per line, columns separated by `|`; and the `speakers.csv` next to it."""

from pathlib import Path
from typing import NamedTuple

from myxtts.data.corpora.base import Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name, parts_to_id

LIST_NAME = "metadata.csv"
_NAMES_OF_COLUMN = {
    "id": "id,audio_file,audio,audio_path,file,file_name,filename,path,wav,wav_path,wav_file,clip",
    "text": "text,sentence,transcript,transcription,raw_text",
    "normalized": "normalized,normalised,normalized_text,normalised_text,normalized text,normalized_transcription,"
    "normalized transcription,text_normalized",
    "speaker": "speaker,speaker_name,speaker_id",
    "language": "language,lang,locale",
}
_COLUMN_OF_NAME = {name: column for column, names in _NAMES_OF_COLUMN.items() for name in names.split(",")}


class _Table(NamedTuple):
    """What it takes to understand the lines of a list. `speakers` is `{id: (speaker, language or "")}`, if known."""

    place: Place
    columns: tuple[str | None, ...]
    least_columns: int
    speakers: dict[str, tuple[str, str]] | None


def first_line(lines: list[str]) -> int | None:
    """Index of the first line with anything in it."""
    return next((index for index, line in enumerate(lines) if line.strip()), None)


def names_to_columns(line: str, separator: str) -> tuple[str | None, ...]:
    """The meaning of each column of a header, None for an unknown one."""
    return tuple(_COLUMN_OF_NAME.get(cell.strip().lower()) for cell in line.split(separator))


def read_table(
    reading: Reading, place: Place, lines: list[str], columns: tuple[str | None, ...], header_line: int | None = None
):
    """Makes an utterance or a rejection of every line of the list at `place` but its header."""
    path = place.path / LIST_NAME
    if first_line(lines) is None or header_line == len(lines) - 1:
        raise CorpusError(f"{path} is empty: no clips. Write one line 'id|text|normalized text' per clip.")
    order = {column: index for index, column in enumerate(columns)}
    # Only a second text column and what follows it may be left out at the end of a line.
    needed = [order[column] for column in ("id", "speaker", "language") if column in order]
    least = 1 + max(*needed, min(order[column] for column in ("text", "normalized") if column in order))
    table = _Table(place, columns, least, _read_speakers(reading, place.path / "speakers.csv"))
    column = order["id"]
    for index, line in enumerate(lines):
        if index != header_line:
            name = "".join(line.split("|", column + 1)[column : column + 1]).strip()
            with reading.clip(name, index + 1, path):
                reading.add(_line_to_utterance(reading, table, line, index + 1))


def _line_to_utterance(reading, table, line, number):
    cells = _line_to_cells(table, line)
    folder, (path, prefix, own_speaker) = reading.folder, table.place
    parts = folder.name_to_parts(cells["id"])
    name = parts_to_id(parts)
    text = checked_text(cells.get("normalized") or cells.get("text", ""))
    reading.check_new(prefix + name, text)
    wav_path = folder.find_audio((path / "wavs", path), parts)
    listed = (table.speakers or {}).get(name, ("", ""))
    speaker = cells.get("speaker") or listed[0]
    if not speaker and (table.speakers is not None or "speaker" in table.columns):
        raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
    language = cells.get("language") or listed[1]
    if not (is_name(speaker) and is_name(language)):
        raise ClipRefused("bad label", "Its speaker or language is too long or holds control or direction characters.")
    language = language.lower().replace("_", "-") or reading.language
    return Utterance(prefix + name, wav_path, text, speaker or own_speaker, language, number)


def _line_to_cells(table, line):
    if not line.strip():
        raise ClipRefused("empty line", "The line is empty.")
    if line.lstrip().startswith("#") and "|" not in line:
        raise ClipRefused("comment line", "The line is a comment.")
    if len(line) > MAX_LINE_CHARACTERS:
        raise ClipRefused("line too long", f"The line has {len(line)} characters; the most is {MAX_LINE_CHARACTERS}.")
    cells = line.split("|")
    if not table.least_columns <= len(cells) <= len(table.columns):
        count = f"{len(cells)} column{'s' * (len(cells) != 1)} instead of {len(table.columns)}"
        raise ClipRefused("wrong number of columns", f"The line has {count}; '|' separates them.")
    return {column: cell.strip() for column, cell in zip(table.columns, cells)}


def _read_speakers(reading, path: Path):
    folder = reading.folder
    if path.name not in folder.files(path.parent):
        return None
    lines = folder.read_lines(path) or [""]
    columns = names_to_columns(lines[0], ",")
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
        reading.notes.append(f"{len(faulty)} lines of {folder.relative(path)} were left out, {why}")
    return speakers

"""`metadata.csv` with a first line that names the columns, as in `audio_file|text|speaker_name`."""

from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import printable
from myxtts.data.corpora.tables import LIST_NAME, first_line, names_to_columns, read_table


def recognizes(reading: Reading, path: Path) -> bool:
    """Whether the first line of its list names a column for the clip and one for the text, and none of ours twice."""
    if LIST_NAME not in reading.folder.files(path):
        return False
    lines = reading.folder.read_lines(path / LIST_NAME)
    columns = () if first_line(lines) is None else names_to_columns(lines[first_line(lines)], "|")
    known = [column for column in columns if column]
    return "id" in known and ("text" in known or "normalized" in known) and len(set(known)) == len(known)


def read(reading: Reading, place: Place):
    """Reads the list, with a note of the line that was taken for a header."""
    path = place.path / LIST_NAME
    lines = reading.folder.read_lines(path)
    index = first_line(lines)
    place_of_header = f"Line {index + 1} of {reading.folder.relative(path)}"
    reading.notes.append(f"{place_of_header} was read as a header: {printable(lines[index][:100])}")
    read_table(reading, place, lines, names_to_columns(lines[index], "|"), index)


FORMAT = CorpusFormat("header", 10, "", recognizes, read)

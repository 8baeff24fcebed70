"""`metadata.csv` with a first line that names the columns, as in `audio_file|text|speaker_name`."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import printable
from myxtts.data.corpora.tables import LIST_NAME, first_line, names_to_columns, read_table


def read(reading: Reading, place: Place) -> bool:
    """Reads the list if its first line names a column for the clip and one for the text, and none of ours twice."""
    path = place.path / LIST_NAME
    lines = reading.folder.read_lines(path) if LIST_NAME in reading.folder.files(place.path) else []
    index = first_line(lines)
    columns = () if index is None else names_to_columns(lines[index], "|")
    known = [column for column in columns if column]
    if "id" not in known or {"text", "normalized"}.isdisjoint(known) or len(set(known)) < len(known):
        return False
    place_of_header = f"Line {index + 1} of {reading.folder.relative(path)}"
    reading.notes.append(f"{place_of_header} was read as a header: {printable(lines[index][:100])}")
    read_table(reading, place, lines, columns, index)
    return True


FORMAT = CorpusFormat("header", 10, "", read)

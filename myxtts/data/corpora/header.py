"""A list whose first line names its columns, as in `audio_file|text|speaker_name`: any file, or `metadata.csv`."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.split_lists import read_header_list
from myxtts.data.corpora.tables import header_table

LIST_NAMES = ("metadata.csv", "metadata.tsv", "metadata.txt")


def read(reading: Reading, place: Place) -> bool:
    """Reads the list if its first line names a column for the clip and one for the text."""
    files = reading.folder.files(place.path)
    named = [place.list_path] if place.list_path else [place.path / name for name in LIST_NAMES if name in files]
    for path in named:
        if table := header_table(reading, path, (place.path / "wavs", place.path)):
            read_header_list(reading, place, table)
            return True
    return False


FORMAT = CorpusFormat("header", 10, "", read)

"""`metadata.csv` without a header: LJSpeech's `id|text|normalized text`, perhaps with a fourth column of speakers."""

from collections import Counter
from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import CorpusError
from myxtts.data.corpora.tables import LIST_NAME, Table, cells_or_none, find_dialect, guess_separator, read_table

COLUMNS = ("id", "text", "normalized")
_HINT = f"a {LIST_NAME} (one line 'id|text|normalized text' per clip, audio in wavs/)"


def read(reading: Reading, place: Place) -> bool:
    """Reads the list if there is one."""
    path = place.list_path or place.path / LIST_NAME
    if path.name not in reading.folder.files(path.parent):
        return False
    read_list(reading, place, path)
    return True


def read_list(reading: Reading, place: Place, path: Path, language: str = ""):
    """Reads a list without a header; `language` is that of its clips, if not empty."""
    lines = reading.folder.read_lines(path)
    dialect = find_dialect(lines, guess_separator(lines))
    audio_places = (place.path / "wavs", place.path)
    read_table(reading, place, Table(path, dialect, _columns(path, lines, dialect), audio_places, None, language))


def _columns(path, lines, dialect):
    rows = [cells for line in lines if dialect.separator in line and (cells := cells_or_none(dialect, line))]
    sizes = Counter(map(len, rows))
    # A '|' in the text of the only line is more likely than a speaker.
    if sizes[4] > 1 and sizes[4] > len(rows) / 2:
        return (*COLUMNS, "speaker")
    # `id|text|speaker`, as some tools write it, would otherwise be trained as the speaker's name spoken.
    texts = [(row[1].casefold().split(), row[2].casefold().split()) for row in rows if len(row) == 3 and row[2].strip()]
    sentences, names = {tuple(text) for text, _ in texts}, {tuple(third) for _, third in texts}
    alike = any(not set(text).isdisjoint(third) for text, third in texts)
    if len(sentences) >= 8 and len(names) <= len(sentences) / 4 and not alike:
        raise CorpusError(
            f"{path} has no header, and its third column, where the normalized text belongs, looks like "
            f"a speaker: {len(names)} values in {len(texts)} lines. Write 'id|text|speaker' above them."
        )
    return COLUMNS


FORMAT = CorpusFormat("ljspeech", 20, _HINT, read, ("metadata.csv", "wavs/", "*.wav"))

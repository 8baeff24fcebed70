"""M-AILABS: a `metadata.csv` and `wavs/` for every book of a speaker, as in `de_DE/by_book/female/SPEAKER/BOOK/`."""

import re

from myxtts.data.corpora import ljspeech
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, is_name
from myxtts.data.corpora.tables import LIST_NAME

_LEVELS = 5
_LOCALE = re.compile("[a-z]{2}_[A-Z]{2}")
MIXED = "mix"
"""A folder of books with several readers, who are not told apart."""


def read(reading: Reading, place: Place) -> bool:
    """Reads the books, if `metadata.csv` files lie two levels down or more, or the path has the name `by_book`."""
    if place.list_path:
        return False
    books = [path for path in reading.folder.walk(place.path, _LEVELS) if _is_book(reading, path)]
    levels = [len(path.relative_to(place.path).parts) for path in books]
    forced = reading.forced == FORMAT.name
    if not books or min(levels) < 2 and not (forced or "by_book" in place.path.parts):
        return False
    for path in books:
        parts = path.parts[-6:]
        if parts[-2] == MIXED:
            why = "its readers are not told apart."
            reading.notes.append(f"The book {reading.folder.relative(path)} was left out: {why}")
        elif is_name(parts[-2]):
            locale = next((part for part in parts if _LOCALE.fullmatch(part)), "")
            ljspeech.read_list(reading, place.below(path, speaker=parts[-2]), path / LIST_NAME, locale)
    return bool(reading.utterances or reading.rejections)


def _is_book(reading, path):
    try:
        return LIST_NAME in reading.folder.files(path) and path / "wavs" in reading.folder.subfolders(path)
    except ClipRefused:
        return False


_HINT = "SPEAKER/BOOK/ with a metadata.csv and wavs/ each (M-AILABS)"
FORMAT = CorpusFormat("m-ailabs", 34, _HINT, read, ("by_book/",))

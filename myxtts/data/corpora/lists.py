"""Lists under other names: `train.csv` and `val.csv` or alike, or the one list of a folder."""

import re

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora import ljspeech
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import CorpusError
from myxtts.data.corpora.split_lists import read_split
from myxtts.data.corpora.tables import first_line, guess_separator, header_table

_EXTENSIONS = (".csv", ".tsv", ".txt")
_MOST_LISTS = 50
_ROLES = {
    "training": re.compile("(^|[_.-])train(ing)?([_.-]|$)"),
    "validation": re.compile("(^|[_.-])(val|valid|validation|dev|eval)([_.-]|$)"),
    "test": re.compile("(^|[_.-])test([_.-]|$)"),
}


def read(reading: Reading, place: Place) -> bool:
    """Reads the list that is for training by its name, with one for validation; else the only one there is."""
    files = reading.folder.files(place.path)
    named = [place.path / name for name in files if name.endswith(_EXTENSIONS)]
    if len(named) > _MOST_LISTS:  # transcripts
        named = [path for path in named if path.suffix != ".txt"]
    if place.list_path or len(named) > _MOST_LISTS:
        return False
    audio_places = (place.path / "wavs", place.path)
    tables = {path: _table(reading, path, audio_places) for path in named}
    lists = {path: table for path, table in tables.items() if table or _names_audio(reading, path)}
    roles = {role: [path for path in lists if rule.search(path.stem.lower())] for role, rule in _ROLES.items()}
    training = roles["training"] or ([*lists] if len(lists) == 1 else [])
    if len(training) != 1:
        if lists:
            names = ", ".join(sorted(path.name for path in lists))
            raise CorpusError(f"{place.path} has several lists: {names}. Name the one to train on itself.")
        return False
    validation = (roles["validation"] or [None])[0]
    if lists[training[0]]:
        return read_split(reading, place, training[0], validation, roles["test"], audio_places)
    if validation:
        ljspeech.read_list(reading, place._replace(validation=True), validation)
    ljspeech.read_list(reading, place, training[0])
    return True


def _table(reading, path, audio_places):
    try:
        return header_table(reading, path, audio_places)
    except CorpusError:
        if path.suffix == ".txt":  # notes of any kind
            return None
        raise


def _names_audio(reading, path):
    """Whether a list without header begins with the name of an audio file."""
    try:
        lines = reading.folder.read_lines(path)
    except CorpusError:
        return False
    line = "" if (index := first_line(lines)) is None else lines[index]
    separator = guess_separator(lines[:100])
    return separator in line and line.split(separator)[0].strip().lower().endswith(AUDIO_EXTENSIONS)


FORMAT = CorpusFormat("lists", 36, "one list with a header, or a train.csv and a val.csv", read, ("*.csv", "*.tsv"))

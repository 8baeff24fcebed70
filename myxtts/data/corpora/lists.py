"""Data sets that one list or a few name: xtts-finetune-webui, Common Voice, lists with a header, LJSpeech, others."""

import re
from collections import Counter
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, CorpusError
from myxtts.data.corpora.tables import (
    Table,
    find_dialect,
    first_line,
    guess_separator,
    header_table,
    read_header_list,
    read_split,
    read_table,
)

_MOST_LISTS = 50
_ROLES = {
    "training": re.compile("(^|[_.-])train(ing)?([_.-]|$)"),
    "validation": re.compile("(^|[_.-])(val|valid|validation|dev|eval)([_.-]|$)"),
    "test": re.compile("(^|[_.-])test([_.-]|$)"),
}


def read_finetune_webui(reading: Reading, place: Place) -> bool:
    """Reads `metadata_train.csv`, or either of the two where it is named itself; the other one is for validation."""
    training, validation = "metadata_train.csv", "metadata_eval.csv"
    files, named = reading.folder.files(place.path), place.list_path.name if place.list_path else training
    if named not in (training, validation) or named not in files:
        return False
    language = reading.folder.read_text(place.path / "lang.txt", 100).strip() if "lang.txt" in files else ""
    held = place.path / validation if validation in files and not place.list_path else None
    return read_split(reading, place, place.path / named, held, (), (place.path, place.path / "wavs"), language)


def read_common_voice(reading: Reading, place: Place) -> bool:
    """Reads `train.tsv`, else `validated.tsv`, or the list that is named itself.

    `dev.tsv` is for validation, without one `test.tsv`.
    """
    files, clips = reading.folder.files(place.path), place.path / "clips"
    if clips not in reading.folder.subfolders(place.path):
        return False
    if place.list_path:
        return read_split(reading, place, place.list_path, None, (), (clips,))
    names = [name for name in ("train.tsv", "validated.tsv", "dev.tsv", "test.tsv") if name in files]
    if not names or names[0] not in ("train.tsv", "validated.tsv"):
        return False
    validation, *others = [place.path / name for name in ("dev.tsv", "test.tsv") if name in names] or [None]
    if not read_split(reading, place, place.path / names[0], validation, others, (clips,)):
        raise ClipRefused("unreadable", f"{names[0]} has no header with the columns path and sentence.")
    if names[:2] == ["train.tsv", "validated.tsv"]:
        reading.notes.append("validated.tsv has more clips than train.tsv; to train on them, name that file itself.")
    return True


def read_header(reading: Reading, place: Place) -> bool:
    """Reads the list if its first line names a column for the clip and one for the text."""
    files = reading.folder.files(place.path)
    usual = [place.path / f"metadata.{suffix}" for suffix in ("csv", "tsv", "txt") if f"metadata.{suffix}" in files]
    for path in [place.list_path] if place.list_path else usual:
        if table := header_table(reading, path, (place.path / "wavs", place.path)):
            read_header_list(reading, place, table)
            return True
    return False


def read_ljspeech(reading: Reading, place: Place) -> bool:
    """Reads the list if there is one."""
    path = place.list_path or place.path / "metadata.csv"
    if not reading.folder.has(path.parent, path.name):
        return False
    read_plain_list(reading, place, path)
    return True


def read_plain_list(reading: Reading, place: Place, path: Path, language: str = ""):
    """Reads a list without a header: `id|text|normalized text`, perhaps with a fourth column of speakers.

    `language` is that of its clips, if not empty.
    """
    lines = reading.folder.read_lines(path)
    dialect = find_dialect(lines, guess_separator(lines))
    rows = [cells for line in lines if dialect.separator in line and (cells := dialect.split_or_none(line))]
    sizes = Counter(map(len, rows))
    # A '|' in the text of the only line is more likely than a speaker.
    has_speakers = sizes[4] > 1 and sizes[4] > len(rows) / 2
    if not has_speakers:
        _refuse_speakers_for_text(path, rows)
    columns = ("id", "text", "normalized", "speaker")[: 3 + has_speakers]
    audio_places = (place.path / "wavs", place.path)
    read_table(reading, place, Table(path, dialect, columns, audio_places, None, language))


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


def read_lists(reading: Reading, place: Place) -> bool:
    """Reads the list that is for training by its name, with one for validation; else the only one there is."""
    named = [place.path / name for name in reading.folder.files(place.path) if name.endswith((".csv", ".tsv", ".txt"))]
    if len(named) > _MOST_LISTS:  # transcripts
        named = [path for path in named if path.suffix != ".txt"]
    if place.list_path or len(named) > _MOST_LISTS:
        return False
    audio_places = (place.path / "wavs", place.path)
    tables = {path: _header_table_or_none(reading, path, audio_places) for path in named}
    lists = {path: table for path, table in tables.items() if table or _names_audio(reading, path)}
    roles = {role: [path for path in lists if rule.search(path.stem.lower())] for role, rule in _ROLES.items()}
    training = roles["training"] or ([*lists] if len(lists) == 1 else [])
    if lists and len(training) != 1:
        names = ", ".join(sorted(path.name for path in lists))
        raise CorpusError(f"{place.path} has several lists: {names}. Name the one to train on itself.")
    if not lists:
        return False
    validation = (roles["validation"] or [None])[0]
    if lists[training[0]]:
        return read_split(reading, place, training[0], validation, roles["test"], audio_places)
    if validation:
        read_plain_list(reading, place._replace(validation=True), validation)
    read_plain_list(reading, place, training[0])
    return True


def _header_table_or_none(reading, path, audio_places):
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


FINETUNE_WEBUI = CorpusFormat(
    "finetune-webui",
    4,
    "metadata_train.csv and metadata_eval.csv (xtts-finetune-webui: a header audio_file|text|speaker_name, lang.txt)",
    read_finetune_webui,
    ("metadata_train.csv", "metadata_eval.csv", "lang.txt"),
)
COMMON_VOICE = CorpusFormat(
    "common-voice",
    6,
    "train.tsv or validated.tsv (Common Voice, audio in clips/)",
    read_common_voice,
    ("train.tsv", "validated.tsv", "clips/"),
)
HEADER = CorpusFormat("header", 10, "", read_header)
LJSPEECH = CorpusFormat(
    "ljspeech",
    20,
    "a metadata.csv (one line 'id|text|normalized text' per clip, audio in wavs/)",
    read_ljspeech,
    ("metadata.csv", "wavs/", "*.wav"),
)
LISTS = CorpusFormat("lists", 36, "one list with a header, or train.csv and val.csv", read_lists, ("*.csv", "*.tsv"))

"""Data sets that one list or a few name: xtts-finetune-webui, Common Voice, lists with a header, LJSpeech, others."""

import re

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, CorpusError
from myxtts.data.corpora.tables import (
    VALIDATION,
    content_table,
    header_table,
    plain_table,
    read_parts,
    read_split,
    read_table,
)

_LISTS = (".csv", ".tsv", ".txt", ".jsonl", ".json")
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
    held = [validation] if validation in files and not place.list_path else []
    return _read_headers(reading, place, [named, *held], (place.path, place.path / "wavs"), language)


def read_common_voice(reading: Reading, place: Place) -> bool:
    """Reads `train.tsv`, else `validated.tsv`, or the list that is named itself.

    `dev.tsv` is for validation, without one `test.tsv`.
    """
    files, clips = reading.folder.files(place.path), place.path / "clips"
    if clips not in reading.folder.subfolders(place.path):
        return False
    if place.list_path:
        return _read_headers(reading, place, [place.list_path.name], (clips,))
    names = [name for name in ("train.tsv", "validated.tsv", "dev.tsv", "test.tsv") if name in files]
    if not names or names[0] not in ("train.tsv", "validated.tsv"):
        return False
    lists = [names[0], *(name for name in names if name in ("dev.tsv", "test.tsv"))]
    if not _read_headers(reading, place, lists, (clips,)):
        raise ClipRefused("unreadable", f"{names[0]} has no header with the columns path and sentence.")
    if names[:2] == ["train.tsv", "validated.tsv"]:
        reading.notes.append("validated.tsv has more clips than train.tsv; to train on them, name that file itself.")
    return True


def _read_headers(reading, place, names, audio_places, language=""):
    """Reads lists with headers, to train on, to validate on and for tests; False where the first one has none."""
    tables = [header_table(reading, place.path / name, audio_places, language) for name in names]
    for name, table in zip(names[1:], tables[1:]):
        if tables[0] and not table:
            reading.notes.append(f"{name} was passed over: its first line names no columns.")
    if tables[0]:
        read_split(reading, place, tables[0], *(tables[1:2] or [None]), [*filter(None, tables[2:])])
    return bool(tables[0])


def read_audiofolder(reading: Reading, place: Place) -> bool:
    """Reads the list of the folder, or those of its `train` and `validation` folders, also below `data/`."""
    if place.list_path:
        return place.list_path.suffix == ".jsonl" and _read_audiofolder(reading, place, place.list_path)
    if reading.folder.has(place.path, "metadata.jsonl"):
        return _read_audiofolder(reading, place, place.path / "metadata.jsonl")
    names = ("metadata.jsonl", "metadata.csv")
    list_of = lambda path: next((path / name for name in names if reading.folder.has(path, name)), None)
    for root in (place, place.below(place.path / "data")):
        folders = {path.name: path for path in reading.folder.subfolders(root.path)}
        parts = {name: folders[name] for name in ("train", *VALIDATION) if name in folders and list_of(folders[name])}
        if "train" in parts:
            read = lambda part: _read_audiofolder(reading, part, list_of(part.path))
            read_parts(reading, root, parts, "train", read)
            return True
    return False


def _read_audiofolder(reading, place, path):
    table = header_table(reading, path, (path.parent,))
    if table is None:
        raise CorpusError(f"{path} must begin with a line that names its columns, such as file_name,transcription.")
    read_table(reading, place, table)
    return True


def read_header(reading: Reading, place: Place) -> bool:
    """Reads the list if its first line names a column for the clip and one for the text."""
    files = reading.folder.files(place.path)
    usual = [place.path / f"metadata.{suffix}" for suffix in ("csv", "tsv", "txt") if f"metadata.{suffix}" in files]
    for path in [place.list_path] if place.list_path else usual:
        if table := header_table(reading, path, (place.path / "wavs", place.path)):
            read_table(reading, place, table)
            return True
    return False


def read_ljspeech(reading: Reading, place: Place) -> bool:
    """Reads the list if there is one, by what is in its columns."""
    path, audio_places = place.list_path or place.path / "metadata.csv", (place.path / "wavs", place.path)
    if not reading.folder.has(path.parent, path.name):
        return False
    options = reading, path, audio_places
    read_table(reading, place, content_table(*options) or plain_table(*options))
    return True


def read_lists(reading: Reading, place: Place) -> bool:
    """Reads the list that is for training by its name, with one for validation; else the only one there is.

    Lists may also lie in a folder of their own (`filelists/`).
    """
    folder = reading.folder
    of_lists = (
        path for path in folder.walk(place.path, 1) if not (folder.audio_stems(path) or folder.subfolders(path))
    )
    folders = () if place.list_path else (place.path, *of_lists)
    lists = next(filter(None, (_find_lists(reading, place, path) for path in folders)), {})
    roles = {role: [path for path in lists if rule.search(path.stem.lower())] for role, rule in _ROLES.items()}
    training = roles["training"] or ([*lists] if len(lists) == 1 else [])
    if lists and len(training) != 1:
        names = ", ".join(sorted(path.name for path in lists))
        raise CorpusError(f"{place.path} has several lists: {names}. Name the one to train on itself.")
    if lists:
        held, tests = roles["validation"][:1] or [None], (lists[path] for path in roles["test"])
        read_split(reading, place, lists[training[0]], lists.get(held[0]), [*tests])
    return bool(lists)


def _find_lists(reading, place, folder):
    """The lists of clips among the files of a folder, `{path: how to read it}`."""
    named = [folder / name for name in reading.folder.files(folder) if name.endswith(_LISTS)]
    if len(named) > _MOST_LISTS:  # transcripts, or facts of single clips
        named = [path for path in named if path.suffix not in (".txt", ".json")]
    found = {}
    for path in named if len(named) <= _MOST_LISTS else ():
        options = reading, path, (place.path / "wavs", place.path)
        try:
            found[path] = header_table(*options) or content_table(*options)
        except CorpusError:
            if path.suffix not in (".txt", ".json"):  # notes of any kind
                raise
    return {path: table for path, table in found.items() if table}


WEBUI_HINT = "metadata_train.csv and metadata_eval.csv (xtts-finetune-webui: audio_file|text|speaker_name, lang.txt)"
FINETUNE_WEBUI = CorpusFormat("finetune-webui", 4, WEBUI_HINT, read_finetune_webui)
COMMON_VOICE_HINT = "train.tsv or validated.tsv (Common Voice, audio in clips/)"
COMMON_VOICE = CorpusFormat("common-voice", 6, COMMON_VOICE_HINT, read_common_voice)
AUDIOFOLDER_HINT = "a metadata.jsonl or metadata.csv with file_name and text (Hugging Face audiofolder), or in train/"
AUDIOFOLDER = CorpusFormat("audiofolder", 8, AUDIOFOLDER_HINT, read_audiofolder)
HEADER = CorpusFormat("header", 10, "a list whose first line names its columns, such as file|text|speaker", read_header)
LJSPEECH_HINT = "a metadata.csv (one line 'id|text|normalized text' per clip, audio in wavs/)"
LJSPEECH = CorpusFormat("ljspeech", 20, LJSPEECH_HINT, read_ljspeech)
LISTS = CorpusFormat("lists", 36, "one list of clips, or train.csv and val.csv", read_lists)

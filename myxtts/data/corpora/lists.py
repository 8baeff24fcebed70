"""Layouts with one list or several: xtts-finetune-webui, Common Voice, audiofolder, headers, LJSpeech, any lists."""

import re

from myxtts.data.corpora import tables
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, CorpusError

_LISTS = (".csv", ".tsv", ".txt", ".jsonl", ".json")
_MAX_LISTS = 50
_ROLES = {
    "training": re.compile("(^|[_.-])train(ing)?([_.-]|$)"),
    "validation": re.compile("(^|[_.-])(val|valid|validation|dev|eval)([_.-]|$)"),
    "test": re.compile("(^|[_.-])test([_.-]|$)"),
}


def _with_language(reading, place):
    """Returns the place with the language in `lang.txt`, if xtts-finetune-webui wrote that file."""
    path = place.path / "lang.txt"
    is_there = reading.folder.has(place.path, path.name)
    return place._replace(language=reading.folder.read_text(path, 100).strip()) if is_there else place


def read_finetune_webui(reading: Reading, place: Place) -> bool:
    """Reads `metadata_train.csv`, with `metadata_eval.csv` for validation."""
    is_webui = reading.folder.has(place.path, "metadata_train.csv")
    return is_webui and read_lists(reading, _with_language(reading, place))


def read_common_voice(reading: Reading, place: Place) -> bool:
    """Reads `train.tsv`, else `validated.tsv`, with `dev.tsv`, else `test.tsv`, for validation."""
    files = reading.folder.files(place.path)
    training = [name for name in ("train.tsv", "validated.tsv") if name in files]
    if not training or place.path / "clips" not in reading.folder.subfolders(place.path):
        return False
    lists = [training[0], *(name for name in ("dev.tsv", "test.tsv") if name in files)]
    table, *others = (tables.header_table(reading, place, place.path / name) for name in lists)
    if not table:
        raise ClipRefused("unreadable", f"{training[0]} has no header with the columns path and sentence.")
    tables.read_split(reading, place, table, *(others[:1] or [None]), [*filter(None, others[1:])])
    if training[1:]:
        reading.notes.append("validated.tsv has more clips than train.tsv; to train on them, give that file.")
    return True


def read_audiofolder(reading: Reading, place: Place) -> bool:
    """Reads the list of a folder, or those of its `train` and `validation` folders, perhaps below `data/`."""
    names = ("metadata.jsonl", "metadata.csv")
    list_of = lambda path: next((path / name for name in names if reading.folder.has(path, name)), None)
    read = lambda part: _read_audiofolder(reading, part, list_of(part.path))
    if reading.folder.has(place.path, "metadata.jsonl"):
        return read(place)
    for root in (place, place.below(place.path / "data")):
        folders = [path for path in reading.folder.subfolders(root.path) if path.name in ("train", *tables.VALIDATION)]
        parts = {path.name: path for path in folders if list_of(path)}
        if "train" in parts:
            tables.read_parts(reading, root, parts, "train", read)
            return True
    return False


def _read_audiofolder(reading, place, path):
    table = tables.header_table(reading, place, path)
    if table is None:
        raise CorpusError(f"{path} must begin with a line that names its columns, such as file_name,transcription.")
    tables.read_table(reading, place, table)
    return True


def read_header(reading: Reading, place: Place) -> bool:
    """Reads a list whose first line names a column for the clip and one for the text."""
    files = reading.folder.files(place.path)
    usual = [place.path / name for name in ("metadata.csv", "metadata.tsv", "metadata.txt") if name in files]
    for path in [place.list_path] if place.list_path else usual:
        if table := tables.header_table(reading, place, path):
            tables.read_table(reading, _with_language(reading, place), table)
            return True
    return False


def read_ljspeech(reading: Reading, place: Place) -> bool:
    """Reads a list without known column names, by the content of its columns."""
    path = place.list_path or place.path / "metadata.csv"
    if not reading.folder.has(path.parent, path.name):
        return False
    table = tables.content_table(reading, place, path) or tables.plain_table(reading, place, path)
    tables.read_table(reading, place, table)
    return True


def read_lists(reading: Reading, place: Place) -> bool:
    """Reads the list whose name says training, with one for validation; else the only list.

    Lists may also be in a folder of their own (`filelists/`).
    """
    folder = reading.folder
    is_of_lists = lambda path: not (folder.audio_stems(path) or folder.subfolders(path))
    folders = (place.path, *filter(is_of_lists, folder.walk(place.path, 1)))
    lists = next(filter(None, (_find_lists(reading, place, path) for path in folders)), {})
    roles = {role: [path for path in lists if rule.search(path.stem.lower())] for role, rule in _ROLES.items()}
    training = roles["training"] or ([*lists] if len(lists) == 1 else [])
    if not lists:
        return False
    if len(training) != 1:
        names = ", ".join(sorted(path.name for path in lists))
        raise CorpusError(f"{place.path} has several lists: {names}. Give the one to train on.")
    held, tests = roles["validation"][:1] or [None], (lists[path] for path in roles["test"])
    tables.read_split(reading, place, lists[training[0]], lists.get(held[0]), [*tests])
    return True


def _find_lists(reading, place, folder):
    """Returns the lists of clips in a folder, as `{path: table}`."""
    named = [folder / name for name in reading.folder.files(folder) if name.endswith(_LISTS)]
    if len(named) > _MAX_LISTS:  # transcripts, or metadata of single clips
        named = [path for path in named if path.suffix not in (".txt", ".json")]
    found = {}
    for path in named if len(named) <= _MAX_LISTS else ():
        try:
            found[path] = tables.header_table(reading, place, path) or tables.content_table(reading, place, path)
        except CorpusError:
            if path.suffix not in (".txt", ".json"):  # not a list
                raise
    return {path: table for path, table in found.items() if table}


FINETUNE_WEBUI = CorpusFormat("finetune-webui", 4, "metadata_train.csv (xtts-finetune-webui)", read_finetune_webui)
COMMON_VOICE = CorpusFormat("common-voice", 6, "train.tsv or validated.tsv, and audio in clips/", read_common_voice)
AUDIOFOLDER = CorpusFormat("audiofolder", 8, "a metadata.jsonl, or one in train/ (Hugging Face)", read_audiofolder)
HEADER = CorpusFormat("header", 10, "a list that begins with column names, as file|text", read_header, takes_list=True)
LJSPEECH = CorpusFormat("ljspeech", 20, "a metadata.csv of lines id|text, and wavs/", read_ljspeech, takes_list=True)
LISTS = CorpusFormat("lists", 36, "one list of clips, or train.csv and val.csv", read_lists)

"""LibriTTS: folders `SPEAKER/CHAPTER/` with a `.normalized.txt` beside every audio file, perhaps below a `train-…/`."""

import os

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused
from myxtts.data.corpora.text_files import read_pair

ENDING = ".normalized.txt"
VALIDATION = ("dev-clean", "dev-other")
TEST = ("test-clean", "test-other")


def read(reading: Reading, place: Place) -> bool:
    """Reads all chapters: those of `dev-…` for validation when there are others, of `test-…` not at all."""
    if place.list_path:
        return False
    chapters = [path for path in reading.folder.walk(place.path, 3) if _is_chapter(reading, path)]
    subsets = {path: set(path.relative_to(place.path).parts) for path in chapters}
    others = [path for path in chapters if subsets[path].isdisjoint(VALIDATION + TEST)]
    for path in chapters:
        if others and subsets[path].intersection(TEST):
            continue
        held = place._replace(validation=bool(others) and not subsets[path].isdisjoint(VALIDATION))
        _read_chapter(reading, held, path)
    if others and any(subsets[path].intersection(TEST) for path in chapters):
        reading.notes.append("The folders test-… were left for tests: they are not used.")
    return bool(chapters)


def _is_chapter(reading, path):
    try:
        return any(name.endswith(ENDING) for name in reading.folder.files(path))
    except ClipRefused:
        return False


def _read_chapter(reading, place, path):
    files = reading.folder.files(path)
    stems = {stem for stem, extension in map(os.path.splitext, files) if extension in AUDIO_EXTENSIONS}
    for stem in sorted(stems | {name.removesuffix(ENDING) for name in files if name.endswith(ENDING)}):
        with reading.clip(stem, None, path / f"{stem}{ENDING}"):
            clip_id = f"{place.below(path).prefix}{stem}"
            reading.add(read_pair(reading, place, path / stem, path / f"{stem}{ENDING}", clip_id, path.parent.name))


FORMAT = CorpusFormat("libritts", 32, "SPEAKER/CHAPTER/ with .normalized.txt files (LibriTTS)", read, (f"*{ENDING}",))

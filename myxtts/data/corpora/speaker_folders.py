"""One folder per speaker, each in one of the other formats."""

from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, is_name


def recognizes(reading: Reading, path: Path) -> bool:
    """Whether this is the data set's own folder, there being folders in it."""
    return path == reading.folder.root and bool(reading.folder.subfolders())


def read(reading: Reading, place: Place):
    """Reads each folder, with notes of those that cannot be read."""
    left_out = []
    for path in reading.folder.subfolders():
        layout, relative = None, reading.folder.relative(path)
        try:
            if is_name(path.name):
                layout = reading.read(Place(path, f"{path.name}/", path.name))
        except ClipRefused as refused:
            reading.notes.append(f"The folder {relative} was left out: {refused.detail}")
        if layout is None:
            why = "it has neither metadata.csv nor audio with .txt files, or a name that cannot be printed."
            left_out.append(f"The folder {relative} was left out: {why}")
    reading.notes.extend(left_out)


FORMAT = CorpusFormat("speaker folders", 40, "one such folder per speaker", recognizes, read)

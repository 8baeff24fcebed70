"""One folder per speaker, each in one of the other formats."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused, is_name


def read(reading: Reading, place: Place) -> bool:
    """Reads each folder in the data set's own, if there are any, with notes of those that cannot be read."""
    is_root = place.path == reading.folder.root and not place.list_path
    folders = reading.folder.subfolders(place.path) if is_root else []
    left_out = []
    for path in folders:
        layout, relative = None, reading.folder.relative(path)
        try:
            if is_name(path.name):
                layout = reading.read(place.below(path, speaker=path.name))
        except ClipRefused as refused:
            reading.notes.append(f"The folder {relative} was left out: {refused.detail}")
        if layout is None:
            why = "it has neither metadata.csv nor audio with .txt files, or a name that cannot be printed."
            left_out.append(f"The folder {relative} was left out: {why}")
    reading.notes.extend(left_out)
    return bool(folders)


FORMAT = CorpusFormat("speaker-folders", 40, "one such folder per speaker", read)

"""From a folder of recordings and transcripts to a list of utterances.

Each module here that has a `FORMAT` reads one layout; a new layout is one new module. A folder is read by the first
that recognizes it, in order of their `priority`:

- `header`: `metadata.csv` with a first line that names the columns, as in `audio_file|text|speaker_name`;
- `ljspeech`: `metadata.csv` with lines `id|text|normalized text`; the third column may be missing or empty, a fourth
  names the speaker when most lines have one;
- `text_files`: audio files next to `.txt` files of the same names;
- `speaker_folders`: one folder per speaker, each in one of the other layouts.

Next to a `metadata.csv`, audio lies in `wavs/` or in the same folder, and a `speakers.csv` with the header `id,speaker`
or `id,speaker,language` tells the speakers.

The folder is somebody else's: nothing in it is changed, nothing outside it is opened, sizes are limited, and every line
ends up either as an utterance or as a rejection with its reason.
"""

import importlib
import pkgutil
from pathlib import Path

from myxtts.data.corpora.base import Corpus, CorpusFormat, Finding, Place, Reading, Rejection, Utterance
from myxtts.data.corpora.folder import ClipRefused, CorpusError, CorpusFolder

__all__ = ["Corpus", "CorpusError", "Finding", "Rejection", "Utterance", "load_corpus"]


def find_formats() -> list[CorpusFormat]:
    """The formats of this package's modules, first those that are asked first."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return sorted((module.FORMAT for module in modules if hasattr(module, "FORMAT")), key=lambda form: form.priority)


def load_corpus(root: str | Path, language: str = "en") -> Corpus:
    """Lists the utterances of a data set in any of the layouts above. Audio is found, not opened.

    `language` is that of every clip for which the data set does not name one.

    Raises:
        CorpusError: The folder is missing, has no layout that is known, or a list in it is empty, too large, not UTF-8
            (or UTF-16 with a byte-order mark), or has speakers where text belongs.
    """
    formats = find_formats()
    way_out = f"Give a folder with {', or with '.join(form.hint for form in formats if form.hint)}."
    if not Path(root).is_dir():
        fault = f"{root} is not a folder" if Path(root).exists() else f"folder {root} does not exist"
        raise CorpusError(f"The data set {fault}. {way_out}")
    reading = Reading(CorpusFolder(root), language, formats)
    root = reading.folder.root
    try:
        layout = reading.read(Place(root, "", root.name))
    except ClipRefused as refused:
        raise CorpusError(f"The data set folder {root} cannot be read. {refused.detail}") from refused
    if not (reading.utterances or reading.rejections):
        raise CorpusError(f"{root} holds no metadata.csv. {way_out}")
    return Corpus(root, layout, tuple(reading.utterances), tuple(reading.rejections), tuple(reading.notes))

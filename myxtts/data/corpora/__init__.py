"""From a folder of recordings and transcripts, or one list, to a list of utterances.

Each module here that has a `FORMAT` reads one layout; a new layout is one new module. A folder is read by the first
that recognizes it, in order of their `priority`; `docs/data.md` has a table of them. Next to a list, audio lies in
`wavs/` or in the list's own folder, and a `speakers.csv` with the header `id,speaker` or `id,speaker,language` tells
the speakers.

The folder is somebody else's: nothing in it is changed, nothing in it is run, nothing outside it is opened but what the
user allows, sizes are limited, and every line ends up either as an utterance or as a rejection with its reason.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.audio.files import MEDIA_EXTENSIONS
from myxtts.config.checks import counted, printable
from myxtts.data.corpora.base import Corpus, CorpusFormat, Finding, Place, Reading, Rejection, Utterance
from myxtts.data.corpora.folder import ClipRefused, CorpusError, CorpusFolder
from myxtts.data.corpora.nearest import nothing_fits
from myxtts.text.language_guess import guess_language
from myxtts.text.languages import DEFAULT_LANGUAGE, get_language

SPEAKER_FOLDERS = "speaker-folders"
ARCHIVES = (".zip", ".tar", ".gz", ".bz2", ".xz", ".7z", ".rar", ".tgz")

__all__ = ["Corpus", "CorpusError", "Finding", "Rejection", "Utterance", "load_corpus"]


def find_formats() -> list[CorpusFormat]:
    """The formats of this package's modules, first those that are asked first."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return sorted((module.FORMAT for module in modules if hasattr(module, "FORMAT")), key=lambda form: form.priority)


def load_corpus(
    root: str | Path,
    language: str | None = DEFAULT_LANGUAGE,
    format_name: str | None = None,
    audio_roots: Sequence[str | Path] = (),
) -> Corpus:
    """Lists the utterances of a data set in any of the layouts above. Audio is found, not opened.

    Args:
        root: A folder, or one list of clips.
        language: Of every clip for which the data set does not name one; None takes English, with a note.
        format_name: Name of the only format to try; by default the content tells.
        audio_roots: Other folders in which lists may name audio.

    Raises:
        CorpusError: There is nothing there, nothing of a known layout, or a list is empty, too large, not UTF-8 (or
            UTF-16 with a byte-order mark), or has speakers where text belongs.
    """
    formats = find_formats()
    chosen = [form for form in formats if form.name == format_name] if format_name else formats
    if not chosen:
        known = ", ".join(form.name for form in formats)
        raise CorpusError(f"--format must be one of {known}. Received: {format_name}.")
    for folder in audio_roots:
        if not Path(folder).is_dir():
            raise CorpusError(f"--audio-root must be a folder that is there. Received: {folder}.")
    root = Path(root)
    if not root.exists():
        raise CorpusError(f"The data set {root} does not exist. Give a folder with {_usual(formats)}, or a list.")
    if root.suffix.lower() in ARCHIVES and root.is_file():
        raise CorpusError(f"The data set {root} is an archive. Unpack it, and give the folder.")
    if root.suffix.lower() in MEDIA_EXTENSIONS and root.is_file():
        cuts = f"`myxtts make-dataset {printable(str(root))} --output DIR` cuts a long one into clips"
        raise CorpusError(f"The data set {root} is a recording. Give the folder of your recordings; {cuts}.")
    place_path = root if root.is_dir() else root.parent
    # Within speaker folders each folder may have a format of its own.
    inner = formats if chosen[0].name == SPEAKER_FOLDERS else chosen
    reading = Reading(CorpusFolder(place_path, audio_roots), language or "", inner, format_name)
    place_path = reading.folder.root
    place = Place(place_path, "", place_path.name, None if root.is_dir() else place_path / root.name)
    try:
        layout = next((form.name for form in chosen if form.read(reading, place)), None)
    except ClipRefused as refused:
        raise CorpusError(f"The data set {root} cannot be read. {refused.detail}") from refused
    if not (reading.utterances or reading.rejections):
        raise CorpusError(nothing_fits(place, chosen))
    if linked := sorted(reading.folder.linked):
        where = ", ".join(printable(str(path)) for path in linked[:3]) + (", …" if linked[3:] else "")
        reading.notes.append(f"Links of yours lead outside the data set and were followed, to audio in {where}.")
    _guess_language(reading)
    found = tuple(reading.utterances), tuple(reading.rejections), tuple(reading.notes)
    return Corpus(place_path, layout, *found, is_list=place.list_path is not None)


def _guess_language(reading):
    """Gives the clips whose language nothing tells the only one that their letters allow, with a note."""
    untold = [utterance for utterance in reading.utterances if utterance.language == reading.language]
    said = reading.language or DEFAULT_LANGUAGE
    language, note = guess_language((utterance.text for utterance in untold), said)
    if note:
        reading.notes.append(f"{note} No language is named for {counted(len(untold), 'clip')}.")
    elif untold and not reading.language:
        told = f"Clips for which no language is named are read as {get_language(said).name} ({said})"
        reading.notes.append(f"{told}; --language names another.")
    if language != reading.language:
        changed = {utterance.id for utterance in untold}
        reading.utterances[:] = [
            replace(utterance, language=language) if utterance.id in changed else utterance
            for utterance in reading.utterances
        ]


def _usual(formats):
    return next(form.hint for form in formats if form.name == "ljspeech")

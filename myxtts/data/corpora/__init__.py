"""From a folder of recordings and transcripts, or one list, to a list of utterances.

Each `CorpusFormat` in a module here reads one layout; a new layout is one new module. A folder is read by the first
format that recognizes it, in order of their `priority`; `docs/data.md` has a table of them. Next to a list, audio lies
in `wavs/` or in the list's own folder, and a `speakers.csv` with the header `id,speaker` or `id,speaker,language` names
the speakers.

The folder is somebody else's: nothing in it is changed or run, nothing outside it is opened but what the user allows,
sizes are limited, and every line becomes an utterance or a rejection with its reason.
"""

import importlib
import os
import pkgutil
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.audio.files import MEDIA_EXTENSIONS
from myxtts.config.checks import counted, printable
from myxtts.config.stages import STAGES
from myxtts.data.corpora.base import Corpus, CorpusFormat, Finding, Place, Reading, Utterance
from myxtts.data.corpora.folder import ClipRefused, CorpusError, CorpusFolder, TextsMissing
from myxtts.text.language_guess import guess_language, identify_language
from myxtts.text.languages import DEFAULT_LANGUAGE, LANGUAGES, get_language

ARCHIVES = (".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".tgz")
SPREADSHEETS, MODELS = (".xlsx", ".xls", ".ods", ".numbers"), (".pth", ".safetensors")
TEXTS, SUBTITLES = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".ods", ".lab"), (".srt", ".vtt", ".ass")

__all__ = ["Corpus", "CorpusError", "Finding", "TextsMissing", "Utterance", "load_corpus"]


def find_formats() -> list[CorpusFormat]:
    """The formats of this package's modules, lowest priority number first."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    formats = {form for module in modules for form in vars(module).values() if isinstance(form, CorpusFormat)}
    return sorted(formats, key=lambda form: form.priority)


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
        format_name: Name of the only format to try; by default the content decides.
        audio_roots: Other folders in which lists may name audio.

    Raises:
        CorpusError: There is nothing there, nothing of a known layout, or a list is empty, too large, not UTF-8 (or
            UTF-16 with a byte-order mark), or has speakers where text belongs.
    """
    formats = find_formats()
    chosen = [form for form in formats if not format_name or form.name == format_name]
    if not chosen:
        known = ", ".join(form.name for form in formats)
        raise CorpusError(f"--format must be one of {known}. Received: {format_name}.")
    for folder in audio_roots:
        if not Path(folder).is_dir():
            raise CorpusError(f"--audio-root must be a folder that is there. Received: {folder}.")
    root = Path(root)
    require_data_set(root)
    place_path = root if root.is_dir() else root.parent
    # Within speaker folders each folder may have a format of its own.
    inner = formats if chosen[0].name == "speaker-folders" else chosen
    reading = Reading(CorpusFolder(place_path, audio_roots), language or "", inner)
    place_path = reading.folder.root
    place = Place(place_path, "", place_path.name, None if root.is_dir() else place_path / root.name)
    try:
        layout = next((form.name for form in chosen if form.read(reading, place)), None)
    except ClipRefused as refused:
        raise CorpusError(f"The data set {root} cannot be read. {refused.detail}") from refused
    if not (reading.utterances or reading.rejections):
        raise CorpusError(_nothing_fits(place, chosen))
    if linked := sorted(reading.folder.linked):
        where = ", ".join(printable(str(path)) for path in linked[:3]) + (", …" if linked[3:] else "")
        reading.notes.append(
            f"Links or names of yours lead outside the data set and were followed, to audio in {where}."
        )
    _guess_language(reading)
    found = tuple(reading.utterances), tuple(reading.rejections), tuple(reading.notes)
    return Corpus(place_path, layout, *found, is_list=place.list_path is not None)


def require_data_set(root: str | Path) -> None:
    """Raises `CorpusError` where a path is certainly no data set, with what it is and what to do with it."""
    root = Path(root)
    name, kind = printable(str(root)), root.suffix.lower() if root.is_file() else ""
    if not root.exists():
        what = "does not exist. Give a folder, or a list, as docs/data.md shows"
    elif kind in ARCHIVES:
        what = "is an archive. Unpack it, and give the folder"
    elif kind in MEDIA_EXTENSIONS:
        make = f"`myxtts make-dataset {shlex.quote(name)} --output DIR --recognizer base`"
        what = f"is a recording. {make} cuts it into clips with their texts, and `myxtts train` does so by itself"
        raise TextsMissing(f"The data set {name} {what}.", root, [root])
    elif kind in SPREADSHEETS:
        what = 'is a spreadsheet. Save it as CSV (Excel: "CSV UTF-8"), and give that file'
    elif kind in MODELS or (root.is_dir() and _is_model(root)):
        train = f"--init-from {shlex.quote(name)} trains on from it"
        what = f"is a model and no data set. {train}, `myxtts say --checkpoint {shlex.quote(name)}` speaks with it"
    elif (root / "speak.py").is_file() and any(root.glob("*.onnx")):
        what = f"is an exported model and no data set. `python {shlex.quote(name)}/speak.py --help` says how it speaks"
    else:
        names = _names_below(root) if root.is_dir() else []
        if all(one.lower().endswith(("/", *MEDIA_EXTENSIONS, *SUBTITLES)) for one in names):
            _require_texts(root, names)
        return
    raise CorpusError(f"The data set {name} {what}.")


def _is_model(folder):
    """Whether a folder holds a run, a preset or a model in Coqui's layout, and no list of clips beside it."""
    has_config = (folder / "config.json").is_file() and not (folder / "metadata.csv").is_file()
    is_ours = any(next((folder / stage).glob("step_*"), None) for stage in STAGES)
    return has_config and (is_ours or any((folder / f"model{suffix}").is_file() for suffix in MODELS))


def _guess_language(reading):
    """Sets the language of the clips without one to the only one that their letters allow, with a note."""
    unnamed = [utterance for utterance in reading.utterances if utterance.language == reading.language]
    default = reading.language or DEFAULT_LANGUAGE
    language, note = guess_language((utterance.text for utterance in unnamed), default)
    if note:
        reading.notes.append(f"{note} No language is named for {counted(len(unnamed), 'clip')}.")
    elif unnamed and not reading.language:
        identified = identify_language(one.text for one in unnamed)
        language = identified or default
        how = "They look like it" if identified else "None is named for them"
        taken = (
            f"{counted(len(unnamed), 'clip')} without a language are read as {get_language(language).name} ({language})"
        )
        reading.notes.append(f"{taken}. {how}; --language names another.")
    if language != reading.language:
        reading.utterances[:] = [
            replace(utterance, language=language) if utterance.language == reading.language else utterance
            for utterance in reading.utterances
        ]
    _doubt_languages(reading)


def _doubt_languages(reading):
    """Adds a note for each language whose clips look like those of another one."""
    texts: dict[str, list[str]] = {}
    for utterance in reading.utterances:
        texts.setdefault(utterance.language, []).append(utterance.text)
    for language, found in texts.items():
        identified = identify_language(found)
        if identified and language in LANGUAGES and identified != language:
            names = [f"{get_language(one).name} ({one})" for one in (language, identified)]
            reading.notes.append(
                f"The texts of {counted(len(found), 'clip')} look like {names[1]}, but their language is {names[0]}. "
                f"Correct the list, or give --language {identified}."
            )


def _names_below(folder):
    """Names of what is in a folder and two levels further down; those of folders end with a slash."""
    names = []
    for path, folders, files in os.walk(folder):
        names += [f"{name}/" for name in sorted(folders)] + sorted(files)
        if len(Path(path).relative_to(folder).parts) >= 2 or len(names) > 2_000:
            folders.clear()
    return names


def _nothing_fits(place, formats):
    """The message for a place that none of the formats reads: what is there, and what the format asked for is."""
    names, wanted = _names_below(place.path), next((form for form in formats if form.name == "ljspeech"), formats[0])
    if len(formats) > 1 and not any(name.lower().endswith(TEXTS) for name in names):
        _require_texts(place.path, names)
    seen = ", ".join(names[:8]) + (", …" if names[8:] else "") if names else "nothing"
    known = f"is not of the format {formats[0].name}" if len(formats) == 1 else "holds nothing that is known"
    found = f"{place.list_path or place.path} {known}. Seen: {printable(seen)}."
    return f"{found} {wanted.name} is a folder with {wanted.hint}. docs/data.md shows all formats."


def _require_texts(folder, names):
    """Raises `CorpusError` where there are recordings, which have subtitles or no texts."""
    if not any(name.lower().endswith(MEDIA_EXTENSIONS) for name in names):
        return
    has_subtitles = any(name.lower().endswith(SUBTITLES) for name in names)
    media = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in MEDIA_EXTENSIONS]
    hear = "" if has_subtitles else " --recognizer base"
    command = f"myxtts make-dataset {shlex.quote(printable(str(media[0].parent)))} --output DIR{hear}"
    has = f"recordings and {'subtitles' if has_subtitles else 'no texts'}"
    raise TextsMissing(f"{folder} holds {has}. `{command}` makes a data set of them; then give DIR.", folder, media)

"""Reading a folder of recordings and transcripts, or a single list, into utterances.

Each `CorpusFormat` in `FORMATS` of a module here reads one layout; a new layout is one new module. A data set is read
by the first format that recognizes it, in order of `priority`; `docs/data.md` has a table of them.

Data sets are untrusted: nothing in them is changed or run, nothing outside of them is opened unless the user allows it,
sizes are limited, and every line becomes an utterance or a rejection with its reason.
"""

import importlib
import os
import pkgutil
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.audio.files import MEDIA_EXTENSIONS
from myxtts.config.checks import counted, printable, require
from myxtts.config.stages import STAGES
from myxtts.data.corpora.base import Corpus, CorpusFormat, Finding, Place, Reading, Utterance
from myxtts.data.corpora.folder import ClipRefused, CorpusError, CorpusFolder, TextsMissing
from myxtts.text.language_guess import guess_language, identify_language
from myxtts.text.languages import DEFAULT_LANGUAGE, LANGUAGES, get_language

ARCHIVES = (".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".tgz")
SPREADSHEETS, MODELS = (".xlsx", ".xls", ".ods", ".numbers"), (".pth", ".safetensors")
TEXTS = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".ods", ".lab")
SUBTITLES = (".srt", ".vtt", ".ass", ".ssa")
_OTHER_FILES = {
    ARCHIVES: "is an archive. Unpack it, and give the folder",
    SPREADSHEETS: 'is a spreadsheet. Save it as CSV (Excel: "CSV UTF-8"), and give that file',
    MEDIA_EXTENSIONS: "is a recording. `myxtts make-dataset {0} --output DIR --recognizer base` makes a data set of "
    "it, and `myxtts train` does so by itself",
    MODELS: "is a model, not a data set. --init-from {0} continues training from it, `myxtts say --checkpoint {0}` "
    "speaks with it",
}

__all__ = ["Corpus", "CorpusError", "Finding", "TextsMissing", "Utterance", "files_beside", "load_corpus"]


def find_formats() -> list[CorpusFormat]:
    """Returns the formats of this package's modules, lowest priority number first."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    for name in (module.__name__ for module in modules if not hasattr(module, "FORMATS")):
        if not name.endswith((".base", ".folder", ".tables")):
            warnings.warn(f"{name} has no FORMATS, so it reads no data set.", stacklevel=2)
    return sorted((form for one in modules for form in getattr(one, "FORMATS", ())), key=lambda form: form.priority)


def load_corpus(
    root: str | Path,
    language: str | None = DEFAULT_LANGUAGE,
    format_name: str | None = None,
    audio_roots: Sequence[str | Path] = (),
) -> Corpus:
    """Lists the utterances of a data set in any known layout. Audio is located, not opened.

    Args:
        root: A folder, or a single list of clips.
        language: Language of clips whose data names none; None means English, with a note.
        format_name: Name of the only format to try; by default the content decides.
        audio_roots: Other folders in which lists may name audio.

    Raises:
        ConfigError: There is no format `format_name`, or an audio root does not exist.
        CorpusError: `root` does not exist or has no known layout, or a list is empty, too large, not UTF-8 (or UTF-16
            with a byte-order mark), or has speakers in the place of text.
    """
    formats = find_formats()
    chosen = [form for form in formats if not format_name or form.name == format_name]
    require(bool(chosen), "--format", f"one of {', '.join(form.name for form in formats)}", format_name)
    for folder in audio_roots:
        require(Path(folder).is_dir(), "--audio-root", "an existing folder", folder)
    root = Path(root)
    _refuse_other_kinds(root)
    # Each speaker folder may have a format of its own.
    inner = formats if chosen[0].name == "speaker-folders" else chosen
    reading = Reading(CorpusFolder(root if root.is_dir() else root.parent, audio_roots), language or "", inner)
    folder = reading.folder.root
    place = Place(folder, "", folder.name, None if root.is_dir() else folder / root.name)
    candidates = [form for form in chosen if form.takes_list or not place.list_path]
    try:
        layout = next((form.name for form in candidates if form.read(reading, place)), None)
    except ClipRefused as refused:
        raise CorpusError(f"The data set {root} cannot be read. {refused.detail}") from refused
    if not (reading.utterances or reading.rejections):
        raise _nothing_found(place, chosen)
    if linked := sorted(reading.folder.linked):
        where = ", ".join(printable(str(path)) for path in linked[:3]) + (", …" if linked[3:] else "")
        reading.notes.append(f"Links or paths of yours lead out of the data set; audio is read from {where}.")
    _guess_language(reading)
    return Corpus(folder, layout, tuple(reading.utterances), tuple(reading.rejections), tuple(reading.notes))


def files_beside(recording: Path, suffixes: Sequence[str]) -> list[Path]:
    """Returns the files with the name of a recording and another suffix, also `talk.en.srt`, in order of `suffixes`."""
    alike = lambda one: recording.stem in (one.stem, one.stem.rpartition(".")[0])
    found = [one for one in recording.parent.iterdir() if one.suffix in suffixes and alike(one) and one.is_file()]
    return sorted(found, key=lambda one: (suffixes.index(one.suffix), one.stem != recording.stem, one.name))


def _refuse_other_kinds(root):
    """Raises `CorpusError` if `root` is missing, an archive, a recording, a spreadsheet or a model."""
    if not root.exists():
        what = "does not exist. Give a folder, or a list, as docs/data.md shows"
    elif root.is_file():
        what = next((what for suffixes, what in _OTHER_FILES.items() if root.suffix.lower() in suffixes), None)
    elif _is_model(root):
        what = _OTHER_FILES[MODELS]
    elif (root / "speak.py").is_file() and any(root.glob("*.onnx")):
        what = "is an exported model, not a data set. `python {0}/speak.py --help` shows how to speak with it"
    else:
        return
    if what:
        name = printable(str(root))
        message = f"The data set {name} {what.format(shlex.quote(name))}."
        raise TextsMissing(message, root, [root]) if what is _OTHER_FILES[MEDIA_EXTENSIONS] else CorpusError(message)


def _is_model(folder):
    """Whether a folder holds a run, a preset or a model in Coqui's layout, and no list of clips."""
    has_config = (folder / "config.json").is_file() and not (folder / "metadata.csv").is_file()
    is_run = any(next((folder / stage).glob("step_*"), None) for stage in STAGES)
    return has_config and (is_run or any((folder / f"model{suffix}").is_file() for suffix in MODELS))


def _guess_language(reading):
    """Sets the language of clips without one, from their script or else their words; adds a note."""
    unnamed = [clip for clip in reading.utterances if clip.language == reading.language]
    default = reading.language or DEFAULT_LANGUAGE
    language, note = guess_language((clip.text for clip in unnamed), default)
    if note:
        reading.notes.append(f"{note} No language is named for {counted(len(unnamed), 'clip')}.")
    elif unnamed and not reading.language:
        identified = identify_language(clip.text for clip in unnamed)
        language = identified or default
        how = "They look like it" if identified else "None is named for them"
        name = f"{get_language(language).name} ({language})"
        reading.notes.append(
            f"{counted(len(unnamed), 'clip')} without a language are read as {name}. {how}; --language names another."
        )
    clips = reading.utterances
    clips[:] = [replace(clip, language=language) if clip.language == reading.language else clip for clip in clips]
    _doubt_languages(reading)


def _doubt_languages(reading):
    """Adds a note for each language whose clips look like those of another one."""
    texts: dict[str, list[str]] = {}
    for clip in reading.utterances:
        texts.setdefault(clip.language, []).append(clip.text)
    for language, found in texts.items():
        identified = identify_language(found)
        if identified and language in LANGUAGES and identified != language:
            label, better = (f"{get_language(one).name} ({one})" for one in (language, identified))
            reading.notes.append(
                f"The texts of {counted(len(found), 'clip')} look like {better}, but their language is {label}. "
                f"Correct the list, or give --language {identified}."
            )


def _nothing_found(place, formats):
    """Returns the error for a place that none of the formats reads: what it holds, and what to do."""
    names = []
    for path, folders, files in os.walk(place.path):
        names += [f"{name}/" for name in sorted(folders)] + sorted(files)
        if len(Path(path).relative_to(place.path).parts) >= 2 or len(names) > 2_000:
            folders.clear()
    has = lambda suffixes: any(name.lower().endswith(suffixes) for name in names)
    below = sorted(place.path.rglob("*")) if has(MEDIA_EXTENSIONS) and not has(TEXTS) else []
    media = [path for path in below if path.suffix.lower() in MEDIA_EXTENSIONS and path.is_file()]
    if len(formats) > 1 and media:
        what, recognize = ("subtitles", "") if has(SUBTITLES) else ("no texts", " --recognizer base")
        command = f"myxtts make-dataset {shlex.quote(printable(str(media[0].parent)))} --output DIR{recognize}"
        message = f"{place.path} has recordings and {what}. `{command}` makes a data set of them; then give DIR."
        return TextsMissing(message, place.path, media)
    wanted = next((form for form in formats if form.name == "ljspeech"), formats[0])
    known = "in no known format" if len(formats) > 1 else f"not in the format {wanted.name}"
    seen = (", ".join(names[:8]) + (", …" if names[8:] else "")) or "nothing"
    example = f"{wanted.name} is a folder with {wanted.hint}"
    place = place.list_path or place.path
    return CorpusError(f"{place} is {known}. Seen: {printable(seen)}. {example}; docs/data.md has all.")

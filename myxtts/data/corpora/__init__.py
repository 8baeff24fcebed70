"""Reads data sets: a folder of recordings and transcripts, or a single list of clips.

A `CorpusFormat` reads one layout. Each module of this package may list formats in `FORMATS`; to add a layout, add a
module. Formats are tried in order of `priority`, until one recognizes the data set. `docs/data.md` lists all formats.

Data sets are untrusted: their files are neither changed nor executed, files outside them are opened only if the user
allows it, and sizes are limited. Every line of a list becomes an utterance, or a rejection with a reason.
"""

import importlib
import itertools
import os
import pkgutil
import re
import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS, CONVERT, FFMPEG, MEDIA_EXTENSIONS
from myxtts.config.checks import counted, printable, read_toml, require
from myxtts.data.corpora.base import Corpus, CorpusFormat, Finding, Place, Reading, Utterance, to_code
from myxtts.data.corpora.folder import ClipRefused, CorpusError, CorpusFolder, TextsMissing, file_key
from myxtts.data.corpora.layouts import find_texts
from myxtts.storage.base_model import EXPORT, KINDS, MODEL, RELEASE, RUNS, SETTINGS, STAGE, TRAINER, kind_of
from myxtts.storage.speakers import composed
from myxtts.text.language_guess import guess_language, identify_language
from myxtts.text.languages import DEFAULT_LANGUAGE, LANGUAGES, get_language

TEXTS = (".txt", ".csv", ".tsv", ".list", ".json", ".jsonl", ".xlsx", ".ods", ".lab")
SUBTITLES = (".srt", ".vtt", ".ass", ".ssa")
_NOT_DATA = read_toml(__file__, "not_data.toml")
_SUFFIXES = {**_NOT_DATA["suffixes"], "recording": MEDIA_EXTENSIONS}
_TABLES = (*_SUFFIXES["sheet"], *_SUFFIXES["parquet"])
_ARCHIVES, _DOCUMENTS = tuple(_SUFFIXES["archive"]), tuple(_SUFFIXES["document"])

__all__ = ["Corpus", "CorpusError", "Finding", "TextsMissing", "Utterance", "files_beside", "load_corpus"]


def find_formats() -> list[CorpusFormat]:
    """Returns the `FORMATS` of all modules in this package, in order of `priority`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return sorted((form for one in modules for form in getattr(one, "FORMATS", ())), key=lambda form: form.priority)


def load_corpus(
    root: str | Path,
    language: str | None = DEFAULT_LANGUAGE,
    format_name: str | None = None,
    audio_roots: Sequence[str | Path] = (),
) -> Corpus:
    """Reads the list of utterances of a data set in any known layout. Audio files are located, but not opened.

    Args:
        root: A folder, or a single list of clips.
        language: Language of unlabeled clips. If None, it is detected from the texts (English if the detection fails).
        format_name: Name of the data set's format. By default, the first format that recognizes the data set is used.
        audio_roots: Folders outside the data set that may contain its audio files.

    Raises `ConfigError` if there is no format `format_name`, or if a folder in `audio_roots` does not exist. Raises
    `CorpusError` if `root` does not exist or has no known layout, if a list is empty, too large or not encoded in UTF-8
    (or UTF-16 with a byte-order mark), or if more than 10 % of the clips are in a wrong script.
    """
    formats = find_formats()
    chosen = [form for form in formats if form.name == format_name][-1:] if format_name else formats
    require(bool(chosen), "--format", f"one of {', '.join(dict.fromkeys(one.name for one in formats))}", format_name)
    for folder in audio_roots:
        require(Path(folder).is_dir(), "--audio-root", "an existing folder", folder)
    refuse_other_kinds(root)
    root = Path(root)
    inner = formats if chosen[0].name == "speaker-folders" else chosen  # speakers' folders may have other formats
    reading = Reading(CorpusFolder(root if root.is_dir() else root.parent, audio_roots), language or "", inner)
    folder = reading.folder.root
    place = Place(folder, "", folder.name, None if root.is_dir() else folder / file_key(root.name))
    try:
        layout = reading.read((form for form in chosen if form.takes_list or not place.list_path), place)
    except ClipRefused as refused:
        raise CorpusError(f"The data set {root} cannot be read. {refused.detail}") from refused
    if not (reading.utterances or reading.rejections):
        inner = reading.folder.subfolders(folder)
        if len(inner) == 1 and root.is_dir() and not reading.folder.files(folder):
            return load_corpus(inner[0], language, format_name, audio_roots)
        below = reading.folder.walk(folder, 3) if root.is_dir() else ()  # such as a recipe with `data/train/`
        kaldi = {str(one.parent) for one in below if reading.folder.has(one, "wav.scp", "text")} - {str(folder)}
        if len(kaldi) == 1:
            return load_corpus(kaldi.pop(), language, format_name, (*audio_roots, folder))  # for relative paths
        if kaldi:
            raise CorpusError(f"{root} has several data sets. Give one of: {', '.join(map(printable, sorted(kaldi)))}.")
        raise _nothing_found(place, chosen)
    if linked := sorted(reading.folder.linked):
        where = ", ".join(printable(str(path)) for path in linked[:3]) + (", …" if linked[3:] else "")
        reading.note(f"Your links or paths lead out of the data set; audio is also read from {where}")
    if root.is_dir():  # audio beside a single list may have its text in another list
        _note_unused_files(reading, layout)
    names = sorted({clip.speaker for clip in reading.utterances}, key=lambda name: (name.casefold(), name))
    for one, other in itertools.pairwise(names):
        if one.casefold() == other.casefold():
            reading.note("", f"{one} and {other}", " are read as two speakers. If they are one person, write one name.")
    _guess_language(reading)
    clips, refused = tuple(reading.utterances), tuple(reading.rejections)
    return Corpus(folder, layout, clips, refused, reading.notes, lists=tuple(reading.lists))


def files_beside(recordings: Collection[Path], suffixes: Sequence[str]) -> dict[Path, list[Path]]:
    """Returns the files with `suffixes` that belong to each recording, in the order of the suffixes. For `talk.wav`,
    these are `talk.srt` and `talk.en.srt`; if there is also a recording `talk.en.wav`, only `talk.srt`."""
    kind, stem, found = lambda one: one.suffix.lower(), lambda one: composed(one.stem), {}
    for folder in {one.parent for one in recordings}:
        paths = [folder / name for name in os.listdir(folder)]
        media = {stem(one) for one in paths if kind(one) in MEDIA_EXTENSIONS}
        for one in (path for path in paths if kind(path) in suffixes and path.is_file()):
            for own in {stem(one), stem(one) if stem(one) in media else stem(one).rpartition(".")[0]}:
                found.setdefault((folder, own), []).append((suffixes.index(kind(one)), stem(one) != own, one.name, one))
    return {one: [path for *_, path in sorted(found.get((one.parent, stem(one)), ()))] for one in recordings}


def texts_beside(recordings: Collection[Path], language: str) -> dict[Path, Path | None]:
    """Returns the subtitle or text file next to each recording, or None. Prefers subtitles to plain text, and then a
    file with the code of `language` in its name (`talk.en.srt`). Ignores files of other languages."""

    def choose(recording, found):
        codes = {path: to_code(composed(path.stem).removeprefix(composed(recording.stem)).strip(".")) for path in found}
        is_tag = lambda path: path.suffix.lower() in SUBTITLES and re.fullmatch("(?!cc)[a-z]{2}(-.*)?", codes[path])
        is_other = lambda path: codes[path] != language and (codes[path] in LANGUAGES or is_tag(path))
        fitting = [path for path in found if not is_other(path)]
        return max(fitting, key=lambda path: (path.suffix.lower() in SUBTITLES, codes[path] == language), default=None)

    return {one: choose(one, found) for one, found in files_beside(recordings, (*SUBTITLES, ".txt", ".lab")).items()}


def _other_kind(root):
    """Returns the kind of `root`, e.g. "model" or "recording", if it cannot be a data set. Otherwise, returns None."""
    if str(root).startswith("hf:"):
        return "hub"
    if not root.exists():
        return "missing"
    if root.is_file():
        return next((kind for kind, suffixes in _SUFFIXES.items() if root.suffix.lower() in suffixes), None)
    kind = kind_of(Path(os.path.realpath(root)))
    if (root / "metadata.csv").is_file() or kind in (SETTINGS, RUNS):
        return None
    if kind == EXPORT:
        return "export"
    if kind != STAGE and not (root / SETTINGS).is_file():
        return None
    return "model" if kind in (MODEL, RELEASE, TRAINER) else kind


def refuse_other_kinds(given: str | os.PathLike) -> None:
    """Raises `TextsMissing` for a recording, and `CorpusError` for anything else that is not a data set."""
    root, name = Path(given), printable(str(given))  # a `Path` of hf://owner/name would lose a slash
    if (kind := _other_kind(root)) is None:
        return
    at = Path(os.path.realpath(root))
    owned, _, revision = name.removeprefix("hf:").lstrip("/").removeprefix("datasets/").partition("@")
    hub = shlex.quote(owned) + (f" --revision {shlex.quote(revision)}" if revision else "")
    what = _NOT_DATA["what"].get(kind) or KINDS[kind]
    what = what.format(shlex.quote(name), at=at, parent=shlex.quote(printable(str(at.parent))), hub=hub)
    message = f"The data set {name} {what}."
    raise _texts_missing(message, root, [root]) if kind == "recording" else CorpusError(message)


def _texts_missing(message, root, recordings):
    """Returns a `TextsMissing`, or a `CorpusError` if all recordings need ffmpeg and ffmpeg is not installed."""
    if shutil.which("ffmpeg") or any(path.suffix.lower() in AUDIO_EXTENSIONS for path in recordings):
        return TextsMissing(message, root, recordings)
    return CorpusError(f"{printable(str(root))} cannot be decoded without ffmpeg. {FFMPEG}.")


def _note_unused_files(reading, layout):
    """Adds notes about audio files that are neither clips nor rejected, and texts that `text-files` would read."""
    root, known = reading.folder.root, {clip.wav_path for clip in reading.utterances}
    refused = {name for one in reading.rejections for name in (one.id.rpartition("/")[2], Path(one.path or "").name)}
    folders = (root, *reading.folder.walk(root, 3)) if layout != "vctk" else ()  # the unused second microphone of VCTK
    paths = (folder / name for folder in folders for name in reading.folder.files(folder).values())
    paths = (path for path in paths if path.suffix.lower() in AUDIO_EXTENSIONS and str(path) not in known)
    if unused := [reading.folder.relative(path) for path in paths if not {path.name, path.stem} & refused]:
        reading.note(f"Not used: {counted(len(unused), 'audio file')}, not among the clips. The first is {unused[0]}")
    audio, texts, suffix = find_texts(reading.folder, root) or (root, root, ".txt")
    pairs = reading.folder.stems(audio) & reading.folder.stems(texts, (suffix,))
    if layout != "text-files" and 2 * len(pairs) > len(reading.folder.stems(audio)):
        files = f"{counted(len(pairs), f'{suffix} file')} with the names of recordings"
        reading.note(f"Read as {layout}. Not used: {files}; --format text-files reads these instead")


def _guess_language(reading):
    """Detects the language of unlabeled clips, rejects clips in wrong scripts, and reports doubtful language labels."""
    unnamed = [clip for clip in reading.utterances if clip.language == reading.language]
    language, note = guess_language((clip.text for clip in unnamed), reading.language)
    if note:
        reading.note(f"{note} {counted(len(unnamed), 'clip')} had no language")
    elif unnamed and not reading.language:
        language = (identified := identify_language(clip.text for clip in unnamed)) or DEFAULT_LANGUAGE
        how = "identified by their words" if identified else "the default"
        name, clips = f"{get_language(language).name} ({language})", counted(len(unnamed), "clip")
        reading.note(f"{clips} without a language: read as {name}, {how}; --language sets another")
    clips = reading.utterances
    clips[:] = [replace(clip, language=language) if clip.language == reading.language else clip for clip in clips]
    by_language: dict[str, list[Utterance]] = {}
    for clip in clips:
        by_language.setdefault(clip.language, []).append(clip)
    for language, group in by_language.items():
        _refuse_letters(reading, language, group)
        identified = identify_language(clip.text for clip in group)
        if identified and language in LANGUAGES and identified != language:
            label, better = (f"{get_language(one).name} ({one})" for one in (language, identified))
            hint = f"Correct the list, or give --language {identified}"
            texts = f"The texts of {counted(len(group), 'clip')}"
            reading.note(f"{texts} look like {better}, but their language is {label}. {hint}")


def _refuse_letters(reading, language, group):
    """Rejects clips of `group` in a script that `language` does not use. If these are over 10 % of all clips, raises
    `CorpusError`. Does nothing if `language` allows Latin letters, or `group` fits `language` or one other language."""
    read_as, note = guess_language((clip.text for clip in group), language)
    may_be_latin = "LATIN" in get_language(language).scripts or get_language(language).romanize  # such as pinyin
    if not note or read_as != language or may_be_latin:
        return
    if language != reading.language:
        note += " The list names the language: correct it there."
    wrong = {clip.id: clip for clip in group if guess_language([clip.text], language)[1]}
    if len(wrong) > 0.1 * len(reading.utterances):
        raise CorpusError(f"{counted(len(wrong), 'clip')} cannot be read. {note}")
    reading.utterances[:] = [clip for clip in reading.utterances if clip.id not in wrong]
    for clip in wrong.values():
        with reading.clip(clip.id, clip.line, Path(clip.wav_path)):
            raise ClipRefused("wrong letters", note)


def _nothing_found(place, formats):
    """Returns the error for a data set that no format recognizes. The message lists some files and gives a hint."""
    names, tables, kinds = [], [], (*_TABLES, *_ARCHIVES)
    for path, folders, files in os.walk(place.path):
        folders[:], files = (sorted(name for name in side if name[0] != ".") for side in (folders, files))
        names += [f"{name}/" for name in folders] + files
        tables += [Path(path, name) for name in files if name.lower().endswith(kinds) and name[0] != "~"]
        if len(Path(path).relative_to(place.path).parts) >= 2 or len(names) > 2_000:
            folders.clear()
    has = lambda suffixes: any(name.lower().endswith(suffixes) for name in names)
    if has(MEDIA_EXTENSIONS):  # beside recordings, an archive may be anything
        tables = [path for path in tables if path.suffix.lower() in _TABLES]
    if tables and len(formats) > 1:
        refuse_other_kinds(tables[0])
    below = sorted(place.path.rglob("*")) if has(MEDIA_EXTENSIONS) and len(formats) > 1 else []
    is_shown = lambda path: not any(part[0] == "." for part in path.relative_to(place.path).parts)
    media = [path for path in below if path.suffix.lower() in MEDIA_EXTENSIONS and path.is_file() and is_shown(path)]
    unread = [f" {printable(one)} is not read: save it as .txt." for one in names if one.lower().endswith(_DOCUMENTS)]
    hint = "names no recordings in the folder: --audio-root DIR searches another one too"
    lists = [f" {printable(one)} {hint}." for one in names if one.lower().endswith((".csv", ".tsv"))]
    what, recognize = ("subtitles", "") if has(SUBTITLES) else ("no texts", " --recognizer base")
    at = shlex.quote(printable(str(media[0].parent if media else "")))
    command = f"`myxtts make-dataset {at} --output DIR{recognize}` makes a data set from them; then give DIR."
    if media and not has(TEXTS):
        message = f"{place.path} has recordings and {what}. {command}{''.join(unread[:1])}"
        return _texts_missing(message, place.path, media)
    wanted = next((form for form in formats if form.name == "ljspeech"), formats[0])
    known = "in no known format" if len(formats) > 1 else f"not in the format {wanted.name}"
    seen = (", ".join(names[:8]) + (", …" if names[8:] else "")) or "nothing"
    found = f"{place.list_path or place.path} is {known}. Found: {printable(seen)}.{''.join(unread[:1] + lists[:1])}"
    if has(MEDIA_EXTENSIONS) and not has(AUDIO_EXTENSIONS):
        found += f" {CONVERT}."
    elif media:
        found += f" The recordings need texts: a.txt beside a.wav, or one list of lines a.wav|text. {command}"
    return CorpusError(f"{found} {wanted.name} is a folder with {wanted.hint}; docs/data.md lists all.")

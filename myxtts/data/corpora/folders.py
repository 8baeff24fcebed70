"""Data sets whose folders say what belongs together: text files, Kaldi, VCTK, LibriTTS, M-AILABS, speaker folders."""

import re
from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name
from myxtts.data.corpora.tables import VALIDATION, cells_to_utterance, plain_table, read_parts, read_table

_NORMALIZED, _TRANSCRIPTS = ".normalized.txt", ".trans.txt"
_LIBRITTS_VALIDATION = {"dev-clean", "dev-other"}
_LIBRITTS_TEST = {"test-clean", "test-other"}
_LOCALE = re.compile("[a-z]{2}_[A-Z]{2}")


def read_text_files(reading: Reading, place: Place) -> bool:
    """Pairs audio and text if at least one audio file has its text; what lacks its other half is rejected."""
    if place.list_path:
        return False
    audio = reading.folder.audio_stems(place.path)
    texts = {name.removesuffix(".txt") for name in reading.folder.files(place.path) if name.endswith(".txt")}
    if audio.isdisjoint(texts):
        return False
    for stem in sorted(audio | texts):
        transcript = place.path / f"{stem}.txt"
        with reading.clip(place.prefix + stem, None, transcript):
            reading.add(read_pair(reading, place, place.path / stem, transcript, place.prefix + stem, place.speaker))
    return True


def read_pair(reading: Reading, place: Place, audio: Path, transcript: Path, clip_id: str, speaker: str) -> Utterance:
    """The utterance of an audio file, named with or without its extension, and a file that holds its words.

    Raises:
        ClipRefused: One of them is missing, the words cannot be read, or the speaker's name cannot be printed.
    """
    folder = reading.folder
    if not folder.has(transcript.parent, transcript.name):
        raise ClipRefused("no text", f"There is no {folder.relative(transcript)} for the audio.")
    if not is_name(speaker):
        raise ClipRefused("bad label", "Its speaker's folder has a name that cannot be printed.")
    wav_path = folder.find_audio((audio.parent,), folder.name_to_parts(audio.name))
    try:
        text = " ".join(folder.read_text(transcript, MAX_LINE_CHARACTERS).split())
    except CorpusError as error:
        raise ClipRefused("unreadable text", str(error)) from error
    return Utterance(clip_id, wav_path, checked_text(text), speaker, reading.language, None, place.validation)


def read_kaldi(reading: Reading, place: Place) -> bool:
    """Reads every line of `wav.scp`, with the words of `text` and the speaker of `utt2spk`. Commands are never run."""
    path = place.path / "wav.scp"
    if place.list_path and place.list_path.name != path.name or not reading.folder.has(place.path, path.name, "text"):
        return False
    if reading.folder.has(place.path, "segments"):
        rule = f"{place.path} has a file segments: its clips are parts of long recordings, which are not cut here"
        hint = "Cut them first (Kaldi: utils/data/extract_wav_segments_data_dir.sh) and give the folder it makes."
        raise CorpusError(f"{rule}. {hint}")
    texts = _kaldi_entries(reading, place.path / "text")
    speakers = _kaldi_entries(reading, place.path / "utt2spk") if reading.folder.has(place.path, "utt2spk") else {}
    lines = reading.folder.read_lines(path)
    if not lines:
        raise CorpusError(f"{path} is empty: no clips. Write one line 'utterance path' per clip.")
    reading.folder.allow_named([source.strip() for line in lines for source in line.split(None, 1)[1:]])
    for number, line in enumerate(lines, 1):
        key, source = [*line.split(None, 1), "", ""][:2]
        with reading.clip(key, number, path):
            speaker = speakers.get(key, place.speaker)
            reading.add(_kaldi_utterance(reading, place, key, source.strip(), texts, speaker, number))
    return True


def _kaldi_entries(reading, path):
    entries = (line.strip().split(None, 1) for line in reading.folder.read_lines(path))
    return {entry[0]: entry[1] if len(entry) == 2 else "" for entry in entries if entry}


def _kaldi_utterance(reading, place, key, source, texts, speaker, number):
    if not key or len(key) + len(source) > MAX_LINE_CHARACTERS or not is_name(key):
        raise ClipRefused("bad id", "The line is empty or too long, or its id holds control or direction characters.")
    if "|" in (source[-1:], source[:1]):
        detail = "wav.scp gives a command instead of a file; it was not run. Write its output to a file, and name that."
        raise ClipRefused("command", detail)
    if key not in texts:
        raise ClipRefused("no text", "The file text has no line for this utterance.")
    clip_id, text = place.prefix + key, checked_text(texts[key])
    reading.check_new(clip_id, text)
    if not is_name(speaker):
        raise ClipRefused("bad label", "Its speaker is too long or holds control or direction characters.")
    wav_path = reading.folder.find_audio((place.path,), reading.folder.name_to_parts(source))
    return Utterance(clip_id, wav_path, text, speaker, reading.language, number, place.validation)


def read_vctk(reading: Reading, place: Place) -> bool:
    """Reads `wav48/SPEAKER/` with `txt/SPEAKER/`; of two microphones (release 0.92), the first that is there."""
    folders = {path.name: path for path in reading.folder.subfolders(place.path)}
    names = ("wav48_silence_trimmed", "wav48", "wav16", "wav")
    audio = next((folders[name] for name in names if name in folders), None)
    speakers = reading.folder.subfolders(audio) if audio and "txt" in folders and not place.list_path else []
    for path in speakers:
        stems = reading.folder.audio_stems(path)
        for name in sorted(stems):
            if name.endswith("_mic2") and name.replace("_mic2", "_mic1") in stems:
                continue  # the same words
            with reading.clip(f"{place.prefix}{path.name}/{name}", None, path / name):
                clip = name.removesuffix("_mic1").removesuffix("_mic2")
                transcript, clip_id = folders["txt"] / path.name / f"{clip}.txt", f"{place.prefix}{path.name}/{clip}"
                reading.add(read_pair(reading, place, path / name, transcript, clip_id, path.name))
    return bool(speakers)


def read_libritts(reading: Reading, place: Place) -> bool:
    """Reads all `SPEAKER/CHAPTER/` with a `.normalized.txt` beside every audio file."""
    return _read_chapters(reading, place, _NORMALIZED, _read_normalized)


def read_librispeech(reading: Reading, place: Place) -> bool:
    """Reads all `SPEAKER/CHAPTER/` with a `.trans.txt`, each line of which is `clip text`."""
    return _read_chapters(reading, place, _TRANSCRIPTS, _read_transcripts)


def _read_chapters(reading, place, sign, read_chapter):
    """Reads the folders, perhaps below `train-…/`, that have files with names that end with `sign`.

    Those of `dev-…` are for validation when there are others, those of `test-…` are not used then.
    """
    if place.list_path:
        return False
    walked = {path: [*reading.folder.files(path)] for path in reading.folder.walk(place.path, 3)}
    chapters = {path: [name for name in files if name.endswith(sign)] for path, files in walked.items()}
    chapters = {path: names for path, names in chapters.items() if names}
    subsets = {path: set(path.relative_to(place.path).parts) for path in chapters}
    has_training = any(subsets[path].isdisjoint(_LIBRITTS_VALIDATION | _LIBRITTS_TEST) for path in chapters)
    for path, names in chapters.items():
        if not (has_training and subsets[path] & _LIBRITTS_TEST):
            held = place._replace(validation=has_training and bool(subsets[path] & _LIBRITTS_VALIDATION))
            read_chapter(reading, held, path, names)
    if has_training and any(subsets[path] & _LIBRITTS_TEST for path in chapters):
        reading.notes.append("The folders test-… were left for tests: they are not used.")
    return bool(chapters)


def _read_normalized(reading, place, path, names):
    texts = {name.removesuffix(_NORMALIZED) for name in names}
    for stem in sorted(reading.folder.audio_stems(path) | texts):
        transcript, clip_id = path / f"{stem}{_NORMALIZED}", f"{place.below(path).prefix}{stem}"
        with reading.clip(stem, None, transcript):
            reading.add(read_pair(reading, place, path / stem, transcript, clip_id, path.parent.name))


def _read_transcripts(reading, place, path, names):
    for name in names:
        for number, line in enumerate(reading.folder.read_lines(path / name), 1):
            clip, _, text = line.partition(" ")
            with reading.clip(clip, number, path / name):
                cells = {"id": clip, "text": text[:MAX_LINE_CHARACTERS], "speaker": path.parent.name}
                reading.add(cells_to_utterance(reading, place, cells, number, (path,)))


def read_mls(reading: Reading, place: Place) -> bool:
    """Reads `transcripts.txt`, with lines of `SPEAKER_BOOK_CLIP`, a tab and the text; audio lies in `audio/`."""
    path, audio = place.path / "transcripts.txt", place.path / "audio"
    is_mls = reading.folder.has(place.path, path.name) and audio in reading.folder.subfolders(place.path)
    for number, line in enumerate(reading.folder.read_lines(path), 1) if is_mls and not place.list_path else ():
        clip, _, text = line.partition("\t")
        speaker, book = [*clip.split("_"), "", ""][:2]
        with reading.clip(clip, number, path):
            cells = {"id": f"{speaker}/{book}/{clip}", "text": text[:MAX_LINE_CHARACTERS], "speaker": speaker}
            reading.add(cells_to_utterance(reading, place, cells, number, (audio,)))
    return is_mls and not place.list_path


def read_m_ailabs(reading: Reading, place: Place) -> bool:
    """Reads the books of `de_DE/by_book/female/SPEAKER/BOOK/` or alike, each a `metadata.csv` and `wavs/`.

    Unless the format is asked for or the path has the name `by_book`, they must lie two levels down or more.
    """
    folder = reading.folder
    is_book = lambda path: folder.has(path, "metadata.csv") and path / "wavs" in folder.subfolders(path)
    books = [] if place.list_path else [path for path in folder.walk(place.path, 5) if is_book(path)]
    is_named = len(reading.formats) == 1 or "by_book" in place.path.parts
    if not is_named and any(path.parent == place.path for path in books):
        return False
    for path in books:
        parts = path.parts[-6:]
        if parts[-2] == "mix":  # books with several readers
            reading.notes.append(f"The book {folder.relative(path)} was left out: its readers cannot be distinguished.")
        elif is_name(parts[-2]):
            locale = next((part for part in parts if _LOCALE.fullmatch(part)), "")
            table = plain_table(reading, path / "metadata.csv", (path / "wavs", path), locale)
            read_table(reading, place.below(path, speaker=parts[-2]), table)
    return bool(books and (reading.utterances or reading.rejections))


def read_speaker_folders(reading: Reading, place: Place) -> bool:
    """Reads each folder in the data set's own, if there are any, with notes of those that cannot be read."""
    is_root = place.path == reading.folder.root and not place.list_path
    folders = reading.folder.subfolders(place.path) if is_root else []
    parts = {path.name: path for path in folders if path.name in ("train", *VALIDATION)}
    if "train" in parts:
        read_part = lambda part: any(form.read(reading, part) for form in reading.formats)
        read_parts(reading, place, parts, "train", read_part)
        if reading.utterances or reading.rejections:
            return True
    for path in folders:
        inner, why = place.below(path, speaker=path.name), "it holds no format that is known, or its name is bad."
        try:
            if is_name(path.name) and any(form.read(reading, inner) for form in reading.formats):
                continue
        except ClipRefused as refused:
            why = refused.detail
        reading.notes.append(f"The folder {reading.folder.relative(path)} was left out: {why}")
    return bool(folders)


KALDI_HINT = "wav.scp and text (Kaldi, with utt2spk for speakers; files, not commands)"
KALDI = CorpusFormat("kaldi", 12, KALDI_HINT, read_kaldi)
VCTK = CorpusFormat("vctk", 14, "wav48/ and txt/ (VCTK)", read_vctk)
MLS = CorpusFormat("mls", 16, "transcripts.txt and audio/ (MLS)", read_mls)
TEXT_FILES = CorpusFormat("text-files", 30, "audio files next to .txt files of the same names", read_text_files)
LIBRITTS = CorpusFormat("libritts", 32, f"SPEAKER/CHAPTER/ with {_NORMALIZED} files (LibriTTS)", read_libritts)
LIBRISPEECH = CorpusFormat(
    "librispeech", 33, f"SPEAKER/CHAPTER/ with {_TRANSCRIPTS} files (LibriSpeech)", read_librispeech
)
M_AILABS = CorpusFormat("m-ailabs", 34, "SPEAKER/BOOK/ with a metadata.csv and wavs/ each (M-AILABS)", read_m_ailabs)
SPEAKER_FOLDERS = CorpusFormat("speaker-folders", 40, "one such folder per speaker", read_speaker_folders)

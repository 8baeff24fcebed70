"""Layouts with transcripts in files or folders: text files, Kaldi, VCTK, LibriTTS, MLS, M-AILABS, speaker folders."""

import re
from functools import partial
from pathlib import Path

from myxtts.data.corpora.base import CorpusFormat, Place, Reading, Utterance
from myxtts.data.corpora.folder import MAX_TRANSCRIPT_BYTES, ClipRefused, CorpusError, is_name
from myxtts.data.corpora.tables import cells_to_utterance, plain_table, read_parts, read_table

_NORMALIZED, _TRANSCRIPTS = ".normalized.txt", ".trans.txt"
_VALIDATION_SETS, _TEST_SETS = {"dev-clean", "dev-other"}, {"test-clean", "test-other"}
_LOCALE = re.compile("[a-z]{2}_[A-Z]{2}")


def read_text_files(reading: Reading, place: Place, suffix: str = ".txt") -> bool:
    """Pairs audio and text files of the same names; files without a partner are rejected."""
    audio = reading.folder.audio_stems(place.path)
    texts = {name.removesuffix(suffix) for name in reading.folder.files(place.path) if name.endswith(suffix)}
    if suffix == ".txt" and audio.isdisjoint(texts):  # notes of any kind
        return False
    for stem in sorted(audio | texts):
        transcript = place.path / f"{stem}{suffix}"
        with reading.clip(place.prefix + stem, None, transcript):
            reading.add(_pair_to_utterance(reading, place, place.path / stem, transcript, stem))
    return True


def _pair_to_utterance(reading: Reading, place: Place, audio: Path, transcript: Path, name: str) -> Utterance:
    """Makes the utterance of an audio file and a file with its transcript; raises `ClipRefused`."""
    folder = reading.folder
    if not folder.has(transcript.parent, transcript.name):
        raise ClipRefused("no text", f"There is no {folder.relative(transcript)} for the audio.")
    try:
        text = " ".join(folder.read_text(transcript, MAX_TRANSCRIPT_BYTES).split())
    except CorpusError as error:
        raise ClipRefused("unreadable text", str(error)) from error
    cells = {"id": audio.name, "text": text, "speaker": place.speaker}
    return cells_to_utterance(reading, place, cells, None, (audio.parent,), name=name)


def read_kaldi(reading: Reading, place: Place) -> bool:
    """Reads `wav.scp` with the transcripts of `text` and the speakers of `utt2spk`. Commands are never run."""
    path = place.path / "wav.scp"
    if place.list_path and place.list_path.name != path.name or not reading.folder.has(place.path, path.name, "text"):
        return False
    if reading.folder.has(place.path, "segments"):
        hint = "Cut them first (Kaldi: utils/data/extract_wav_segments_data_dir.sh), and give the folder that it makes."
        raise CorpusError(f"{place.path} has a file segments: its clips are parts of long recordings. {hint}")
    texts = _kaldi_entries(reading, place.path / "text")
    speakers = _kaldi_entries(reading, place.path / "utt2spk") if reading.folder.has(place.path, "utt2spk") else {}
    lines = reading.folder.read_lines(path)
    if not lines:
        raise CorpusError(f"{path} is empty: no clips. Write one line 'utterance path' per clip.")
    reading.folder.allow_named([source.strip() for line in lines for source in line.split(None, 1)[1:]])
    for number, line in enumerate(lines, 1):
        key, source = (cell.strip() for cell in [*line.split(None, 1), "", ""][:2])
        with reading.clip(key, number, path):
            if not key or not is_name(key):
                raise ClipRefused("bad id", "The id is missing, too long or cannot be printed.")
            if "|" in (source[-1:], source[:1]):
                detail = "wav.scp has a command instead of a file; it was not run. Write its output to a file."
                raise ClipRefused("command", detail)
            if key not in texts:
                raise ClipRefused("no text", "The file text has no line for this utterance.")
            cells = {"id": source, "text": texts[key], "speaker": speakers.get(key, place.speaker)}
            reading.add(cells_to_utterance(reading, place, cells, number, (place.path,), name=key))
    return True


def _kaldi_entries(reading, path):
    entries = (line.strip().split(None, 1) for line in reading.folder.read_lines(path))
    return {entry[0]: entry[1] if len(entry) == 2 else "" for entry in entries if entry}


def read_vctk(reading: Reading, place: Place) -> bool:
    """Reads `wav48/SPEAKER/` with `txt/SPEAKER/`; of two microphones (release 0.92), the first one available."""
    folders = {path.name: path for path in reading.folder.subfolders(place.path)}
    names = ("wav48_silence_trimmed", "wav48", "wav16", "wav")
    audio = next((folders[name] for name in names if name in folders), None)
    speakers = reading.folder.subfolders(audio) if audio and "txt" in folders else []
    for path in speakers:
        stems, part = reading.folder.audio_stems(path), place._replace(speaker=path.name)
        for stem in sorted(stems):
            if stem.endswith("_mic2") and stem.replace("_mic2", "_mic1") in stems:
                continue
            name = f"{path.name}/{stem.removesuffix('_mic1').removesuffix('_mic2')}"
            with reading.clip(f"{place.prefix}{path.name}/{stem}", None, path / stem):
                reading.add(_pair_to_utterance(reading, part, path / stem, folders["txt"] / f"{name}.txt", name))
    return bool(speakers)


def read_chapters(reading: Reading, place: Place, suffix: str) -> bool:
    """Reads `SPEAKER/CHAPTER/` folders with transcripts in files that end with `suffix`, perhaps below `train-…/`.

    If there are other clips, those of `dev-…` are for validation and those of `test-…` are not used.
    """
    has_texts = lambda path: any(name.endswith(suffix) for name in reading.folder.files(path))
    chapters = [path for path in reading.folder.walk(place.path, 3) if has_texts(path)]
    of_sets = lambda names: {path for path in chapters if names.intersection(path.relative_to(place.path).parts)}
    held, tests = of_sets(_VALIDATION_SETS), of_sets(_TEST_SETS)
    if held | tests >= {*chapters}:
        held, tests = set(), set()
    for path in chapters:
        if path in tests:
            continue
        part = place._replace(speaker=path.parent.name, validation=path in held)
        if suffix == _NORMALIZED:
            read_text_files(reading, part.below(path), suffix)
        else:
            _read_transcripts(reading, part, path)
    if tests:
        reading.notes.append("The folders test-… are not used.")
    return bool(chapters)


def _read_transcripts(reading, place, path):
    for name in filter(lambda name: name.endswith(_TRANSCRIPTS), reading.folder.files(path)):
        for number, line in enumerate(reading.folder.read_lines(path / name), 1):
            clip, _, text = line.partition(" ")
            with reading.clip(clip, number, path / name):
                cells = {"id": clip, "text": text, "speaker": place.speaker}
                reading.add(cells_to_utterance(reading, place, cells, number, (path,)))


def read_mls(reading: Reading, place: Place) -> bool:
    """Reads `transcripts.txt` with lines of `SPEAKER_BOOK_CLIP`, a tab and the text, and audio in `audio/`."""
    path, audio = place.path / "transcripts.txt", place.path / "audio"
    if not (reading.folder.has(place.path, path.name) and audio in reading.folder.subfolders(place.path)):
        return False
    for number, line in enumerate(reading.folder.read_lines(path), 1):
        clip, _, text = line.partition("\t")
        speaker, book = [*clip.split("_"), "", ""][:2]
        with reading.clip(clip, number, path):
            cells = {"id": f"{speaker}/{book}/{clip}", "text": text, "speaker": speaker}
            reading.add(cells_to_utterance(reading, place, cells, number, (audio,)))
    return True


def read_m_ailabs(reading: Reading, place: Place) -> bool:
    """Reads books such as `de_DE/by_book/female/SPEAKER/BOOK/`, each with a `metadata.csv` and `wavs/`.

    They must be at least two levels down, unless this format is asked for or the path contains `by_book`.
    """
    folder = reading.folder
    is_book = lambda path: folder.has(path, "metadata.csv") and path / "wavs" in folder.subfolders(path)
    books = [path for path in folder.walk(place.path, 5) if is_book(path)]
    is_named = len(reading.formats) == 1 or "by_book" in place.path.parts
    if not is_named and any(path.parent == place.path for path in books):
        return False
    for path in books:
        parts = path.parts[-6:]
        if parts[-2] == "mix":
            reading.notes.append(f"The book {folder.relative(path)} was skipped: it has several unnamed readers.")
        elif is_name(parts[-2]):
            locale = next((part for part in parts if _LOCALE.fullmatch(part)), "")
            book = place.below(path, speaker=parts[-2], language=locale)
            read_table(reading, book, plain_table(reading, book, path / "metadata.csv"))
    return bool(books and (reading.utterances or reading.rejections))


def read_speaker_folders(reading: Reading, place: Place) -> bool:
    """Reads each folder of the data set in its own format, with a note for those that cannot be read."""
    folders = reading.folder.subfolders(place.path) if place.path == reading.folder.root else []
    read = lambda part: any(form.read(reading, part) for form in reading.formats)
    parts = {path.name: path for path in folders}
    if "train" in parts:
        read_parts(reading, place, parts, "train", read)
        if reading.utterances or reading.rejections:
            return True
    for path in folders:
        try:
            if is_name(path.name) and read(place.below(path, speaker=path.name)):
                continue
            why = "it has no known format, or its name cannot be printed."
        except ClipRefused as refused:
            why = refused.detail
        reading.notes.append(f"The folder {reading.folder.relative(path)} was left out: {why}")
    return bool(folders)


KALDI = CorpusFormat("kaldi", 12, "wav.scp and text, perhaps utt2spk (Kaldi)", read_kaldi, takes_list=True)
VCTK = CorpusFormat("vctk", 14, "wav48/ and txt/ (VCTK)", read_vctk)
MLS = CorpusFormat("mls", 16, "transcripts.txt and audio/ (MLS)", read_mls)
TEXT_FILES = CorpusFormat("text-files", 30, "audio files next to .txt files of the same names", read_text_files)
_HINT = "SPEAKER/CHAPTER/ with {} files"
LIBRITTS = CorpusFormat("libritts", 32, _HINT.format(_NORMALIZED), partial(read_chapters, suffix=_NORMALIZED))
LIBRISPEECH = CorpusFormat("librispeech", 33, _HINT.format(_TRANSCRIPTS), partial(read_chapters, suffix=_TRANSCRIPTS))
M_AILABS = CorpusFormat("m-ailabs", 34, "SPEAKER/BOOK/ with a metadata.csv and wavs/ each (M-AILABS)", read_m_ailabs)
SPEAKER_FOLDERS = CorpusFormat("speaker-folders", 40, "one such folder per speaker", read_speaker_folders)

"""Audio files next to `.txt` files of the same names."""

import os
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora.base import CorpusFormat, Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, is_name


def read(reading: Reading, place: Place) -> bool:
    """Pairs the files if at least one audio file has its text; what lacks its other half is rejected."""
    if place.list_path:
        return False
    names = [os.path.splitext(name) for name in reading.folder.files(place.path)]
    audio = {stem for stem, extension in names if extension in AUDIO_EXTENSIONS}
    texts = {stem for stem, extension in names if extension == ".txt"}
    if audio.isdisjoint(texts):
        return False
    for stem in sorted(audio | texts):
        with reading.clip(place.prefix + stem, None, place.path / f"{stem}.txt"):
            clip = place.path / stem, place.path / f"{stem}.txt"
            reading.add(read_pair(reading, place, *clip, place.prefix + stem, place.speaker))
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
    text = _read_transcript(reading, transcript)
    return Utterance(clip_id, wav_path, text, speaker, reading.language, None, place.validation)


def _read_transcript(reading, path):
    """The words of a file that holds one clip's transcript. Raises `ClipRefused` where it holds none."""
    try:
        words = reading.folder.read_text(path, MAX_LINE_CHARACTERS).split()
    except CorpusError as error:
        raise ClipRefused("unreadable text", str(error)) from error
    return checked_text(" ".join(words))


FORMAT = CorpusFormat("text-files", 30, "audio files next to .txt files of the same names", read, ("*.wav", "*.txt"))

"""Audio files next to `.txt` files of the same names."""

import os
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora.base import CorpusFormat, Place, Reading, Utterance, checked_text
from myxtts.data.corpora.folder import MAX_LINE_CHARACTERS, ClipRefused, CorpusError, printable


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
            reading.add(_pair_to_utterance(reading, place, stem))
    return True


def _pair_to_utterance(reading, place, stem):
    folder, files = reading.folder, reading.folder.files(place.path)
    if f"{stem}.txt" not in files:
        raise ClipRefused("no text", f"There is no {printable(stem)}.txt next to the audio.")
    wav_path = folder.find_audio((place.path,), folder.name_to_parts(stem))
    text = read_transcript(reading, place.path / files[f"{stem}.txt"])
    return Utterance(place.prefix + stem, wav_path, text, place.speaker, reading.language, None, place.validation)


def read_transcript(reading: Reading, path: Path) -> str:
    """The words of a file that holds one clip's transcript. Raises `ClipRefused` where it holds none."""
    try:
        words = reading.folder.read_text(path, MAX_LINE_CHARACTERS).split()
    except CorpusError as error:
        raise ClipRefused("unreadable text", str(error)) from error
    return checked_text(" ".join(words))


FORMAT = CorpusFormat("text-files", 30, "audio files next to .txt files of the same names", read, ("*.wav", "*.txt"))

"""VCTK: audio in `wav48/SPEAKER/`, transcripts in `txt/SPEAKER/`."""

import os

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.text_files import read_pair

AUDIO_FOLDERS = ("wav48_silence_trimmed", "wav48", "wav16", "wav")
FIRST_MICROPHONE, SECOND_MICROPHONE = "_mic1", "_mic2"


def read(reading: Reading, place: Place) -> bool:
    """Reads the clips of every speaker; of two microphones (release 0.92), the first that is there."""
    folders = {path.name: path for path in reading.folder.subfolders(place.path)}
    audio = next((folders[name] for name in AUDIO_FOLDERS if name in folders), None)
    speakers = reading.folder.subfolders(audio) if audio and "txt" in folders and not place.list_path else []
    for path in speakers:
        for name in _clips(reading, path):
            with reading.clip(f"{place.prefix}{path.name}/{name}", None, path / name):
                clip = name.removesuffix(FIRST_MICROPHONE).removesuffix(SECOND_MICROPHONE)
                transcript, clip_id = folders["txt"] / path.name / f"{clip}.txt", f"{place.prefix}{path.name}/{clip}"
                reading.add(read_pair(reading, place, path / name, transcript, clip_id, path.name))
    return bool(speakers)


def _clips(reading, path):
    stems = [os.path.splitext(name) for name in reading.folder.files(path)]
    stems = {stem for stem, extension in stems if extension in AUDIO_EXTENSIONS}
    # Both microphones recorded the same words.
    second = {stem for stem in stems if stem.endswith(SECOND_MICROPHONE)}
    return sorted(stems - {s for s in second if s.replace(SECOND_MICROPHONE, FIRST_MICROPHONE) in stems})


FORMAT = CorpusFormat("vctk", 14, "wav48/ and txt/ (VCTK)", read, ("txt/", "wav48*/"))

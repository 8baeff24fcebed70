"""Voices that come with a model, by name: latents and speaker vector of each, or recorded speech to take them from."""

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from myxtts.config.checks import UNPRINTABLE, read_bounded
from myxtts.storage.files import (
    MAX_JSON_BYTES,
    AnyPath,
    CheckpointError,
    digest_bytes,
    read_json,
    write_json,
    write_whole,
)
from myxtts.storage.tensor_file import read_tensors, tensor_names, write_tensors

SPEAKERS_FILE = "speakers.safetensors"
_LATENTS, _VECTOR = "/latents", "/speaker"
SPEAKER_CLIPS = "speaker_clips"
"""Folder of a run with a short recording of each of its speakers."""
_INDEX = "index.json"
_MAX_CLIP_BYTES = 8 * 2**20
_CLIP_NAME = re.compile("[0-9a-f]{32}\\.flac")
_VOCABULARY = "vocab.json"
_LANGUAGE_FIRST = re.compile("([a-z]{2})_")
"""How a voice is called that says what it speaks: those of the bundled model, and of runs that started from it."""

NEAR = 0.5
"""Similarity of two names, by `difflib`, from which one may be meant by the other."""
FEW_NAMES = 5
"""Speakers that a message names."""


@dataclass(frozen=True)
class StoredSpeaker:
    """A voice that comes with a model. Without a `clip` its latents are in `SPEAKERS_FILE`: see `read_speaker`."""

    clip: Path | None = None
    """FLAC file with some seconds of the speaker, for those that a run was trained on."""
    language: str | None = None
    """What is spoken in it, or what its name says, such as `fr_f2`, where the model has that language."""
    sources: tuple[str, ...] = ()
    """The training clips that it was made from: id and the beginning of the digest of the file."""


def write_speakers(folder: AnyPath, speakers: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Writes a model's voices by name: latents `(1, num_latents, width)`, vector `(1, speaker_width)`, float32."""
    arrays = {}
    for name, (latents, vector) in speakers.items():
        arrays |= {name + _LATENTS: latents, name + _VECTOR: vector}
    shapes = {name: array.shape for name, array in arrays.items()}
    write_tensors(Path(folder) / SPEAKERS_FILE, shapes, arrays.values())


def speaker_names(folder: AnyPath) -> list[str]:
    """Names of the voices whose latents come with the model in `folder`, sorted; empty where there are none."""
    path = Path(folder) / SPEAKERS_FILE
    if not path.is_file():
        return []
    return sorted(name.removesuffix(_LATENTS) for name in tensor_names(path) if name.endswith(_LATENTS))


def read_speakers(folder: AnyPath) -> dict[str, StoredSpeaker]:
    """All voices that come with the model in `folder`, by name and sorted: those it was trained on, and converted ones.

    Raises:
        CheckpointError: What holds them is damaged.
    """
    found = _by_their_names(folder, speaker_names(folder)) | _read_index(Path(folder) / SPEAKER_CLIPS)
    return dict(sorted(found.items()))


def find_speaker(folder: AnyPath, name: str) -> StoredSpeaker:
    """One of the voices of `read_speakers`.

    Raises:
        CheckpointError: There is no such voice; the message names similar ones.
    """
    speakers = read_speakers(folder)
    if not speakers:
        rule = (
            f"--speaker needs a model that comes with voices. {folder} has no {SPEAKERS_FILE} and no {SPEAKER_CLIPS}."
        )
        way_out = "Convert the model with --speakers speakers_xtts.pth, or give --reference-audio."
        raise CheckpointError(f"{rule} {way_out}")
    if name not in speakers:
        known = {one.casefold(): one for one in speakers}
        near = [known[one] for one in difflib.get_close_matches(name.casefold(), known, n=3, cutoff=NEAR)]
        hint = f"Near it: {', '.join(near):.300}." if near else some_names([*speakers])
        rule = f"--speaker must be one of the model's {len(speakers)} voices."
        raise CheckpointError(f"{rule} Received: {name}. {hint}")
    return speakers[name]


def some_names(names: Sequence[str]) -> str:
    """A sentence with the first few names of speakers, and how all are had where there are more."""
    told, rest = f"Speakers: {', '.join(names[:FEW_NAMES]):.300}", len(names) > FEW_NAMES
    return f"{told}, … (--list-speakers shows all)." if rest else f"{told}."


def read_speaker(folder: AnyPath, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Latents and speaker vector of one of the voices in `SPEAKERS_FILE`, as `write_speakers` takes them.

    Raises:
        CheckpointError: There is no such voice; the message names similar ones.
    """
    if name not in speaker_names(folder):
        find_speaker(folder, name)
        raise CheckpointError(f"The voice {name} in {folder} is a recording; it has no latents in {SPEAKERS_FILE}.")
    latents, vector = read_tensors(Path(folder) / SPEAKERS_FILE, (name + _LATENTS, name + _VECTOR))
    return latents, vector


def write_speaker_clips(folder: AnyPath, clips: Mapping[str, tuple[bytes, str, tuple[str, ...]]]) -> None:
    """Adds recordings of speakers to the folder of a run: by name, a FLAC file's content, language and sources.

    Earlier ones of other names stay; the model was trained on those as well.
    """
    home = Path(folder) / SPEAKER_CLIPS
    speakers = _read_index(home)
    home.mkdir(exist_ok=True)
    for name, (content, language, sources) in clips.items():
        path = home / f"{digest_bytes(content)}.flac"
        if not path.is_file():
            with write_whole(path) as temporary:
                temporary.write_bytes(content)
        speakers[name] = StoredSpeaker(path, language, tuple(sources))
    entries = {name: asdict(speaker) | {"clip": speaker.clip.name} for name, speaker in sorted(speakers.items())}
    write_json(home / _INDEX, entries)
    for stale in set(home.glob("*.flac")) - {speaker.clip for speaker in speakers.values()}:
        if _CLIP_NAME.fullmatch(stale.name):
            stale.unlink()


def copy_speaker_clips(source: AnyPath, folder: AnyPath) -> None:
    """Adds the recordings of another run's speakers to the folder of a run that starts from it, where there are any."""
    found = _read_index(Path(source) / SPEAKER_CLIPS)
    plain = {name: one for name, one in found.items() if one.clip.is_file() and not one.clip.is_symlink()}
    small = {name: one for name, one in plain.items() if one.clip.stat().st_size <= _MAX_CLIP_BYTES}
    if small:
        write_speaker_clips(folder, {n: (one.clip.read_bytes(), one.language, one.sources) for n, one in small.items()})


def _by_their_names(folder, names):
    """Voices without clips; what they speak is known where a name begins with a language of the vocabulary."""
    begins = {name: match[1] for name in names if (match := _LANGUAGE_FIRST.match(name))}
    tags = ""
    if begins:
        with suppress(ValueError, OSError):  # whoever needs a vocabulary says what is wrong with it
            tags = read_bounded(Path(folder) / _VOCABULARY, MAX_JSON_BYTES)
    known = {name: language for name, language in begins.items() if f'"[{language}]"' in tags}
    return {name: StoredSpeaker(language=known.get(name)) for name in names}


def _read_index(home: Path) -> dict[str, StoredSpeaker]:
    if not (home / _INDEX).is_file():
        return {}
    entries, speakers = read_json(home / _INDEX), {}
    for name, entry in entries.items() if isinstance(entries, dict) else [("", None)]:
        clip, language, sources = map((entry if isinstance(entry, dict) else {}).get, ("clip", "language", "sources"))
        sound = isinstance(clip, str) and _CLIP_NAME.fullmatch(clip) and isinstance(language, str)
        if not sound or not isinstance(sources, list) or UNPRINTABLE.search(name + language):
            raise CheckpointError(f"{home / _INDEX} is damaged: {name[:80]!r} has no sound entry. Remove the folder.")
        speakers[name] = StoredSpeaker(home / clip, language, tuple(map(str, sources)))
    return speakers

"""Stored voices of a model. A voice is a recording, or it consists of conditioning latents and a speaker vector."""

import difflib
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from myxtts.config.checks import UNPRINTABLE, read_bounded
from myxtts.storage import files
from myxtts.storage.base_model import is_base
from myxtts.storage.checkpoint import StoredTensors, write_tensors
from myxtts.storage.files import AnyPath, CheckpointError

SPEAKERS_FILE = "speakers.safetensors"
_LATENTS, _VECTOR = "/latents", "/speaker"
SPEAKER_CLIPS = "speaker_clips"
"""Name of the folder in a run that contains short recordings of training speakers, one per speaker."""
_INDEX = "index.json"
_CLIP_NAME = re.compile("[0-9a-f]{32}\\.flac")
FEW_NAMES = 5
"""Maximum number of speakers that an error message lists."""
composed = partial(unicodedata.normalize, "NFC")
"""Normalizes a name to NFC, because file names on macOS have decomposed letters (`é` as `e` and an accent)."""


@dataclass(frozen=True)
class StoredSpeaker:
    """Stored voice of a model. It is either the recording `clip` or, if `clip` is None, latents in `SPEAKERS_FILE`."""

    clip: Path | None = None
    """FLAC file with some seconds of a training speaker; None for a voice that is stored as latents."""
    language: str | None = None
    """Language of `clip`. Without a clip, the prefix of the name (`fr` of `fr_f2`) if it is a language of the model."""
    sources: tuple[str, ...] = ()
    """Training clips that `clip` was made of. An entry is a clip's id and the first digits of the file's digest."""
    stored_name: str | None = None
    """Name of the voice as written in `SPEAKERS_FILE`, where letters may be decomposed; None for a recording."""


def write_speakers(folder: AnyPath, speakers: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Writes the latents `(1, num_latents, width)` and vector `(1, speaker_width)` of each voice to `SPEAKERS_FILE`."""
    arrays = {name + end: one for name, both in speakers.items() for end, one in zip((_LATENTS, _VECTOR), both)}
    write_tensors(Path(folder) / SPEAKERS_FILE, arrays)


def read_speakers(folder: AnyPath) -> dict[str, StoredSpeaker]:
    """Returns the stored voices of a model by name, in alphabetical order. Damaged files raise `CheckpointError`."""
    path, found, vocabulary = Path(folder) / SPEAKERS_FILE, {}, ""
    arrays = StoredTensors(path) if path.is_file() else ()
    names = sorted(name.removesuffix(_LATENTS) for name in arrays if name.endswith(_LATENTS))
    if names:
        with suppress(ValueError, OSError):  # loading the tokenizer reports them
            vocabulary = read_bounded(Path(folder) / "vocab.json", files.MAX_JSON_BYTES)
    for name in names:
        prefix = re.match("([a-z]{2})_", name)
        is_language = prefix and f'"[{prefix[1]}]"' in vocabulary
        found[composed(name)] = StoredSpeaker(language=prefix[1] if is_language else None, stored_name=name)
    return dict(sorted((found | read_clips(Path(folder) / SPEAKER_CLIPS)).items()))


def find_speaker(folder: AnyPath, name: str) -> StoredSpeaker:
    """Returns the stored voice `name`. If there is none, raises a `CheckpointError` that lists similar names."""
    name = composed(name)
    if not (speakers := read_speakers(folder)):
        raise CheckpointError(f"--speaker needs a model that comes with voices, not {folder}. Use --reference-audio.")
    if name not in speakers:
        known = {one.casefold(): one for one in speakers}
        near = [known[one] for one in difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.5)]
        more = ", … (--list-speakers shows all)" if not near and len(speakers) > FEW_NAMES else ""
        hint = f"{'Similar' if near else 'Speakers'}: {', '.join(near or [*speakers][:FEW_NAMES]):.300}{more}."
        hint += " A recording is for --reference-audio." * bool(Path(name).suffix)
        raise CheckpointError(f"--speaker must be one of the model's {len(speakers)} voices. Received: {name}. {hint}")
    return speakers[name]


def language_of(folder: AnyPath, name: str | None = None) -> str | None:
    """Returns the language of the voice `name`. If this language is unknown, or if `name` is None, returns the language
    that all training speakers share. If they share none, returns None."""
    if name and (own := find_speaker(folder, name).language):
        return own
    languages = {one.language for one in read_speakers(folder).values() if one.clip}
    return languages.pop() if len(languages) == 1 else None


def default_speaker(folder: AnyPath, language: str) -> str | None:
    """Returns the name of the training speaker if there is exactly one. Otherwise, for the bundled model, returns the
    name of a voice, preferably in `language`; for other models, returns None."""
    speakers = read_speakers(folder)
    names = [name for name, one in speakers.items() if one.clip]
    if len(names) != 1:
        names = [*speakers] if is_base(folder) else []
    return next((name for name in names if name.startswith(f"{language}_")), next(iter(names), None))


def read_speaker(folder: AnyPath, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a voice's latents and speaker vector. Raises `CheckpointError` if the voice is stored as a recording."""
    if (known := find_speaker(folder, name).stored_name) is None:
        raise CheckpointError(f"The voice {name} in {folder} is a recording; it has no latents in {SPEAKERS_FILE}.")
    stored = StoredTensors(Path(folder) / SPEAKERS_FILE)
    if known + _VECTOR not in stored.shapes:
        raise CheckpointError(f"{stored.path} is damaged: it has no {known}{_VECTOR}.")
    return stored[known + _LATENTS], stored[known + _VECTOR]


def write_speaker_clips(folder: AnyPath, clips: Mapping[str, tuple[bytes, str, tuple[str, ...]]]) -> None:
    """Stores voices in a run's folder. `clips` is `{speaker: (FLAC file content, language, StoredSpeaker.sources)}`.
    A stored voice of the same sources is deleted, because its speaker was renamed."""
    home = Path(folder) / SPEAKER_CLIPS
    renewed = {tuple(sources) for _, _, sources in clips.values()} - {()}
    speakers = {name: one for name, one in read_clips(home).items() if one.sources not in renewed}
    home.mkdir(exist_ok=True)
    for name, (content, language, sources) in clips.items():
        path = home / f"{files.digest_bytes(content)}.flac"
        if not path.is_file():
            with files.write_whole(path) as temporary:
                temporary.write_bytes(content)
        speakers[name] = StoredSpeaker(path, language, tuple(sources))
    listed = lambda one: {"clip": one.clip.name, "language": one.language, "sources": one.sources}
    files.write_json(home / _INDEX, {name: listed(one) for name, one in sorted(speakers.items())})
    for stale in set(home.glob("*.flac")) - {speaker.clip for speaker in speakers.values()}:
        if _CLIP_NAME.fullmatch(stale.name):
            stale.unlink()


def read_clips(home: Path) -> dict[str, StoredSpeaker]:
    """Returns `{speaker: voice}` from the index in the folder `home`; does not check whether the recordings exist."""
    if not (home / _INDEX).is_file():
        return {}
    entries, speakers = files.read_json(home / _INDEX), {}
    if not isinstance(entries, dict):
        entries = {"": entries}  # an entry that is not valid
    for name, entry in entries.items():
        entry = entry if isinstance(entry, dict) else {}
        clip, language, sources = entry.get("clip"), entry.get("language"), entry.get("sources")
        are_read = isinstance(clip, str) and isinstance(language, str) and isinstance(sources, list)
        if not are_read or not _CLIP_NAME.fullmatch(clip) or UNPRINTABLE.search(name + language):
            raise CheckpointError(f"{home / _INDEX} is damaged: {name[:80]!r} has no valid entry. Remove the folder.")
        speakers[composed(name)] = StoredSpeaker(home / clip, language, tuple(map(str, sources)))
    return speakers

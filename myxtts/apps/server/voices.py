"""The voices of a server, by name: speakers that the model was trained on, and the files of a folder."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from myxtts.apps.server.errors import ApiError
from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import UserError
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import VOICE_SUFFIX, Voice, stored_voice
from myxtts.storage.speakers import read_speakers

VOICE_NAME = re.compile(r"[^\W_][\w .-]{0,63}(?<![ .])")
"""A letter or digit first; so no path, and no hidden file."""
FILE_SUFFIXES = (VOICE_SUFFIX, *AUDIO_EXTENSIONS)
MOST_FILES = 1_000
"""Voices of a folder that are offered."""
KEPT_VOICES = 64
"""Voices that are not made anew."""
MOST_UPLOAD_BYTES = 20 * 2**20


@dataclass(frozen=True)
class ServedVoice:
    """A voice that a client may ask for."""

    name: str
    path: Path | None
    """Recording or `.voice` file; None for a speaker of the model."""
    language: str | None = None
    """What is spoken where a request does not say it."""
    created: int = 0
    """Unix time in seconds."""


class VoiceBook:
    """Finds voices by name; a name is never made part of a path.

    Args:
        run: Folder of the model, for the speakers that it was trained on.
        folder: With a file per voice, which may come and go; None for none.
    """

    def __init__(self, synthesizer: Synthesizer, run: Path, folder: Path | None):
        if folder is not None and not folder.is_dir():
            raise UserError(f"--voices must be a folder that is there. {folder} is not one.")
        self.synthesizer, self.run, self.folder = synthesizer, run, folder
        self._speakers = {name: ServedVoice(name, None, one.language) for name, one in read_speakers(run).items()}
        self._kept: dict[tuple, Voice] = {}

    def all(self) -> dict[str, ServedVoice]:
        """Every voice there is now, by name; a file goes before a speaker of the same name."""
        found = {}
        for path in sorted(self.folder.iterdir()) if self.folder else ():
            plain = path.suffix in FILE_SUFFIXES and path.is_file() and not path.is_symlink()
            if plain and VOICE_NAME.fullmatch(path.stem) and len(found) < MOST_FILES:
                known = found.get(path.stem)
                if known is None or path.suffix == VOICE_SUFFIX:
                    found[path.stem] = ServedVoice(path.stem, path, created=int(path.stat().st_mtime))
        return self._speakers | found

    def find(self, name: str) -> tuple[ServedVoice, Callable[[], Voice]]:
        """A voice, and what makes it.

        Raises:
            ApiError: There is none of that name.
        """
        voices = self.all()
        if name not in voices:
            some = ", ".join(list(voices)[:20]) or "none: start the server with --voices FOLDER"
            raise ApiError(400, f"voice must be one of the server's voices: {some}.", "voice", "voice_not_found")
        return voices[name], lambda: self._open(voices[name])

    def add(self, name: str, content: bytes) -> ServedVoice:
        """Keeps the voice of a recording, not the recording.

        Raises:
            ApiError: There is a voice of that name (409), or the name is none (400).
            AudioError: The recording cannot be used.
        """
        if self.folder is None or not VOICE_NAME.fullmatch(name):
            rule = "A voice's name has letters, digits, spaces, _, - and . and begins with a letter or digit"
            raise ApiError(400, f"{rule}; at most 64 characters.", "name")
        if name in self.all():
            raise ApiError(409, f"There is a voice {name} already. Choose another name.", "name", "voice_exists")
        with tempfile.TemporaryDirectory() as place:
            recording = Path(place) / "recording"
            recording.write_bytes(content)
            try:
                voice = self.synthesizer.as_voice(recording)
            except UserError as error:
                raise ApiError(400, str(error).replace(str(recording), "The recording"), "recording") from error
        voice.save(self.folder / f"{name}{VOICE_SUFFIX}")
        return self.all()[name]

    def _open(self, served):
        if served.path is None:
            key = served.name, 0, 0
        else:
            try:
                status = served.path.stat()
            except OSError as error:
                raise ApiError(400, f"The voice {served.name} is no longer there.", "voice") from error
            key = served.name, status.st_mtime_ns, status.st_size
        if key not in self._kept:
            voice = self._read(served)
            while len(self._kept) >= KEPT_VOICES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = voice
        return self._kept[key]

    def _read(self, served):
        if served.path is None:
            return stored_voice(self.run, served.name, self.synthesizer.as_voice)
        try:
            return self.synthesizer.as_voice(served.path)
        except UserError as error:
            sentence = str(error).replace(str(served.path), f"The file of the voice {served.name}")
            raise ApiError(400, sentence, "voice", "voice_unusable") from error

"""The voices of a server, by name: speakers that the model was trained on, and the files of a folder."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from myxtts.apps.server.errors import ApiError
from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import UserError
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import VOICE_SUFFIX, Voice, stored_voice
from myxtts.storage.speakers import read_speakers

VOICE_NAME = re.compile(r"[^\W_][\w .-]{0,63}(?<![ .])")
"""A letter or digit first; so no path, and no hidden file."""
KEPT_VOICES = 64
"""Voices kept in memory."""


@dataclass(frozen=True)
class ServedVoice:
    """A voice that a client may ask for."""

    name: str
    path: Path | None = None
    """Recording or `.voice` file; None for a speaker of the model."""
    language: str | None = None
    """Language of requests that name none."""
    version: tuple[int, int] = (0, 0)
    """Time of the last change in ns and size of the file."""


class VoiceBook:
    """Finds voices by name; a name is never made part of a path.

    Args:
        run: Folder of the model, for the speakers that it was trained on.
        folder: With a file per voice, which may come and go; None for none.
    """

    def __init__(self, synthesizer: Synthesizer, run: Path, folder: Path | None):
        if folder is not None and not folder.is_dir():
            raise UserError(f"--voices must be an existing folder. Received: {folder}.")
        self.synthesizer, self.run, self.folder = synthesizer, run, folder
        self._speakers = {name: ServedVoice(name, language=one.language) for name, one in read_speakers(run).items()}
        self._opened = lru_cache(KEPT_VOICES)(self._open)

    def all(self) -> dict[str, ServedVoice]:
        """All present voices by name: of those with one name a `.voice` file, else a recording, else a speaker."""
        found = {}
        for path in sorted(self.folder.iterdir()) if self.folder else ():
            is_voice = path.suffix in (VOICE_SUFFIX, *AUDIO_EXTENSIONS) and VOICE_NAME.fullmatch(path.stem)
            if not is_voice or path.is_symlink() or not path.is_file():
                continue
            if path.stem not in found or path.suffix == VOICE_SUFFIX:
                status = path.stat()
                found[path.stem] = ServedVoice(path.stem, path, version=(status.st_mtime_ns, status.st_size))
        return self._speakers | found

    def find(self, name: str) -> tuple[ServedVoice, Callable[[], Voice]]:
        """A voice, and a function that opens it.

        Raises:
            ApiError: There is none of that name.
        """
        voices = self.all()
        if name not in voices:
            some = ", ".join(list(voices)[:20]) or "none: start the server with --voices FOLDER"
            raise ApiError(400, f"voice must be one of the server's voices: {some}.", "voice", "voice_not_found")
        return voices[name], lambda: self._opened(voices[name])

    def add(self, name: str, content: bytes) -> ServedVoice:
        """Keeps the voice of a recording, not the recording.

        Raises:
            ApiError: There is a voice of that name (409), or the name or the recording cannot be used (400).
        """
        if not VOICE_NAME.fullmatch(name):
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
            return stored_voice(self.run, served.name, self.synthesizer.as_voice)
        try:
            return self.synthesizer.as_voice(served.path)
        except UserError as error:
            sentence = str(error).replace(str(served.path), f"The file of the voice {served.name}")
            raise ApiError(400, sentence, "voice", "voice_unusable") from error

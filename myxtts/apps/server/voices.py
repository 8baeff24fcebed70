"""Looks up a server's voices by name. A voice is either stored with the model or a file in the voice folder."""

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from myxtts.apps.server.gate import ApiError, Model, log
from myxtts.audio.files import AUDIO_EXTENSIONS, MEDIA_EXTENSIONS
from myxtts.config.checks import UserError, without_marks
from myxtts.inference.speech import VOICE_SUFFIX, Voice
from myxtts.storage.speakers import composed
from myxtts.text.languages import LANGUAGES

VOICE_NAME = re.compile(r"[^\W_][\w .-]{0,63}(?<![ .])")
"""Pattern of valid voice names. They begin with a letter or digit, so that no name is a path or a hidden file."""
MOST_NAME_BYTES = 200
_NAME_RULE = f"at most 64 letters, digits, spaces, _, - and . in {MOST_NAME_BYTES} bytes, the first a letter or digit"
MOST_VOICES, MOST_VOICES_BYTES = 1_000, 2**28
"""Maximum number of files in the voice folder, and of their bytes. When either is reached, uploads are refused."""
OPENAI_VOICES = dict.fromkeys("alloy coral nova sage shimmer marin".split(), "f")
OPENAI_VOICES |= dict.fromkeys("ash ballad echo fable onyx verse cedar".split(), "m")
"""Sex of each of OpenAI's voices by name: female (f) or male (m)."""
KOKORO_LANGUAGES = dict(a="en", b="en", e="es", f="fr", h="hi", i="it", j="ja", p="pt", z="zh")
"""Language of Kokoro's voices by the first letter of the name, as in `af_heart`; the second letter gives the sex."""
_KOKORO = re.compile(rf"([{''.join(KOKORO_LANGUAGES)}])([fm])_[a-z0-9]{{2,20}}([+(].*)?")
_KIND = re.compile(r"(?:^|[_ -])([fm])(?:emale|ale)?[_ -]?[0-9]*$")
"""Pattern for the end of a voice's name that shows its sex, female (f) or male (m), as in `en_f1`."""


@dataclass(frozen=True)
class ServedVoice:
    """A voice that clients may request by its name."""

    name: str
    path: Path | None = None
    """Path of a recording or `.voice` file; None for a voice that is stored with the model."""
    language: str | None = None
    """Language to speak with this voice if a request sets none; None if unknown."""
    version: tuple[int, int] = (0, 0)
    """Modification time (ns) and size of the file, so that a changed file is loaded again."""


class VoiceBook:
    """Finds and adds voices by name. Names from requests are not used as paths, except by `add`, which checks them.

    Args:
        model: Model that loads the voices and encodes new ones.
        speakers: Languages of the voices stored with the model, by voice name.
        folder: Folder with one file per voice; files may be added or changed at any time. None means no folder.
        aliases: Maps additional names to voices. The name "" stands for the default voice. OpenAI's and Kokoro's voice
            names need no alias: they select a voice of the same language and sex, if there is one. OpenAI's names have
            no language, so they select a voice for the language of the text.

    Raises `FileNotFoundError` if the folder does not exist, and `UserError` if an alias does not name a voice."""

    def __init__(
        self, model: Model, speakers: Mapping[str, str | None], folder: Path | None, aliases: Mapping[str, str] = {}
    ):
        self.model, self.folder = model, folder
        self.aliases = {composed(name): composed(voice) for name, voice in aliases.items()}
        self._speakers = {name: ServedVoice(name, language=language) for name, language in speakers.items()}
        self.load: Callable[[ServedVoice], Voice] = lru_cache(64)(self._load)
        """Loads a voice or encodes its recording; caches 64 results. Raises `ApiError` if the file is unusable."""
        known = self.all()
        for path in sorted(folder.iterdir()) if folder else ():
            if path.suffix.lower() in MEDIA_EXTENSIONS and composed(path.stem) not in known:
                why = "it is a link" if path.is_symlink() else f"its name or format ({path.suffix}) is not usable"
                log.warning("--voices: %s is no voice: %s.", path.name, why)
        if unknown := set(self.aliases.values()) - set(known):
            raise UserError(f"--voice-map must name voices of the server. There is no voice {min(unknown)}.")

    def all(self) -> dict[str, ServedVoice]:
        """Returns all voices by name. Files have priority over stored voices, and `.voice` files over recordings."""
        found = {}
        for path in sorted(self.folder.iterdir()) if self.folder else ():
            name = composed(path.stem)
            is_voice = path.suffix in (VOICE_SUFFIX, *AUDIO_EXTENSIONS) and VOICE_NAME.fullmatch(without_marks(name))
            is_first = name not in found or path.suffix == VOICE_SUFFIX
            if is_voice and is_first and path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = path.stat()
                    found[name] = ServedVoice(name, path, version=(status.st_mtime_ns, status.st_size))
        return self._speakers | found

    def find(self, name: str, language: str) -> ServedVoice:
        """Returns the voice with this name or alias. Otherwise, if `name` is "" or a voice name of OpenAI or Kokoro,
        returns a substitute (see `_stand_in`). `language` is the text's likely language. Raises `ApiError` if no voice
        is found."""
        voices, name = self.all(), composed(name)
        name = name if name in voices else self.aliases.get(name, name)
        if voices and name not in voices:
            name = _stand_in(name, [*voices.values()], language)
        if name not in voices:
            more = ", …" * (len(voices) > 20)
            some = ", ".join(list(voices)[:20]) + more or "none: start the server with --voices FOLDER"
            raise ApiError(400, f"voice must be one of the server's voices: {some}.", "voice", "voice_not_found")
        return voices[name]

    def add(self, name: str, content: bytes) -> ServedVoice:
        """Encodes the voice in `content`, an audio file, and saves the voice to the folder. Not thread-safe.

        Raises `ApiError` if `name` or the recording is invalid (400), if a voice, alias, file, OpenAI or Kokoro already
        uses `name` (409), or if the folder is full (403)."""
        if not VOICE_NAME.fullmatch(without_marks(name := composed(name))) or len(name.encode()) > MOST_NAME_BYTES:
            raise ApiError(400, f"A voice's name must be {_NAME_RULE}.", "name")
        with tempfile.TemporaryDirectory() as place:
            files = [*self.folder.iterdir()]
            taken = {*self._speakers, *self.aliases, *OPENAI_VOICES, *(composed(path.stem) for path in files)}
            is_kokoro = _KOKORO.fullmatch(name) and name[:2] not in LANGUAGES
            if is_kokoro or name.casefold() in map(str.casefold, taken):  # some systems ignore case
                raise ApiError(409, f"The name {name} is taken. Choose another one.", "name", "voice_exists")
            sizes = [path.lstat().st_size for path in files if path.is_symlink() or path.exists()]  # not if removed
            if len(sizes) >= MOST_VOICES or sum(sizes) >= MOST_VOICES_BYTES:
                raise ApiError(403, "The server's voice folder is full. Ask the server's owner.", code="voices_full")
            recording = Path(place) / "recording"
            recording.write_bytes(content)
            try:
                voice = self.model.as_voice(recording)
            except UserError as error:
                raise ApiError(400, str(error).replace(str(recording), "The recording"), "recording") from error
            try:
                voice.save(self.folder / f"{name}{VOICE_SUFFIX}")
            except UserError as error:  # not the client's error
                raise OSError(str(error)) from error
        return self.all()[name]

    def _load(self, served):
        try:
            return self.model.as_voice(served.path or served.name)
        except UserError as error:
            sentence = str(error).replace(str(served.path), f"The file of the voice {served.name}")
            raise ApiError(400, sentence, "voice", "voice_unusable") from error


def _stand_in(name, voices, language):
    """Returns `name` or, if it is "" or a voice name of OpenAI or Kokoro, the name of a substitute from `voices`. The
    substitute speaks, if possible, the language of the Kokoro name, else `language`. Among these voices, one of the
    same sex is preferred."""
    kind, spoken, place = OPENAI_VOICES.get(name, ""), (language, None), 0
    if kind:
        place = [one for one in OPENAI_VOICES if OPENAI_VOICES[one] == kind].index(name)
    elif kokoro := _KOKORO.fullmatch(name):
        kind, spoken, place = kokoro[2], (KOKORO_LANGUAGES[kokoro[1]], *spoken), sum(name.encode())
    elif name:
        return name
    voices = next((same for each in spoken if (same := [one for one in voices if one.language == each])), voices)
    kinds = [match and match[1] for match in (_KIND.search(one.name) for one in voices)]
    alike = [one for one, found in zip(voices, kinds) if found == kind]
    alike = alike or [one for one, found in zip(voices, kinds) if not found] or voices
    return alike[place % len(alike)].name

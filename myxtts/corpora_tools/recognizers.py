"""Recognizers of speech: any command that prints what it hears, or faster-whisper with a model on this machine."""

import difflib
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

from myxtts.config.checks import UserError, printable

_COMMAND_SECONDS = 600
_LEAST_ALIKE = 0.75


class Recognizer(Protocol):
    """Writes down what is said in a short recording."""

    def transcribe(self, wav_path: Path, language: str) -> str:
        """The text of a WAV file, in one line; "" for none."""


class CommandRecognizer:
    """A command that prints a text; `{wav}` and `{language}` in its words are replaced.

    Raises:
        UserError: It names no `{wav}`, cannot be found, fails, or takes longer than ten minutes for a clip.
    """

    def __init__(self, command: str):
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--recognizer cannot be split into words: {error}. Received: {command}.") from None
        if not any("{wav}" in word for word in self._words):
            raise UserError(f"--recognizer must hold {{wav}}, where the clip's name goes. Received: {command}.")
        if shutil.which(self._words[0]) is None:
            raise UserError(f"--recognizer: the command {self._words[0]} is not there. Install it or give its path.")

    def transcribe(self, wav_path: Path, language: str) -> str:
        """What the command prints."""
        words = [word.replace("{wav}", str(wav_path)).replace("{language}", language) for word in self._words]
        options = dict(stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS)
        try:
            done = subprocess.run(words, **options)
        except subprocess.TimeoutExpired:
            raise UserError(f"--recognizer: {words[0]} did not end within {_COMMAND_SECONDS} s.") from None
        except OSError as error:
            raise UserError(f"--recognizer: {words[0]} cannot be run: {error.strerror}.") from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"--recognizer: {words[0]} ended with code {done.returncode}: {printable(said[-1])[:200]}.")
        return " ".join(done.stdout.decode("utf-8", "replace").replace("|", " ").split())


class FasterWhisperRecognizer:
    """Whisper by CTranslate2, greedy and without memory of earlier clips; nothing is downloaded.

    Raises:
        UserError: faster-whisper is not installed, or the folder holds no model of it.
    """

    def __init__(self, folder: Path):
        try:
            import faster_whisper
        except ModuleNotFoundError:
            raise UserError(
                '--recognizer faster-whisper:DIR needs faster-whisper: pip install "myxtts[dataset]".'
            ) from None
        if not (folder / "model.bin").is_file():
            rule = "must name a folder with a Whisper model for CTranslate2 (model.bin)"
            raise UserError(f"--recognizer faster-whisper:DIR {rule}. {folder} is none.")
        self._model = faster_whisper.WhisperModel(str(folder), device="auto", local_files_only=True)

    def transcribe(self, wav_path: Path, language: str) -> str:
        """The text of a clip."""
        options = dict(language=language, beam_size=5, temperature=0.0, condition_on_previous_text=False)
        segments, _ = self._model.transcribe(str(wav_path), **options)
        return " ".join(" ".join(segment.text for segment in segments).replace("|", " ").split())


def open_recognizer(name: str) -> Recognizer:
    """The recognizer that `--recognizer` names: `faster-whisper:DIR`, or a command."""
    kind, _, folder = name.partition(":")
    return FasterWhisperRecognizer(Path(folder)) if kind == "faster-whisper" else CommandRecognizer(name)


def is_same_text(text: str, heard: str) -> bool:
    """Whether what was heard is the text, but for a quarter of its letters."""
    sides = ("".join(filter(str.isalnum, one.casefold())) for one in (text, heard))
    return difflib.SequenceMatcher(None, *sides, autojunk=False).ratio() >= _LEAST_ALIKE

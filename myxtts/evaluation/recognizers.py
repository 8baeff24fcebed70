"""What writes down what it hears: Whisper, or any command."""

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soxr

from myxtts.audio.files import write_wav
from myxtts.config.checks import UserError, printable
from myxtts.evaluation.text_errors import character_errors

SAMPLE_RATE = 16000
WAV, LANGUAGE = "{wav}", "{language}"
"""What in a command stands for the file and for the code of the language."""
TIMEOUT_SECONDS = 600
WHISPER_FILES = ("model.bin", "config.json", "tokenizer.json")

Recognizer = Callable[[np.ndarray, int, str], str]
"""Samples `(S,)`, their rate in Hz and a language's code -> text."""


class Listening:
    """A recognizer as the self-check of speech takes it: `inference.self_check.Listener`."""

    def __init__(self, recognizer: Recognizer):
        self.recognizer = recognizer

    def __call__(self, samples: np.ndarray, sample_rate: int, text: str, language: str) -> float:
        """Wrong characters over those of the text, at most 1."""
        wrong, expected = character_errors(text, self.recognizer(samples, sample_rate, language), language)
        return min(1.0, wrong / max(1, expected))


def open_recognizer(asked: str) -> Recognizer:
    """A folder with a Whisper model for CTranslate2, or a command in which `{wav}` stands for a file.

    Raises:
        UserError: It is neither, or what it needs is not installed.
    """
    check_recognizer(asked)
    return Command(asked) if WAV in asked else Whisper(Path(asked))


def check_recognizer(asked: str) -> None:
    """Raises as `open_recognizer`, as far as it can be seen without opening it."""
    if WAV in asked or Path(asked).is_dir():
        return
    rule = f"--recognizer must be the folder of a Whisper model or a command with {WAV} in it"
    raise UserError(f'{rule}. Received: {asked}. Try --recognizer whisper-base or --recognizer "./hear.sh {WAV}".')


class Whisper:
    """Whisper through faster-whisper, on one thread, without search, at temperature 0."""

    def __init__(self, folder: Path):
        if missing := [name for name in WHISPER_FILES if not (folder / name).is_file()]:
            rule = f"--recognizer {folder} must hold a Whisper model as faster-whisper takes it"
            raise UserError(f"{rule}; {', '.join(missing)} is not there.")
        try:
            from faster_whisper import WhisperModel
        except ModuleNotFoundError as error:
            if error.name != "faster_whisper":
                raise
            raise UserError('Whisper needs faster-whisper. Install it with: pip install "myxtts[eval]"') from None
        try:
            self._model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"--recognizer {folder} cannot be opened: {str(error).splitlines()[0]}.") from None

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`; English where the model knows no other language."""
        heard = at_rate(samples, sample_rate)
        language = language.partition("-")[0] if self._model.model.is_multilingual else "en"
        if language not in self._model.supported_languages:
            raise UserError(f"The recognizer does not know the language {language}. Take another, or a command.")
        options = dict(language=language, beam_size=1, temperature=0.0, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in self._model.transcribe(heard, **options)[0])


class Command:
    """A program that is given a WAV file of 16 kHz and prints what it hears; no shell is between."""

    def __init__(self, command: str):
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--recognizer must be a command that can be taken apart: {error}.") from None

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`."""
        with tempfile.TemporaryDirectory() as folder:
            wav = Path(folder, "speech.wav")
            write_wav(wav, at_rate(samples, sample_rate), SAMPLE_RATE)
            words = [word.replace(WAV, str(wav)).replace(LANGUAGE, language) for word in self._words]
            try:
                done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
            except OSError as error:
                raise UserError(f"The recognizer {words[0]} cannot be run: {error.strerror}.") from None
            except subprocess.TimeoutExpired:
                raise UserError(f"The recognizer {words[0]} did not end within {TIMEOUT_SECONDS} s.") from None
        if done.returncode:
            said = printable((done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1][:200])
            raise UserError(f"The recognizer {words[0]} ended with code {done.returncode} and said: {said}")
        return " ".join(done.stdout.decode(errors="replace").split())


def at_rate(samples: np.ndarray, sample_rate: int, wanted: int = SAMPLE_RATE) -> np.ndarray:
    """Samples `(S,)` float32 at another rate in Hz, within full scale."""
    samples = np.asarray(samples, np.float32)
    return np.clip(samples if sample_rate == wanted else soxr.resample(samples, sample_rate, wanted), -1, 1)

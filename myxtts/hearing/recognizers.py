"""Speech recognizers: Whisper, pocketsphinx, or any command."""

import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soxr

from myxtts.audio.encoding import write_audio
from myxtts.config.checks import UserError, printable
from myxtts.hearing.text_errors import character_errors

SAMPLE_RATE = 16000
TIMEOUT_SECONDS = 600
WHISPER_SIZES = ("tiny", "base", "small", "medium", "large-v2", "large-v3")
"""Sizes of Whisper that are names of recognizers: https://huggingface.co/Systran has them for CTranslate2."""
_WHISPER_FILES = ["model.bin", "config.json", "tokenizer.json", "vocabulary.*", "preprocessor_config.json"]

Recognizer = Callable[[np.ndarray, int, str], str]
"""Samples `(S,)`, their rate in Hz and a language's code -> text. Some have `words`, too, which gives `Word`s."""


class Word(NamedTuple):
    """A word that was recognized, from `start` to `end`, in seconds of the samples."""

    text: str
    start: float
    end: float


class Listening:
    """A recognizer as the self-check of speech takes it: `inference.self_check.Listener`."""

    def __init__(self, recognizer: Recognizer):
        self.recognizer = recognizer

    def __call__(self, samples: np.ndarray, sample_rate: int, text: str, language: str) -> float:
        """Wrong characters over those of the text, at most 1."""
        wrong, expected = character_errors(text, self.recognizer(samples, sample_rate, language), language)
        return min(1.0, wrong / max(1, expected))


def open_recognizer(asked: str, thorough: bool = False) -> Recognizer:
    """Opens what `settle_recognizer` settles.

    Args:
        thorough: Whether Whisper searches for the best text and may use a GPU; else the same model gives the same
            figures everywhere.
    """
    return settle_recognizer(asked, thorough)()


def settle_recognizer(asked: str, thorough: bool = False) -> Callable[[], Recognizer]:
    """Finds the recognizer of a name, and returns what opens it. A model of the hub is downloaded, once.

    Args:
        asked: A size of Whisper (`base`, `whisper-base`), `hf://owner/name` or a folder with a Whisper model for
            CTranslate2, `pocketsphinx`, or a command in which `{wav}` stands for a file.

    Raises:
        UserError: It is none of them, it cannot be downloaded, or what it needs is not installed.
    """
    if "{wav}" in asked:
        command = Command(asked)
        return lambda: command
    if asked == "pocketsphinx":
        _require_package("pocketsphinx", "recordings")
        return Pocketsphinx
    size = asked.removeprefix("whisper-")
    is_remote = asked.startswith("hf://") or size in WHISPER_SIZES
    if not (is_remote or Path(asked).is_dir()):
        raise UserError(
            f"--recognizer must be a size of Whisper ({', '.join(WHISPER_SIZES)}), hf://owner/name, the folder of a "
            'Whisper model, pocketsphinx, or a command with {wav} in it, such as "./hear.sh {wav}". '
            f"Received: {asked}."
        )
    _require_package("faster_whisper", "eval")
    folder = Path(asked)
    if not folder.is_dir():
        folder = _download(asked if asked.startswith("hf://") else f"hf://Systran/faster-whisper-{size}")
    if missing := _missing_files({path.name for path in folder.iterdir()}):
        hint = "--recognizer base downloads one"
        raise UserError(f"--recognizer {folder} must hold a Whisper model for faster-whisper, with {missing}; {hint}.")
    return lambda: Whisper(folder, thorough)


def _require_package(name, extra):
    if importlib.util.find_spec(name) is None:
        package = name.replace("_", "-")
        raise UserError(f'This recognizer needs {package}. Install it with: pip install "myxtts[{extra}]"')


def _missing_files(names):
    """Those of the files that every Whisper model for CTranslate2 has that are not among `names`; "" for none."""
    return ", ".join(name for name in ("model.bin", "config.json", "tokenizer.json") if name not in names)


def _download(source):
    """The folder with the Whisper model `hf://owner/name[@revision]`; licence and size are printed before a download.

    It is kept where the hub's library keeps it. Without a network, its files may lie in a folder that the error names.
    """
    from myxtts.interchange.hub import fetching

    (repository, revision), hub = fetching.parse_hub_name(source), fetching.import_hub()
    by_hand = Path(hub.constants.HF_HOME, "myxtts", repository.replace("/", "--"))
    get = lambda files, **how: hub.snapshot_download(repository, revision=revision, allow_patterns=files, **how)
    with suppress(hub.errors.LocalEntryNotFoundError):
        kept = by_hand if by_hand.is_dir() else Path(get(_WHISPER_FILES, local_files_only=True))
        if not _missing_files({path.name for path in kept.iterdir()}):
            return kept
    try:
        with fetching.hub_errors(source):
            terms = Path(get(fetching.TERMS))
            files = get(_WHISPER_FILES, dry_run=True)
            if missing := _missing_files({file.filename for file in files}):
                hint = "Models for CTranslate2 are named faster-whisper-…"
                raise UserError(f"--recognizer {source} has no {missing}: faster-whisper cannot read it. {hint}")
            megabytes = sum(file.file_size for file in files) / 1e6
            licence = fetching.describe_licence(source, terms)[1]
            print(f"{licence}. Downloading {megabytes:.0f} MB to {terms}.", file=sys.stderr, flush=True)
            folder = Path(get(_WHISPER_FILES))
    except fetching.HubError as error:
        if isinstance(error.__cause__, hub.errors.LocalEntryNotFoundError):
            files = f"{', '.join(_WHISPER_FILES)} of {hub.constants.ENDPOINT}/{repository}"
            raise UserError(f"{error} Or put the files {files} into {by_hand}.") from error
        raise
    for path in folder.iterdir():
        fetching.check_digest(source, path)
    return folder


class Whisper:
    """Whisper through faster-whisper, at temperature 0 and without memory of what it heard before.

    On one thread without search, or thoroughly.
    """

    def __init__(self, folder: Path, thorough: bool = False):
        from faster_whisper import WhisperModel

        try:
            how = dict(device="auto") if thorough else dict(device="cpu", compute_type="int8", cpu_threads=1)
            self._model = WhisperModel(str(folder), local_files_only=True, **how)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"--recognizer {folder} cannot be opened: {str(error).splitlines()[0]}.") from None
        self._beam_size = 5 if thorough else 1

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`; English where the model knows no other language."""
        return " ".join(segment.text.strip() for segment in self._hear(samples, sample_rate, language))

    def words(self, samples: np.ndarray, sample_rate: int, language: str) -> list[Word]:
        """Each word with its time, about a tenth of a second off."""
        found = self._hear(samples, sample_rate, language, word_timestamps=True)
        return [Word(one.word.strip(), one.start, one.end) for segment in found for one in segment.words or ()]

    def _hear(self, samples, sample_rate, language, **more):
        language = language.partition("-")[0] if self._model.model.is_multilingual else "en"
        if language not in self._model.supported_languages:
            raise UserError(f"The recognizer does not know the language {language}. Use another one.")
        options = dict(language=language, beam_size=self._beam_size, temperature=0.0, condition_on_previous_text=False)
        sound = at_rate(samples, sample_rate)
        segments = list(self._model.transcribe(sound, **options, **more)[0])
        # A text that compresses so well is a loop (Radford et al. 2022, section 4.5). Whisper would sample again at
        # random; a second pass that may not repeat four tokens gives the same text each time.
        if any(segment.compression_ratio > 2.4 for segment in segments):
            segments = list(self._model.transcribe(sound, no_repeat_ngram_size=4, **options, **more)[0])
        return segments


class Pocketsphinx:
    """CMU's recognizer with the English model of its package: small and fast, with every fourth word wrong."""

    def __init__(self):
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`; English only."""
        return " ".join(word.text for word in self.words(samples, sample_rate, language))

    def words(self, samples: np.ndarray, sample_rate: int, language: str) -> list[Word]:
        """Each word with its time."""
        if language.partition("-")[0] != "en":
            raise UserError(f"pocketsphinx knows English only, not {language}. Take another recognizer.")
        sound = at_rate(samples, sample_rate)
        self._decoder.start_utt()
        self._decoder.process_raw((sound * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = []
        for one in self._decoder.seg() or ():
            # `<sil>` and `[NOISE]` are no words; `read(2)` is the second way to say one.
            if one.word[0] not in "<[":
                word = one.word.partition("(")[0]
                found.append(Word(word, one.start_frame / 100, (one.end_frame + 1) / 100))
        return found


class Command:
    """A program that is given a 16 kHz WAV file as `{wav}` and a code as `{language}` and prints the text; no shell."""

    def __init__(self, command: str):
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--recognizer must be a valid command: {error}.") from None
        if shutil.which(self._words[0]) is None:
            raise UserError(f"--recognizer: the command {self._words[0]} is not there. Install it or give its path.")

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`."""
        name = f"The recognizer {self._words[0]}"
        with tempfile.TemporaryDirectory() as folder:
            wav = Path(folder, "speech.wav")
            write_audio(wav, at_rate(samples, sample_rate), SAMPLE_RATE)
            words = [word.replace("{wav}", str(wav)).replace("{language}", language) for word in self._words]
            try:
                done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
            except OSError as error:
                raise UserError(f"{name} cannot be run: {error.strerror}.") from None
            except subprocess.TimeoutExpired:
                raise UserError(f"{name} did not end within {TIMEOUT_SECONDS} s.") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise UserError(f"{name} ended with code {done.returncode}: {printable(''.join(lines[-1:])[:200])}")
        return " ".join(done.stdout.decode(errors="replace").split())


def at_rate(samples: np.ndarray, sample_rate: int, wanted: int = SAMPLE_RATE) -> np.ndarray:
    """Samples `(S,)` float32 at another rate in Hz, within full scale."""
    samples = np.asarray(samples, np.float32)
    return np.clip(samples if sample_rate == wanted else soxr.resample(samples, sample_rate, wanted), -1, 1)

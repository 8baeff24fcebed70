"""Speech recognizers (Whisper, pocketsphinx or an external program), and counts of recognition errors."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import soxr
from rapidfuzz.distance import Levenshtein

from myxtts.audio.encoding import write_audio
from myxtts.config.checks import UserError, printable, require
from myxtts.inference.speech import Word
from myxtts.text.cleaners import clean_text
from myxtts.text.languages import get_language

SAMPLE_RATE = 16000
TIMEOUT_SECONDS = 600
WHISPER_SIZES = ("tiny", "base", "small", "medium", "large-v2", "large-v3")
"""Whisper sizes that can be selected by name. Their CTranslate2 files are at https://huggingface.co/Systran."""
_REQUIRED_FILES = ["model.bin", "config.json", "tokenizer.json"]
_WHISPER_FILES = [*_REQUIRED_FILES, "vocabulary.*", "preprocessor_config.json"]
_SAME_SOUND = str.maketrans("أإۀሃሐሑሒሓሔሕሖኀኁኂኃኄኅኆሠሡሢሣሤሥሦሧኣዐዑዒዓዔዕዖፀፁፂፃፄፅፆ", "ااهሀሀሁሂሀሄህሆሀሁሂሀሄህሆሰሱሲሳሴስሶሷአአኡኢአኤእኦጸጹጺጻጼጽጾ")
"""Replacements for letters that recognizers exchange because they sound the same: Arabic, Persian and Amharic."""

Recognizer = Callable[[np.ndarray, int, str], str]
"""Function of samples `(S,)`, sample rate in Hz and language code that returns the recognized text. `Whisper` also has
methods for word times (`words`) and probabilities (`scored`). `Pocketsphinx` also has `words`."""


class Listening:
    """Scores audio by the character error rate (CER) of a speech recognizer. Can be used as `self_check.Listener`."""

    def __init__(self, recognizer: Recognizer):
        self.recognizer = recognizer

    def __call__(self, samples: np.ndarray, sample_rate: int, text: str, language: str) -> float:
        """Returns the character error rate of `(S,)` samples against `text`, capped at 1."""
        wrong, expected = recognition_errors(text, self.recognizer(samples, sample_rate, language), language)["cer"]
        return min(1.0, wrong / max(1, expected))


def open_recognizer(name: str, thorough: bool = False) -> Recognizer:
    """Loads a recognizer by name. For arguments and errors, see `settle_recognizer`."""
    return settle_recognizer(name, thorough)()


def settle_recognizer(name: str, thorough: bool = False) -> Callable[[], Recognizer]:
    """Checks a recognizer's name, downloads its model if needed, and returns a function that loads the recognizer.

    Args:
        name: `pocketsphinx`, a Whisper size (`base` or `whisper-base`), a folder or hub name (`hf://owner/name`) of a
            Whisper model for CTranslate2, or a command line in which `{wav}` stands for the audio file.
        thorough: Whether Whisper uses beam search and, if available, a GPU. If false, it decodes greedily on the CPU.

    Raises `UserError` if the name is unknown, the download fails, or a package is not installed.
    """
    name = str(name)  # callers in Python may give a `Path`
    if "{wav}" in name:
        command = Command(name)
        return lambda: command
    if name == "pocketsphinx":
        _require_package("pocketsphinx", "recordings")
        return Pocketsphinx
    size = name.removeprefix("whisper-")
    is_remote = name.startswith("hf://") or size in WHISPER_SIZES
    others = "hf://owner/name, the folder of a Whisper model, pocketsphinx, or a command with {wav} in it, such as"
    rule = f'a Whisper size ({", ".join(WHISPER_SIZES)}), {others} "./hear.sh {{wav}}"'
    require(is_remote or Path(name).is_dir(), "--recognizer (or --aligner)", rule, name)
    _require_package("faster_whisper", "eval")
    folder = Path(name)
    if is_remote and not (folder / "model.bin").is_file():  # ignores an unrelated local folder called base
        folder = _download(name if name.startswith("hf://") else f"hf://Systran/faster-whisper-{size}")
    if missing := _missing_files(folder):
        raise UserError(f"--recognizer {name} has no {missing}. Use a model for CTranslate2 (named faster-whisper-…).")
    return lambda: Whisper(folder, thorough)


def _require_package(name, extra):
    if importlib.util.find_spec(name) is None:
        raise UserError(f'This recognizer needs {name.replace("_", "-")}: pip install "myxtts[{extra}]"')


def _missing_files(folder):
    return ", ".join(name for name in _REQUIRED_FILES if not Path(folder, name).exists())


def _download(source):
    """Returns the folder of the Whisper model `hf://owner/name[@revision]`; downloads the model if needed."""
    # A download prints licence and size. Models are in huggingface_hub's cache, or in a folder for manual downloads.
    from myxtts.interchange import hub

    (repository, revision), client = hub.parse_hub_name(source), hub.import_hub()
    by_hand = Path(client.constants.HF_HOME, "myxtts", repository.replace("/", "--"))
    get = lambda files, **how: client.snapshot_download(repository, revision=revision, allow_patterns=files, **how)
    with suppress(client.errors.LocalEntryNotFoundError):
        kept = by_hand if by_hand.is_dir() else Path(get(_WHISPER_FILES, local_files_only=True))
        if not _missing_files(kept):
            return kept
    try:
        with hub.hub_errors(source):
            terms = Path(get(hub.TERMS))
            megabytes = sum(file.file_size for file in get(_WHISPER_FILES, dry_run=True)) / 1e6
            licence = hub.describe_licence(source, terms)[1]
            print(f"{licence}. Downloading {megabytes:.0f} MB to {terms}.", file=sys.stderr, flush=True)
            folder = Path(get(_WHISPER_FILES))
    except hub.HubError as error:
        if isinstance(error.__cause__, client.errors.LocalEntryNotFoundError):
            files, site = ", ".join(_WHISPER_FILES), client.constants.ENDPOINT
            raise UserError(f"{error} Or put {files} of {site}/{repository} into {by_hand}.") from error
        raise
    for path in folder.iterdir():
        hub.check_digest(source, path)
    return folder


class Whisper:
    """Whisper recognizer that runs in faster-whisper. `thorough` enables beam search and, if available, a GPU."""

    def __init__(self, folder: Path, thorough: bool = False):
        from ctranslate2 import get_cuda_device_count
        from faster_whisper import WhisperModel

        on_gpu = thorough and get_cuda_device_count()
        how = dict(device="cuda") if on_gpu else dict(device="cpu", compute_type="int8", cpu_threads=int(not thorough))
        try:
            self._model = WhisperModel(str(folder), local_files_only=True, **how)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"--recognizer {folder} cannot be opened: {str(error).splitlines()[0]}.") from None
        self._beam_size = 5 if thorough else 1

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """Transcribes `(S,)` samples. English-only models ignore the language."""
        return " ".join(segment.text.strip() for segment in self._hear(samples, sample_rate, language))

    def scored(self, samples: np.ndarray, sample_rate: int, language: str) -> tuple[str, float, str, float]:
        """Transcribes `(S,)` samples. Returns the text, the lowest segment probability, the least certain word, and
        the probability of this word. A segment's probability is the geometric mean of its tokens' probabilities."""
        found = self._hear(samples, sample_rate, language, word_timestamps=True)
        text = " ".join(segment.text.strip() for segment in found)
        words = [(float(one.probability), one.word.strip()) for segment in found for one in segment.words or ()]
        word_probability, word = min(words, default=(1.0, ""))
        return text, float(np.exp(min((one.avg_logprob for one in found), default=0.0))), word, word_probability

    def words(self, samples: np.ndarray, sample_rate: int, language: str) -> list[Word]:
        """Transcribes `(S,)` samples into words. Their start and end times are accurate to about 0.1 s."""
        found = self._hear(samples, sample_rate, language, word_timestamps=True)
        return [Word(one.word.strip(), one.start, one.end) for segment in found for one in segment.words or ()]

    def _hear(self, samples, sample_rate, language, **more):
        language = language.partition("-")[0] if self._model.model.is_multilingual else "en"
        if language not in self._model.supported_languages:
            raise UserError(f"The recognizer does not support the language {language}. Use another one.")
        options = dict(language=language, beam_size=self._beam_size, temperature=0.0, condition_on_previous_text=False)
        audio = at_rate(samples, sample_rate)
        segments = list(self._model.transcribe(audio, **options, **more)[0])
        # A high compression ratio indicates repetition (Radford et al. 2022, section 4.5). A second pass without
        # repeated 4-grams is deterministic, unlike Whisper's fallback to a higher temperature.
        if any(segment.compression_ratio > 2.4 for segment in segments):
            segments = list(self._model.transcribe(audio, no_repeat_ngram_size=4, **options, **more)[0])
        return segments


class Pocketsphinx:
    """CMU Pocketsphinx with its built-in English model: small and fast, but with a word error rate of about 25 %."""

    def __init__(self):
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        return " ".join(word.text for word in self.words(samples, sample_rate, language))

    def words(self, samples: np.ndarray, sample_rate: int, language: str) -> list[Word]:
        """Transcribes `(S,)` samples into words with times. Raises `UserError` if the language is not English."""
        if language.partition("-")[0] != "en":
            raise UserError(f"pocketsphinx supports English only, not {language}. Use another recognizer.")
        self._decoder.start_utt()
        self._decoder.process_raw((at_rate(samples, sample_rate) * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        # `<sil>` and `[NOISE]` are not words; `read(2)` is the second pronunciation of "read".
        found = [one for one in self._decoder.seg() or () if one.word[0] not in "<["]
        return [Word(one.word.partition("(")[0], one.start_frame / 100, (one.end_frame + 1) / 100) for one in found]


class Command:
    """Recognizer that runs a program, whose output is the recognized text. In the program's arguments, `{wav}` stands
    for the path of a 16 kHz WAV file and `{language}` for the language code."""

    def __init__(self, command: str):
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--recognizer (or --aligner) must be a valid command: {error}.") from None
        if shutil.which(self._words[0]) is None:
            raise UserError(f"--recognizer: the command {self._words[0]} was not found. Install it or give its path.")

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
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
                raise UserError(f"{name} did not finish within {TIMEOUT_SECONDS} s.") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise UserError(f"{name} exited with code {done.returncode}: {printable(''.join(lines[-1:])[:200])}")
        return " ".join(done.stdout.decode(errors="replace").split())


def at_rate(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Resamples `(S,)` samples from `sample_rate` to `SAMPLE_RATE` Hz; returns float32 clipped to `[-1, 1]`."""
    return np.clip(soxr.resample(np.asarray(samples, np.float32), sample_rate, SAMPLE_RATE), -1, 1)


def normalized(text: str, language: str) -> str:
    """Normalizes a text for comparison: writes out numbers and abbreviations, folds case, removes punctuation."""
    entry = get_language(language)
    if entry.romanizes_as_written:  # cleaning keeps the digits
        text = entry.expand_numbers(re.sub("(?<=[0-9]),(?=[0-9]{3})", "", unicodedata.normalize("NFKC", text)))
    text = unicodedata.normalize("NFKC", clean_text(entry.write_out(text), language)).casefold()
    text = re.sub("(?<=[1-5])", " ", text) if entry.code == "zh" else text  # syllables, which end with their tones
    # Recognizers are inconsistent in apostrophes, Arabic vowel marks and invisible characters within words.
    text = re.sub("['’\u00ad\u064b-\u065f\u0670\u06d6-\u06ed\u200c\u200d\ufe0f]", "", text.translate(_SAME_SOUND))
    # Punctuation separates words; combining marks, such as Hindi vowel signs, are parts of words.
    is_part = lambda one: one.isalnum() or unicodedata.category(one) in ("Mn", "Mc")
    return " ".join("".join(one if is_part(one) else " " for one in text).split())


def recognition_errors(expected: str, found: str, language: str) -> dict[str, tuple[int, int]]:
    """Returns `{"cer": (distance, length), "wer": (distance, length)}`: the edit distance of the normalized texts, and
    the length of the normalized `expected`. The unit is characters for `cer` and words for `wer`."""
    texts = normalized(expected, language), normalized(found, language)
    pairs = {"cer": texts, "wer": (texts[0].split(), texts[1].split())}
    return {name: (Levenshtein.distance(*pair), len(pair[0])) for name, pair in pairs.items()}

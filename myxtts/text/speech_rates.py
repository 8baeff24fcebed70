"""Expected durations of spoken texts, estimated from a model's training recordings or by a rule of thumb."""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from myxtts.storage.base_model import base_folder, is_base
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.text.languages import get_language

logger = logging.getLogger(__name__)

SPEECH_RATES = "speech_rates.json"
"""Name of the file in a GPT checkpoint that contains the speech rates of the training recordings."""
SECONDS_AT_CHAR_LIMIT = 16.0
"""Usual duration of a text with `Language.char_limit` characters. In English, about 16 characters take a second."""
DIGIT_LETTERS = 6
"""Number of letters that `spoken_length` counts for each digit: the average length of a digit's word."""
FEWEST_CLIPS = 20
"""Minimum number of clips to estimate the speech rate of a language."""
EDGE_SHARE = 0.005
"""Fraction of the clips that is ignored as too fast to be typical. The same fraction is ignored as too slow."""
MARGIN = 1.15
"""Factor by which the measured range of durations is widened, to allow for other voices and tightly cut clips."""


@dataclass(frozen=True)
class SpeechRate:
    """Speech rate of one language: a text of n letters usually lasts `pause_seconds + n * letter_seconds`."""

    letter_seconds: float
    pause_seconds: float
    shortest: float
    """Duration of the fastest speech as a fraction of the usual duration."""
    longest: float
    """Duration of the slowest speech as a multiple of the usual duration."""
    spare_seconds: float = 0.0
    """Seconds that are added to the duration of the slowest speech, as a tolerance."""
    longest_text: int = 0
    """Number of characters of the longest recorded text; 0 if unknown."""

    def band(self, text: str) -> tuple[float, float]:
        """Returns the minimum and maximum plausible duration of a text, in seconds."""
        usual = self.pause_seconds + self.letter_seconds * (spoken_length(text) or DIGIT_LETTERS)  # a lone symbol
        written = self.pause_seconds + self.letter_seconds * sum(map(str.isalnum, text))
        return self.shortest * written, self.longest * usual + self.spare_seconds


def spoken_length(text: str) -> int:
    """Returns the number of letters of a text, counting each digit as `DIGIT_LETTERS` letters."""
    return sum(map(str.isalnum, text)) + (DIGIT_LETTERS - 1) * sum(map(str.isdigit, text))


def rule_of_thumb(language: str) -> SpeechRate:
    """Returns an approximate `SpeechRate` with a wide range of durations, for models without measured rates."""
    return SpeechRate(SECONDS_AT_CHAR_LIMIT / get_language(language).char_limit, 0.0, 0.3, 3.0, 1.5)


def measure_rates(spoken: Iterable[tuple[str, str, float]]) -> dict[str, SpeechRate]:
    """Returns the rate of each language that has at least `FEWEST_CLIPS` recordings `(language, text, seconds)`."""
    found: dict[str, list[tuple[int, float, int]]] = {}
    for language, text, seconds in spoken:
        if (length := spoken_length(text)) and seconds > 0:
            found.setdefault(language, []).append((length, seconds, len(text)))
    return {language: _fit(np.array(clips)) for language, clips in found.items() if len(clips) >= FEWEST_CLIPS}


def longest_texts(rates: dict[str, SpeechRate], origin: str | None = None) -> dict[str, int]:
    """Returns the number of characters of the longest training text, by language, or {} if the texts are unknown.

    `rates` come from the run's own recordings. `origin` is the model from which the run started, or None. If it is
    the bundled model, its training texts are included. If it is another model, returns {}: its texts are unknown.
    """
    if origin is not None and not is_base(origin):
        return {}
    found = {language: rate.longest_text for language, rate in rates.items() if rate.longest_text}
    before = {} if origin is None or not found else longest_texts(read_rates(base_folder()))
    return {language: max(found.get(language, 0), before.get(language, 0)) for language in found | before}


def _fit(clips):
    """Fits a `SpeechRate` with `pause_seconds >= 0` to rows `(spoken length, seconds, number of characters)`."""
    lengths, seconds, written = clips.T
    slope, start = np.polyfit(lengths, seconds, 1) if np.ptp(lengths) else (0.0, 0.0)
    if slope <= 0 or start < 0:
        slope, start = float(np.median(seconds / lengths)), 0.0
    low, high = np.quantile(seconds / (start + slope * lengths), [EDGE_SHARE, 1 - EDGE_SHARE])
    return SpeechRate(*map(float, (slope, start, low / MARGIN, high * MARGIN)), longest_text=int(written.max()))


def write_rates(rates: dict[str, SpeechRate]) -> bytes:
    """Returns the content of the file `SPEECH_RATES`, given the rate of each language."""
    return json.dumps({language: asdict(rate) for language, rate in sorted(rates.items())}, indent=1).encode()


def read_rates(folder: str | Path) -> dict[str, SpeechRate]:
    """Reads the rates from a run's newest intact GPT checkpoint. Returns {} if the rates are missing or invalid."""
    path = CheckpointStore(Path(folder) / "gpt").newest_file(SPEECH_RATES)
    try:
        content = json.loads(path.read_bytes()) if path else {}
        rates = {language: SpeechRate(**values) for language, values in content.items()}
        if all(math.isfinite(value) and value >= 0 for rate in rates.values() for value in vars(rate).values()):
            return rates
        raise ValueError("its values must be finite numbers of at least 0")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be used; expected durations follow a rule of thumb: %.200s", path, error)
    return {}

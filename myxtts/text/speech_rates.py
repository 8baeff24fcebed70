"""How long texts take to say: by the recordings that a model was trained on, else by a rule of thumb."""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from myxtts.storage.base_model import base_folder, is_base
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.text.languages import get_language

logger = logging.getLogger(__name__)

SPEECH_RATES = "speech_rates.json"
"""The file in a checkpoint of the GPT that keeps them."""
SECONDS_AT_CHAR_LIMIT = 16.0
"""What a text as long as a language's limit of characters takes at a usual pace: 15 characters a second in English."""
DIGIT_LETTERS = 6
"""Letters that a digit is spoken with."""
FEWEST_CLIPS = 20
"""Clips of a language from which a rate can be estimated."""
EDGE_SHARE = 0.005
"""Of the clips are shorter than the shortest that counts, and as many longer than the longest."""
MARGIN = 1.15
"""How much a sentence may be beyond these: a voice of its own, and clips that were cut close."""


@dataclass(frozen=True)
class SpeechRate:
    """Of one language: a text of n letters takes `pause_seconds + n * letter_seconds`."""

    letter_seconds: float
    pause_seconds: float
    shortest: float
    """Share of that time that the quickest speech takes."""
    longest: float
    """And the slowest."""
    spare_seconds: float = 0.0
    """What a text may take beyond that."""
    longest_text: int = 0
    """Characters of the longest text among the recordings, 0 where it is not known."""

    def band(self, text: str) -> tuple[float, float]:
        """Shortest and longest seconds that are usual for a text."""
        usual = self.pause_seconds + self.letter_seconds * spoken_length(text)
        written = self.pause_seconds + self.letter_seconds * sum(map(str.isalnum, text))
        return self.shortest * written, self.longest * usual + self.spare_seconds


def spoken_length(text: str) -> int:
    """Letters of a text, with what its digits are spoken with."""
    return sum(map(str.isalnum, text)) + (DIGIT_LETTERS - 1) * sum(map(str.isdigit, text))


def rule_of_thumb(language: str) -> SpeechRate:
    """For a language that the training set has too little of; the spare is for pauses and short texts."""
    return SpeechRate(SECONDS_AT_CHAR_LIMIT / get_language(language).char_limit, 0.0, 0.3, 3.0, 1.5)


def measure_rates(spoken: Iterable[tuple[str, str, float]]) -> dict[str, SpeechRate]:
    """Rates by language of recordings, each `(language, text, seconds)`; none for a language with few of them."""
    found: dict[str, list[tuple[int, float, int]]] = {}
    for language, text, seconds in spoken:
        if (length := spoken_length(text)) and seconds > 0:
            found.setdefault(language, []).append((length, seconds, len(text)))
    return {language: _fit(np.array(clips)) for language, clips in found.items() if len(clips) >= FEWEST_CLIPS}


def longest_texts(rates: dict[str, SpeechRate], origin: str | None = None) -> dict[str, int]:
    """Characters of the longest text by language that a model has learned from; empty where that is not known.

    Args:
        rates: Those of its own recordings.
        origin: What the run started from, `training.init_from`. For the bundled model it is known what that had read;
            another one may have read longer texts.
    """
    if origin is not None and not is_base(origin):
        return {}
    found = {language: rate.longest_text for language, rate in rates.items() if rate.longest_text}
    before = {} if origin is None or not found else longest_texts(read_rates(base_folder()))
    return {language: max(found.get(language, 0), before.get(language, 0)) for language in found | before}


def _fit(clips):
    """A line through the times over the lengths, with neither a negative slope nor a negative start."""
    lengths, seconds, written = clips.T
    slope, start = np.polyfit(lengths, seconds, 1) if np.ptp(lengths) else (0.0, 0.0)
    if slope <= 0 or start < 0:
        slope, start = float(np.median(seconds / lengths)), 0.0
    low, high = np.quantile(seconds / (start + slope * lengths), [EDGE_SHARE, 1 - EDGE_SHARE])
    return SpeechRate(
        float(slope), float(start), float(low) / MARGIN, float(high) * MARGIN, longest_text=int(written.max())
    )


def write_rates(rates: dict[str, SpeechRate]) -> bytes:
    """The content of the file."""
    return json.dumps({language: asdict(rate) for language, rate in sorted(rates.items())}, indent=1).encode()


def read_rates(folder: str | Path) -> dict[str, SpeechRate]:
    """The rates that the newest sound checkpoint of a run's GPT keeps; none where it was written without.

    A file that cannot be used is logged and counts as none: the rule of thumb is there.
    """
    store = CheckpointStore(Path(folder) / "gpt")
    for step in reversed(store.steps()):
        try:
            path = store.file(step, SPEECH_RATES)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        if path is None:
            break
        try:
            rates = {language: SpeechRate(**values) for language, values in json.loads(path.read_bytes()).items()}
            if all(math.isfinite(value) and value >= 0 for rate in rates.values() for value in vars(rate).values()):
                return rates
            raise ValueError("its values must be finite numbers of at least 0")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be used, and durations are judged by a rule of thumb: %.200s", path, error)
            break
    return {}

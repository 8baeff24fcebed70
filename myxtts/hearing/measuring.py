"""Metrics of spoken sentences."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from myxtts.audio.files import load_samples
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.hearing.contours import Contour, contour_of, differences, pitch_figures
from myxtts.hearing.dnsmos import DNSMOS
from myxtts.hearing.recognizers import Recognizer, open_recognizer
from myxtts.hearing.speaker_similarity import Encoder, find_encoder
from myxtts.hearing.spoken import Sentence, Spoken
from myxtts.hearing.text_errors import character_errors, word_errors

GROUP = 4
"""Codes of an n-gram in the count of repetitions: a quarter of a second."""
MAX_RECOGNIZER_ERROR = 0.15
"""Largest CER on recordings at which a recognizer is used."""
Parts = Mapping[str, tuple[float, float]]
"""Numerator and denominator by metric; the value of several sentences is the ratio of their sums."""


@dataclass
class Tools:
    """Models that metrics need; None if missing."""

    recognizer: Recognizer | None = None
    encoder: Encoder | None = None
    dnsmos: DNSMOS | None = None

    @classmethod
    def find(cls, recognizer: str | None = None, speaker_encoder: str | None = None) -> "Tools":
        """Opens the tools that are named or installed."""
        return cls(recognizer and open_recognizer(recognizer), find_encoder(speaker_encoder), DNSMOS.load())


@dataclass
class Measured:
    """A spoken sentence with its metrics."""

    spoken: Spoken
    parts: Parts
    understood: str | None = None
    """Text of the recognizer."""
    seconds: float = 0.0

    def __post_init__(self):
        self.seconds = len(self.spoken.samples) / self.spoken.sample_rate

    def without_samples(self) -> "Measured":
        """Drops the samples, about 1 MB, and returns itself."""
        self.spoken = replace(self.spoken, samples=self.spoken.samples[:0])
        return self


@dataclass
class Measurer:
    """Computes the metrics of spoken sentences; reference recordings are analyzed once."""

    tools: Tools
    _contours: dict[str, Contour] = field(default_factory=dict)
    _voices: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, spoken: Spoken) -> Measured:
        """Computes all metrics that the tools allow."""
        sentence, tools, understood = spoken.sentence, self.tools, None
        contour = contour_of(spoken.samples, spoken.sample_rate)
        median_hz, spread_semitones, voiced_share = pitch_figures(contour)
        found = {"voiced": voiced_share, "pauses": contour.longest_pause > 1.0}
        found |= {"f0_median": median_hz, "f0_spread": spread_semitones}
        if sentence.recording:
            if sentence.id not in self._contours:
                self._contours[sentence.id] = contour_of(load_samples(sentence.recording), MODEL_SAMPLE_RATE)
            recorded = self._contours[sentence.id]
            distortion, f0_rmse = differences(contour, recorded)
            found |= {"mcd": distortion, "length": (contour.seconds, recorded.seconds), "f0_rmse": f0_rmse}
        if spoken.codes is not None and len(spoken.codes) >= GROUP:
            found["repeated"] = repeated_groups(spoken.codes)
        found["limit"] = None if spoken.stopped is None else not spoken.stopped
        found["doubtful"] = None if spoken.doubts is None else bool(spoken.doubts)
        if tools.recognizer:
            understood = tools.recognizer(spoken.samples, spoken.sample_rate, sentence.language)
            for name, count in (("cer", character_errors), ("wer", word_errors)):
                errors, expected = count(sentence.text, understood, sentence.language)
                found[name] = (errors, expected) if expected else None
        if tools.dnsmos:
            scores = tools.dnsmos(spoken.samples, spoken.sample_rate)
            found |= {f"dnsmos_{name}": score for name, score in scores._asdict().items()}
        if tools.encoder:
            found["similarity"] = self._similarity(spoken)
        known = {name: one for name, one in found.items() if one is not None}
        parts = {name: one if isinstance(one, tuple) else (float(one), 1.0) for name, one in known.items()}
        return Measured(spoken, parts, understood)

    def similarity_of_strangers(self, sentences: Iterable[Sentence]) -> float | None:
        """Returns the mean speaker similarity between voices of different speakers used so far; None without any."""
        speakers = {one.voice: one.speaker for one in sentences if one.voice in self._voices}
        pairs = [
            float(self._voices[a] @ self._voices[b])
            for a, b in itertools.combinations(speakers, 2)
            if speakers[a] != speakers[b]
        ]
        return float(np.mean(pairs)) if pairs else None

    def _similarity(self, spoken):
        one = spoken.sentence
        if not one.voice or (one.voice == one.recording and spoken.doubts is None):
            return None  # the recording itself or its resynthesis
        if one.voice not in self._voices:
            self._voices[one.voice] = self.tools.encoder(load_samples(one.voice), MODEL_SAMPLE_RATE)
        return float(self._voices[one.voice] @ self.tools.encoder(spoken.samples, spoken.sample_rate))


def repeated_groups(codes: np.ndarray) -> tuple[float, float]:
    """Returns the number of repeated n-grams of `GROUP` codes, and the number of all."""
    groups = np.lib.stride_tricks.sliding_window_view(np.asarray(codes), GROUP)
    return float(len(groups) - len(np.unique(groups, axis=0))), float(len(groups))


def pooled(sentences: Iterable[Parts], name: str) -> float | None:
    """Returns the value of a metric over several sentences; None if none has it."""
    pairs = np.array([parts[name] for parts in sentences if name in parts], np.float64)
    return float(pairs[:, 0].sum() / pairs[:, 1].sum()) if len(pairs) else None


def is_usable(cer_on_recordings: float | None) -> bool:
    """Tells whether a recognizer's CER on recordings is low enough; an unknown one is."""
    return cer_on_recordings is None or cer_on_recordings <= MAX_RECOGNIZER_ERROR


def ends_well(limit: float | None, length: float | None) -> bool:
    """Tells whether at most 2 % of sentences reach the length limit and speech has 75 % of the recordings' length.

    Shorter speech would hide recognition errors. None means unknown.
    """
    return (limit is None or limit <= 0.02) and (length is None or length >= 0.75)

"""Measures one spoken sentence, and sums up sentences."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
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
"""Codes of which repetitions are counted: a quarter of a second."""
MAX_RECOGNIZER_ERROR = 0.15
"""Share of wrong characters on recordings above which a recognizer's figures are not used."""
Parts = Mapping[str, tuple[float, float]]
"""By name of a metric: part and whole. The figure of several sentences is the sum of parts over the sum of wholes."""


@dataclass
class Tools:
    """Recognizer, speaker encoder and DNSMOS; None for what is missing."""

    recognizer: Recognizer | None = None
    encoder: Encoder | None = None
    dnsmos: DNSMOS | None = None

    @classmethod
    def find(cls, recognizer: str | None = None, speaker_encoder: str | None = None) -> "Tools":
        """The tools that are named, or installed."""
        return cls(recognizer and open_recognizer(recognizer), find_encoder(speaker_encoder), DNSMOS.load())


@dataclass
class Measured:
    """A spoken sentence with its measurements."""

    spoken: Spoken
    parts: Parts
    understood: str | None = None
    seconds: float = 0.0

    def __post_init__(self):
        self.seconds = len(self.spoken.samples) / self.spoken.sample_rate

    def without_samples(self) -> "Measured":
        """Itself, without the samples: those of some hundred sentences take as many megabytes."""
        self.spoken = replace(self.spoken, samples=self.spoken.samples[:0])
        return self


@dataclass
class Measurer:
    """Measures spoken sentences; analyzes each recording that they are compared with once."""

    tools: Tools
    _contours: dict[str, Contour] = field(default_factory=dict)
    _voices: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, spoken: Spoken) -> Measured:
        """Measures all that the tools allow."""
        parts, understood = dict(self._signal(spoken)) | dict(_delivery(spoken)), None
        if self.tools.recognizer:
            one = spoken.sentence
            understood = self.tools.recognizer(spoken.samples, spoken.sample_rate, one.language)
            errors = {"cer": character_errors, "wer": word_errors}
            found = {name: count(one.text, understood, one.language) for name, count in errors.items()}
            parts |= {name: pair for name, pair in found.items() if pair[1]}  # a text without letters has no errors
        if self.tools.dnsmos:
            scores = self.tools.dnsmos(spoken.samples, spoken.sample_rate)
            parts |= {f"dnsmos_{name}": (score, 1.0) for name, score in scores._asdict().items()}
        if self.tools.encoder and (value := self._similarity(spoken)) is not None:
            parts["similarity"] = (value, 1.0)
        return Measured(spoken, parts, understood)

    def similarity_of_strangers(self, sentences: Iterable[Sentence]) -> float | None:
        """Mean similarity of recordings of different speakers, of the voices that were compared with so far."""
        speakers = {one.voice: one.speaker for one in sentences if one.voice in self._voices}
        pairs = [
            float(self._voices[a] @ self._voices[b])
            for a, b in itertools.combinations(speakers, 2)
            if speakers[a] != speakers[b]
        ]
        return float(np.mean(pairs)) if pairs else None

    def _signal(self, spoken) -> Iterator[tuple[str, tuple[float, float]]]:
        """Figures of the audio alone, and in comparison with the recording."""
        contour, sentence = contour_of(spoken.samples, spoken.sample_rate), spoken.sentence
        pitch = pitch_figures(contour)
        yield "voiced", (pitch.voiced_share, 1.0)
        yield "pauses", (float(contour.longest_pause > 1.0), 1.0)
        if pitch.median_hz is not None:
            yield "f0_median", (pitch.median_hz, 1.0)
            yield "f0_spread", (pitch.spread_semitones, 1.0)
        if sentence.recording:
            if sentence.id not in self._contours:
                self._contours[sentence.id] = contour_of(load_samples(sentence.recording), MODEL_SAMPLE_RATE)
            recorded = self._contours[sentence.id]
            distortion, rmse = differences(contour, recorded)
            yield "mcd", (distortion, 1.0)
            yield "length", (contour.seconds, recorded.seconds)
            if rmse is not None:
                yield "f0_rmse", (rmse, 1.0)

    def _similarity(self, spoken):
        one = spoken.sentence
        if not one.voice or (one.voice == one.recording and spoken.doubts is None):
            return None  # what was not sampled from the text would be compared with itself
        if one.voice not in self._voices:
            self._voices[one.voice] = self.tools.encoder(load_samples(one.voice), MODEL_SAMPLE_RATE)
        return float(self._voices[one.voice] @ self.tools.encoder(spoken.samples, spoken.sample_rate))


def _delivery(spoken):
    """Figures of the codes."""
    if spoken.codes is not None and len(spoken.codes) >= GROUP:
        yield "repeated", repeated_groups(spoken.codes)
    if spoken.stopped is not None:
        yield "limit", (float(not spoken.stopped), 1.0)
    if spoken.doubts is not None:
        yield "doubtful", (float(bool(spoken.doubts)), 1.0)


def repeated_groups(codes: np.ndarray) -> tuple[float, float]:
    """How many groups of `GROUP` codes in a row came before in the sentence, and how many there are."""
    groups = np.lib.stride_tricks.sliding_window_view(np.asarray(codes), GROUP)
    return float(len(groups) - len(np.unique(groups, axis=0))), float(len(groups))


def pooled(sentences: Iterable[Parts], name: str) -> float | None:
    """One figure of several sentences, a ratio; None if none of them has it."""
    pairs = np.array([parts[name] for parts in sentences if name in parts], np.float64)
    return float(pairs[:, 0].sum() / pairs[:, 1].sum()) if len(pairs) else None


def is_usable(cer_on_recordings: float | None) -> bool:
    """Whether a recognizer errs seldom enough on recordings, as a share of their characters; unknown counts as yes."""
    return cer_on_recordings is None or cer_on_recordings <= MAX_RECOGNIZER_ERROR


def ends_well(limit: float | None, length: float | None) -> bool:
    """Whether sentences end by themselves and do not break off: by the `limit` and `length` figures, if known.

    At most 2 % may run into the limit. Speech under 75 % of the recordings' length hides wrong characters.
    """
    return (limit is None or limit <= 0.02) and (length is None or length >= 0.75)

"""What is measured of one spoken sentence."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from myxtts.audio.files import load_samples
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.hearing import dnsmos
from myxtts.hearing.contours import Contour, differences, listen, pitch_figures
from myxtts.hearing.dnsmos import DNSMOS
from myxtts.hearing.recognizers import Recognizer, open_recognizer
from myxtts.hearing.sentences import Sentence
from myxtts.hearing.sources import Spoken
from myxtts.hearing.speaker_similarity import HOW_TO_GET, Encoder, find_encoder
from myxtts.hearing.text_errors import character_errors, word_errors

LONG_PAUSE_SECONDS = 1.0
GROUP = 4
"""Codes of which repetitions are counted: a quarter of a second."""
MISSING = {
    "recognizer": "--recognizer FOLDER of a Whisper model, or a command",
    "encoder": HOW_TO_GET,
    "dnsmos": dnsmos.HOW_TO_GET,
    "recordings": "sentences of a data set with recordings: --data FOLDER",
}
"""How to get what a figure needs."""
Parts = dict[str, tuple[float, float]]
"""By name of a metric: part and whole."""


@dataclass
class Tools:
    """What listens; None where it is not there."""

    recognizer: Recognizer | None = None
    encoder: Encoder | None = None
    dnsmos: DNSMOS | None = None

    @classmethod
    def find(cls, recognizer: str | None = None, speaker_encoder: str | None = None) -> "Tools":
        """What is named, or installed."""
        return cls(recognizer and open_recognizer(recognizer), find_encoder(speaker_encoder), DNSMOS.load())


@dataclass
class Judged:
    """A spoken sentence with what is measured of it."""

    spoken: Spoken
    parts: Parts
    understood: str | None = None
    seconds: float = 0.0

    def __post_init__(self):
        self.seconds = len(self.spoken.samples) / self.spoken.sample_rate

    def forget_sound(self) -> "Judged":
        """Itself, without the samples: those of some hundred sentences take as many megabytes."""
        self.spoken = replace(self.spoken, samples=self.spoken.samples[:0])
        return self


@dataclass
class Judge:
    """Measures spoken sentences; what it needs of recordings it hears once."""

    tools: Tools
    _contours: dict[str, Contour] = field(default_factory=dict)
    _voices: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, spoken: Spoken) -> Judged:
        """All that can be measured of a sentence."""
        parts, contour = dict(delivery(spoken)), listen(spoken.samples, spoken.sample_rate)
        parts |= self._heard(spoken, contour)
        understood = None
        if self.tools.recognizer:
            one = spoken.sentence
            understood = self.tools.recognizer(spoken.samples, spoken.sample_rate, one.language)
            parts["cer"] = character_errors(one.text, understood, one.language)
            parts["wer"] = word_errors(one.text, understood, one.language)
            for name in ("cer", "wer"):
                if not parts[name][1]:  # nothing that could be heard was to be said
                    del parts[name]
        if self.tools.dnsmos:
            scores = self.tools.dnsmos(spoken.samples, spoken.sample_rate)
            parts |= {f"dnsmos_{name}": (score, 1.0) for name, score in scores._asdict().items()}
        if self.tools.encoder and (value := self._likeness(spoken)) is not None:
            parts["similarity"] = (value, 1.0)
        return Judged(spoken, parts, understood)

    def strangers(self, sentences: Iterable[Sentence]) -> float | None:
        """Mean likeness of recordings of different speakers, as far as voices were listened to."""
        speakers = {one.voice: one.speaker for one in sentences if one.voice in self._voices}
        pairs = [
            float(self._voices[a] @ self._voices[b])
            for a, b in itertools.combinations(speakers, 2)
            if speakers[a] != speakers[b]
        ]
        return float(np.mean(pairs)) if pairs else None

    def _heard(self, spoken, contour):
        pitch = pitch_figures(contour)
        found = {"voiced": pitch.voiced_share, "pauses": float(contour.longest_pause > LONG_PAUSE_SECONDS)}
        found |= {"f0_median": pitch.median_hz, "f0_spread": pitch.spread_semitones}
        parts = {name: (value, 1.0) for name, value in found.items() if value is not None}
        if spoken.sentence.recording and spoken.sentence.id not in self._contours:
            self._contours[spoken.sentence.id] = listen(load_samples(spoken.sentence.recording), MODEL_SAMPLE_RATE)
        recorded = self._contours.get(spoken.sentence.id)
        if recorded is not None:
            distortion, rmse = differences(contour, recorded)
            parts["mcd"], parts["length"] = (distortion, 1.0), (contour.seconds, recorded.seconds)
            parts |= {} if rmse is None else {"f0_rmse": (rmse, 1.0)}
        return parts

    def _likeness(self, spoken):
        one = spoken.sentence
        if not one.voice or (one.voice == one.recording and spoken.doubts is None):
            return None  # what was not drawn from the text would be compared with itself
        if one.voice not in self._voices:
            self._voices[one.voice] = self.tools.encoder(load_samples(one.voice), MODEL_SAMPLE_RATE)
        return float(self._voices[one.voice] @ self.tools.encoder(spoken.samples, spoken.sample_rate))


def delivery(spoken: Spoken) -> Iterator[tuple[str, tuple[float, float]]]:
    """What the codes show."""
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

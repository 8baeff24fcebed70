"""Speech of an evaluation: sentences, their synthesis and metrics, and pitch and mel cepstra of recordings."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import scipy.fft
import soxr

from myxtts.audio.files import load_samples, read_audio
from myxtts.audio.mel import MelSpec, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.hearing.networks import DNSMOS, Encoder, find_encoder
from myxtts.hearing.recognizers import Recognizer, character_errors, open_recognizer, word_errors
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)

BATCH_SIZE = 16
"""Sentences of a synthesis batch."""
HOP_SAMPLES = 220
"""10 ms at `MODEL_SAMPLE_RATE`."""
_MEL = MelSpec(MODEL_SAMPLE_RATE, n_fft=1024, win_length=1024, hop_length=HOP_SAMPLES, num_mels=NUM_MELS)
GROUP = 4
"""Codes of an n-gram in the count of repetitions: a quarter of a second."""
MAX_RECOGNIZER_ERROR = 0.15
"""Largest CER on recordings at which a recognizer is used."""
Parts = Mapping[str, tuple[float, float]]
"""Numerator and denominator by metric; the value of several sentences is the ratio of their sums."""


@dataclass(frozen=True)
class Sentence:
    """A text with a voice and, if there is one, a recording."""

    id: str
    text: str
    language: str
    speaker: str = ""
    voice: str | None = None
    """Reference recording of the voice; None for existing speech."""
    recording: str | None = None
    """Recording of the text by the speaker."""
    seen: bool | None = None
    """Whether the training set has the speaker; None if unknown."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """Speech of a sentence: one synthesis, or a recording."""

    sentence: Sentence
    seed: int
    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    codes: np.ndarray | None = None
    """`(C,)` int32; None for a recording."""
    stopped: bool | None = None
    """Whether the model ended it; None if it was not sampled."""
    doubts: tuple[str, ...] | None = None
    """Findings of the self-check; None if it was not sampled."""


def spread(items: Sequence, count: int) -> list:
    """Returns at most `count` items at equal distances."""
    if len(items) <= count:
        return list(items)
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, count).round()]


def voice_of(synthesizer: Synthesizer, sentence: Sentence) -> Voice:
    """Encodes the voice of a sentence."""
    if not sentence.voice:
        raise UserError(f"{sentence.id} has no voice. Give --voices FILE… or --data.")
    # From an array, because short references were reported when they were chosen.
    return synthesizer.as_voice(read_audio(sentence.voice, MODEL_SAMPLE_RATE).samples)


def speak_all(synthesizer: Synthesizer, sentences: Sequence[Sentence], seeds: Sequence[int]) -> Iterator[Spoken]:
    """Speaks the sentences with each seed in batches; texts that the model cannot speak are skipped with a warning."""
    able = []
    for one in sentences:
        try:
            synthesizer.text_front.pieces(one.text, one.language)
            able.append(one)
        except SpeechError as error:
            logger.warning("%s It is skipped.", error)
    for start in range(0, len(able), BATCH_SIZE):
        some = able[start : start + BATCH_SIZE]
        voices = [voice_of(synthesizer, one) for one in some]
        texts, languages = [one.text for one in some], [one.language for one in some]
        for seed in seeds:
            for one, speech in zip(some, synthesizer.batch(texts, voices, languages, seed=seed), strict=True):
                doubts = tuple(dict.fromkeys(doubt for found in speech.doubts.values() for doubt in found))
                yield Spoken(one, seed, speech.samples, speech.sample_rate, speech.codes, speech.stopped, doubts)


class Contour(NamedTuple):
    """Frame features of a recording without the silence at its ends."""

    cepstra: np.ndarray
    """Mel cepstra, `(F, 24)`, 10 ms per frame."""
    f0: np.ndarray
    """Pitch in Hz, `(F,)`; 0 in unvoiced frames."""
    seconds: float
    longest_pause: float
    """Longest silence inside, in seconds."""


def contour_of(samples: np.ndarray, sample_rate: int) -> Contour:
    """Analyzes `(S,)` float32 samples; a silent recording becomes one frame."""
    import librosa  # takes a second or two

    sound = np.asarray(samples, np.float32)
    sound = sound if sample_rate == MODEL_SAMPLE_RATE else soxr.resample(sound, sample_rate, MODEL_SAMPLE_RATE)
    sound = np.pad(sound, (0, max(0, _MEL.win_length - len(sound))))
    log_mel = np.asarray(MelSpectrogram(_MEL)(sound[None]))[0]
    rms = librosa.feature.rms(y=sound, frame_length=2 * HOP_SAMPLES, hop_length=HOP_SAMPLES)[0, : len(log_mel)]
    # Frames 40 dB below the loudest one or below a fixed level are silent.
    loud = np.flatnonzero(rms > max(rms.max() / 100, 5e-5))
    first, last = (loud[0], loud[-1]) if len(loud) else (0, 0)
    # Probabilistic YIN (Mauch and Dixon 2014).
    options = dict(sr=MODEL_SAMPLE_RATE, frame_length=_MEL.win_length, hop_length=HOP_SAMPLES, fill_na=0.0)
    f0 = librosa.pyin(sound, fmin=60.0, fmax=500.0, **options)[0][first : last + 1]
    seconds, pause = np.array([last + 1 - first, max(np.diff(loud), default=1) - 1]) * HOP_SAMPLES / MODEL_SAMPLE_RATE
    # Cosine transform of the log amplitude over the mel bands without coefficient 0, the level.
    log_amplitude = 0.5 * log_mel[first : last + 1].astype(np.float64)
    cepstra = scipy.fft.dct(log_amplitude, type=2, axis=1)[:, 1:25] / log_mel.shape[1]
    return Contour(cepstra, f0, float(seconds), float(pause))


def pitch_figures(contour: Contour) -> tuple[float | None, float | None, float]:
    """Returns the median pitch in Hz, its deviation in semitones (None if unvoiced), and the share of voiced frames."""
    voiced = contour.f0[contour.f0 > 0]
    if not len(voiced):
        return None, None, 0.0
    return float(np.median(voiced)), float(np.std(12 * np.log2(voiced))), len(voiced) / len(contour.f0)


def differences(spoken: Contour, recorded: Contour) -> tuple[float, float | None]:
    """Returns mel-cepstral distortion in dB and F0 RMSE in semitones between recordings of a text, aligned by DTW.

    The distortion is Kubichek's (1993), the mean over the path of `10 / ln 10 * sqrt(2 * sum of squared differences)`
    of coefficients 1 to 24. The cepstra come from an 80-band log-mel spectrogram, not SPTK's all-pass warped spectrum,
    so values compare with each other only. F0 counts frames where both are voiced; it is None if there are none.
    """
    import librosa

    totals, path = librosa.sequence.dtw(spoken.cepstra.T, recorded.cepstra.T, metric="euclidean")
    ours, theirs = spoken.f0[path[:, 0]], recorded.f0[path[:, 1]]
    both = (ours > 0) & (theirs > 0)
    rmse = float(np.sqrt(np.mean((12 * np.log2(ours[both] / theirs[both])) ** 2))) if both.any() else None
    return float(10 * np.sqrt(2) / np.log(10) * totals[-1, -1] / len(path)), rmse


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
    """Whether a recognizer's CER on recordings is low enough to rely on it, or unknown (None)."""
    return cer_on_recordings is None or cer_on_recordings <= MAX_RECOGNIZER_ERROR


def ends_well(limit: float | None, length: float | None) -> bool:
    """Tells whether at most 2 % of sentences reach the length limit and speech has 75 % of the recordings' length.

    Shorter speech would hide recognition errors. None means unknown.
    """
    return (limit is None or limit <= 0.02) and (length is None or length >= 0.75)

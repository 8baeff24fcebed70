"""Evaluation of speech: the sentences to test, their synthesis, and metrics of the resulting audio."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.fft
import soxr

from myxtts.audio.files import load_samples, read_audio
from myxtts.audio.mel import MelSpec, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.hearing.networks import DNSMOS, Encoder, import_librosa
from myxtts.hearing.recognizers import Recognizer, recognition_errors
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)

BATCH_SIZE = 16
HOP_SAMPLES = 220
"""Samples between the frames of a `Contour`, about 10 ms at `MODEL_SAMPLE_RATE`."""
_MEL = MelSpec(MODEL_SAMPLE_RATE, n_fft=1024, win_length=1024, hop_length=HOP_SAMPLES, num_mels=NUM_MELS)
GROUP = 4
"""Length of the n-grams of the repetition metric, in codes; about 0.2 s of audio."""
MAX_RECOGNIZER_ERROR = 0.15
"""Highest CER on recordings at which a recognizer is considered accurate enough to evaluate synthesized speech."""
Parts = dict[str, tuple[float, float]]
"""Metrics by name, each as (numerator, denominator). `pooled` sums numerators and denominators, then divides."""


@dataclass(frozen=True)
class Sentence:
    """A test sentence: its text, the voice to speak it with, and a recording of the text (optional)."""

    id: str
    text: str
    language: str
    speaker: str = ""
    voice: str | None = None
    """Path of a reference recording of the voice; None if the sentence is not synthesized."""
    recording: str | None = None
    """Path of a recording of the text by the same speaker, or None."""
    seen: bool | None = None
    """Whether the speaker is in the training set; None if unknown."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """Audio of a test sentence: synthesized, recorded, or resynthesized (decoded from the codes of a recording)."""

    sentence: Sentence
    seed: int
    samples: np.ndarray
    """Audio, `(S,)` float32."""
    sample_rate: int
    codes: np.ndarray | None = None
    """Audio codes that the audio was decoded from, `(C,)` int32; None for audio from a file."""
    stopped: bool | None = None
    """Whether the model ended the sentence with a stop token; None for resynthesis and audio from a file."""
    doubts: tuple[str, ...] | None = None
    """Names of the faults that the self-check found; None for resynthesis and audio from a file."""


def spread(items: Sequence, count: int) -> list:
    """Returns `count` evenly spaced items of a sequence, or all items if the sequence has fewer than `count`."""
    return [items[int(index)] for index in np.linspace(0, len(items) - 1, min(count, len(items))).round()]


def voice_of(synthesizer: Synthesizer, sentence: Sentence) -> Voice:
    """Returns the voice of a sentence, encoded from a recording. Raises `UserError` if the sentence has no voice."""
    if not sentence.voice:
        raise UserError(f"{sentence.id} has no voice. Give --voices FILE… or --data.")
    # An array, because `as_voice` would warn again about a short file.
    return synthesizer.as_voice(read_audio(sentence.voice).samples)


def speak_all(synthesizer: Synthesizer, sentences: Sequence[Sentence], seeds: Sequence[int]) -> Iterator[Spoken]:
    """Yields speech for each sentence with each seed. Skips texts that the model cannot speak, and logs a warning."""
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
    """Spectral and pitch features of a recording per 10 ms frame, without the silence at its start and end."""

    cepstra: np.ndarray
    """Mel cepstral coefficients 1 to 24 of each frame, `(F, 24)`."""
    f0: np.ndarray
    """Pitch, `(F,)` in Hz; 0 in unvoiced frames."""
    seconds: float
    longest_pause: float
    """Duration of the longest silence between the first and the last word, in seconds."""


def contour_of(samples: np.ndarray, sample_rate: int) -> Contour:
    """Computes the `Contour` of `(S,)` float32 samples. The result has one frame if the audio is silent."""
    librosa = import_librosa()
    audio = soxr.resample(np.asarray(samples, np.float32), sample_rate, MODEL_SAMPLE_RATE)
    audio = np.pad(audio, (0, max(0, _MEL.win_length - len(audio))))
    log_mel = np.asarray(MelSpectrogram(_MEL)(audio[None]))[0]
    rms = librosa.feature.rms(y=audio, frame_length=2 * HOP_SAMPLES, hop_length=HOP_SAMPLES)[0, : len(log_mel)]
    # Frames 40 dB below the loudest one or below a fixed level are silent.
    loud = np.flatnonzero(rms > max(rms.max() / 100, 5e-5))
    first, last = (loud[0], loud[-1]) if len(loud) else (0, 0)
    # Probabilistic YIN (Mauch and Dixon 2014).
    options = dict(sr=MODEL_SAMPLE_RATE, frame_length=_MEL.win_length, hop_length=HOP_SAMPLES, fill_na=0.0)
    f0 = librosa.pyin(audio, fmin=60.0, fmax=500.0, **options)[0][first : last + 1]
    pause = (max(np.diff(loud), default=1) - 1) * HOP_SAMPLES / MODEL_SAMPLE_RATE
    # Cosine transform of the log amplitudes of the mel bands, without coefficient 0, which is the level.
    log_amplitude = 0.5 * log_mel[first : last + 1].astype(np.float64)
    cepstra = scipy.fft.dct(log_amplitude, type=2, axis=1)[:, 1:25] / log_mel.shape[1]
    return Contour(cepstra, f0, float((last + 1 - first) * HOP_SAMPLES / MODEL_SAMPLE_RATE), float(pause))


def pitch_figures(contour: Contour) -> tuple[float | None, float | None, tuple[int, int]]:
    """Returns the median (Hz) and standard deviation (semitones) of F0, and the numbers of voiced and of all frames.
    If no frame is voiced, the median and the standard deviation are None."""
    voiced = contour.f0[contour.f0 > 0]
    if not len(voiced):
        return None, None, (0, len(contour.f0))
    return float(np.median(voiced)), float(np.std(12 * np.log2(voiced))), (len(voiced), len(contour.f0))


def differences(spoken: Contour, recorded: Contour) -> tuple[float, float | None]:
    """Returns mel-cepstral distortion (dB) and F0 RMSE (semitones) of speech against a recording, aligned by DTW.

    The RMSE covers the frames that are voiced in both contours; without such frames, it is None. The distortion
    (Kubichek 1993) uses log-mel cepstra, not a warped spectrum, so it is not comparable with other implementations.
    """
    import librosa

    totals, path = librosa.sequence.dtw(spoken.cepstra.T, recorded.cepstra.T, metric="euclidean")
    ours, theirs = spoken.f0[path[:, 0]], recorded.f0[path[:, 1]]
    both = (ours > 0) & (theirs > 0)
    rmse = float(np.sqrt(np.mean((12 * np.log2(ours[both] / theirs[both])) ** 2))) if both.any() else None
    return float(10 * np.sqrt(2) / np.log(10) * totals[-1, -1] / len(path)), rmse


@dataclass
class Measured:
    """The audio of a test sentence with the metrics computed from it."""

    spoken: Spoken
    parts: Parts
    understood: str | None = None
    """Text that the recognizer returned; None if there is no recognizer."""
    seconds: float = 0.0


@dataclass
class Measurer:
    """Computes the metrics of spoken sentences. Skips a metric if the `recognizer`, `encoder` or `dnsmos` that it
    requires is None. Caches the features of recordings and of reference voices."""

    recognizer: Recognizer | None = None
    encoder: Encoder | None = None
    dnsmos: DNSMOS | None = None
    _contours: dict[str, Contour] = field(default_factory=dict)
    _voices: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, spoken: Spoken) -> Measured:
        """Computes all metrics whose models and recordings are available."""
        sentence, understood = spoken.sentence, None
        contour = contour_of(spoken.samples, spoken.sample_rate)
        median, deviation, voiced = pitch_figures(contour)
        found = {"voiced": voiced, "pauses": contour.longest_pause > 1.0, "f0_median": median, "f0_spread": deviation}
        if sentence.recording:
            if sentence.id not in self._contours:
                self._contours[sentence.id] = contour_of(load_samples(sentence.recording), MODEL_SAMPLE_RATE)
            recorded = self._contours[sentence.id]
            distortion, f0_rmse = differences(contour, recorded)
            found |= {"mcd": distortion, "length": (contour.seconds, recorded.seconds), "f0_rmse": f0_rmse}
        found["limit"] = None if spoken.stopped is None else not spoken.stopped
        found["doubtful"] = None if spoken.doubts is None else bool(spoken.doubts)
        if self.recognizer:
            understood = self.recognizer(spoken.samples, spoken.sample_rate, sentence.language)
            errors = recognition_errors(sentence.text, understood, sentence.language)
            found |= {name: one if one[1] else None for name, one in errors.items()}
        if self.dnsmos:
            found |= {f"dnsmos_{name}": one for name, one in self.dnsmos(spoken.samples, spoken.sample_rate).items()}
        is_reference = sentence.voice == sentence.recording and spoken.doubts is None  # or its resynthesis
        if self.encoder and sentence.voice and not is_reference:
            if sentence.voice not in self._voices:
                self._voices[sentence.voice] = self.encoder(load_samples(sentence.voice), MODEL_SAMPLE_RATE)
            found["similarity"] = self._voices[sentence.voice] @ self.encoder(spoken.samples, spoken.sample_rate)
        parts = {name: x if isinstance(x, tuple) else (float(x), 1.0) for name, x in found.items() if x is not None}
        return Measured(spoken, parts, understood, len(spoken.samples) / spoken.sample_rate)

    def similarity_of_strangers(self, sentences: Iterable[Sentence]) -> float | None:
        """Returns the mean similarity between reference voices of different speakers, as a baseline for the metric
        `similarity`. Uses the voices that `__call__` has encoded. Returns None if there are fewer than two speakers."""
        speakers = {one.voice: one.speaker for one in sentences if one.voice in self._voices}
        pairs = itertools.combinations(speakers, 2)
        found = [float(self._voices[a] @ self._voices[b]) for a, b in pairs if speakers[a] != speakers[b]]
        return float(np.mean(found)) if found else None


def repeated_groups(codes: np.ndarray | None) -> tuple[float, float] | None:
    """Counts the n-grams of `GROUP` consecutive codes in `codes`, `(C,)`. Returns the number of n-grams that repeat an
    earlier n-gram, and the number of all n-grams. Returns None if `codes` is None or has fewer than `GROUP` codes."""
    if codes is None or len(codes) < GROUP:
        return None
    groups = np.lib.stride_tricks.sliding_window_view(np.asarray(codes), GROUP)
    return float(len(groups) - len(np.unique(groups, axis=0))), float(len(groups))


def pooled(sentences: Iterable[Parts], name: str) -> float | None:
    """Pools metric `name` over sentences: sum of numerators / sum of denominators; None if no sentence has it."""
    pairs = np.array([parts[name] for parts in sentences if name in parts], np.float64)
    return float(pairs[:, 0].sum() / pairs[:, 1].sum()) if len(pairs) else None


def is_usable(cer_on_recordings: float | None) -> bool:
    """Returns whether a recognizer is accurate enough to evaluate speech. True if its CER is unknown (None)."""
    return cer_on_recordings is None or cer_on_recordings <= MAX_RECOGNIZER_ERROR


def ends_well(limit: float | None, length: float | None) -> bool:
    """Returns whether a model usually ends its sentences properly, rather than rambling on or stopping early.

    `limit` is the fraction of sentences that reach the length limit; up to 0.02 is good. `length` is the duration
    relative to recordings; 0.75 or more is good. None stands for an unknown value, which is not checked."""
    return (limit is None or limit <= 0.02) and (length is None or length >= 0.75)

"""Inputs and results of synthesis: voices, and speech with its codes and times. Imports no TensorFlow."""

import base64
import html
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from myxtts.audio.encoding import SoundEncoder, write_audio
from myxtts.config.checks import UserError, brief, require
from myxtts.config.config import SamplingConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE
from myxtts.storage.checkpoint import StoredTensors, write_tensors
from myxtts.storage.files import CheckpointError, refusing_unwritable

VOICE_SUFFIX = ".voice"
"""Suffix of files that `Voice.save` writes."""


class SpeechError(UserError):
    """Error for a text, language or voice that the model cannot speak."""


@dataclass(frozen=True, eq=False)
class Voice:
    """Encoded voice of a speaker, computed by the encoders of one model and valid for that model only."""

    latents: np.ndarray
    """Conditioning latents for the GPT, `(1, num_latents, width)` float32."""
    speaker: np.ndarray | None
    """Speaker vector for the waveform decoder, `(1, speaker_width)` float32; None if there is no speaker encoder."""

    def save(self, path: str | Path) -> None:
        """Saves the voice to a file. Raises `UserError` if the suffix is not `VOICE_SUFFIX` or writing fails."""
        require(Path(path).suffix == VOICE_SUFFIX, "A file for a voice", f"named *{VOICE_SUFFIX}", path)
        with refusing_unwritable(path):
            write_tensors(path, {"latents": self.latents} | ({} if self.speaker is None else {"speaker": self.speaker}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Loads a file written by `save`. Raises `CheckpointError` if the file is missing, damaged or not a voice."""
        stored = StoredTensors(path)
        if not {"latents"} <= set(stored) <= {"latents", "speaker"}:
            raise CheckpointError(f"{path} is not a voice. Write one with `Voice.save`.")
        arrays = {name: array.astype(np.float32) for name, array in stored.items()}
        return cls(arrays["latents"], arrays.get("speaker"))

    def checked(self, where: object, *shapes: tuple[int, ...]) -> Self:
        """Returns `self`. Raises `SpeechError` if an array is not finite or has a wrong shape. `shapes` contains the
        correct shape of `latents` and, optionally, of `speaker`. Error messages begin with `where`."""
        arrays = [self.latents, self.speaker][: len(shapes)]
        if [np.shape(array) for array in arrays] != [*shapes]:
            raise SpeechError(f"{where} is a voice of another model. Create it with this model from recordings.")
        if not all(np.isfinite(array).all() for array in arrays):
            raise SpeechError(f"{where} is a voice with NaN or infinity. Create it again from recordings.")
        return self

    @classmethod
    def blend(cls, voices: Sequence[Self], weights: Sequence[float] | None = None) -> Self:
        """Averages voices of one model. `weights` need not sum to 1; None weights all voices equally."""
        shares = np.ones(len(voices)) if weights is None else np.array(weights, np.float64)
        fits = len(voices) == len(shares) > 0 and shares.min() >= 0 < shares.max() < np.inf
        require(fits, "weights", "finite, at least 0 for each voice, not all 0", f"{weights} for {len(voices)} voices")
        if len({(voice.latents.shape, np.shape(voice.speaker)) for voice in voices}) > 1:
            raise UserError("The voices of a blend must be from one model. These have different shapes.")
        mean = lambda arrays: np.average(list(arrays), axis=0, weights=shares / shares.max()).astype(np.float32)
        speaker = None if voices[0].speaker is None else mean(voice.speaker for voice in voices)
        return cls(mean(voice.latents for voice in voices), speaker)


class Manner(NamedTuple):
    """Voice and options for all sentences of a text. `max_codes` limits each sentence; 0 means the model's limit."""

    voice: Voice
    language: str
    sampling: SamplingConfig
    seed: int = 0
    speed: float = 1.0
    max_codes: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Verdict:
    """Result of the self-check of a sentence."""

    confidence: float = 1.0
    """Lowest score of all checks, 0 (certain fault) to 1 (no fault). The module `self_check` explains the scores."""
    reason: str = ""
    """Main cause of low confidence: the element of `doubts` with the lowest score; empty if `doubts` is empty."""
    doubts: tuple[str, ...] = ()
    """Causes of low confidence as phrases for users, such as `may be cut off`; empty if the confidence is not low."""
    is_calibrated: bool = False
    """Whether the scores include the probability that a speech recognizer understands the sentence (`Calibration`)."""


@dataclass(frozen=True, eq=False)
class SpokenPiece(Verdict):
    """Piece of a text (sentences or part of a sentence) that was synthesized as a unit, with its self-check result."""

    text: str
    start_seconds: float
    end_seconds: float
    """End of the piece, before the pause that follows. Like `start_seconds`, it counts from the start of the speech."""
    codes: np.ndarray = field(repr=False)
    """Audio codes, `(C,)` int32, without the stop code."""
    stopped: bool
    """Whether the model ended the piece with a stop code; if not, the audio was cut off at the limit of codes."""


class Spoken:
    """Base class of synthesized speech. Summarizes the codes and the self-check results of its `pieces`."""

    pieces: tuple[SpokenPiece, ...]

    @property
    def codes(self) -> np.ndarray:
        """Codes of all pieces, `(C,)` int32."""
        return np.concatenate([np.zeros(0, np.int32), *(piece.codes for piece in self.pieces)])

    @property
    def stopped(self) -> bool:
        """Whether all pieces ended with a stop code. If false, a piece was cut off at its maximum number of codes."""
        return all(piece.stopped for piece in self.pieces)

    @property
    def confidence(self) -> float:
        """Lowest confidence of all pieces, 0 to 1; 1 if there are no pieces."""
        return min((piece.confidence for piece in self.pieces), default=1.0)

    @property
    def reason(self) -> str:
        """Main fault of the piece with the lowest confidence. Empty if the self-check found no fault in any piece."""
        return min(((piece.confidence, piece.reason) for piece in self.pieces if piece.doubts), default=(1.0, ""))[1]

    @property
    def summary(self) -> str:
        """Result of the self-check in words, and the confidence as a number if the model is calibrated."""
        if all(piece.is_calibrated for piece in self.pieces):
            return f"confidence {self.confidence:.2f}" + (f" ({self.reason})" if self.reason else "")
        return f"possible fault: {self.reason}" if self.reason else "no fault found in the codes"

    @property
    def doubts(self) -> dict[str, tuple[str, ...]]:
        """Causes of low confidence, `{text of the piece: causes}`, for pieces with low confidence only."""
        return {piece.text: piece.doubts for piece in self.pieces if piece.doubts}

    def subtitles(self, web: bool = False) -> str:
        """Returns subtitles, with one entry per piece, in SubRip format (SRT) or, if `web` is true, as WebVTT."""
        blocks = []
        for number, piece in enumerate(self.pieces, 1):
            times = f"{_clock(piece.start_seconds)} --> {_clock(piece.end_seconds)}"
            text = " ".join(piece.text.split())
            times, text = (times.replace(",", "."), html.escape(text, quote=False)) if web else (times, text)
            blocks.append(f"{number}\n{times}\n{text}\n")
        return "WEBVTT\n\n" * web + "\n".join(blocks)


@dataclass(frozen=True, eq=False)
class Speech(Spoken):
    """Synthesized speech of one text: its audio and the pieces that it consists of."""

    samples: np.ndarray = field(repr=False)
    """Audio samples, `(S,)` float32."""
    sample_rate: int
    """Sample rate in Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
    pieces: tuple[SpokenPiece, ...]
    to_mel: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Function that decodes codes `(C,)` to a log-mel spectrogram `(4 C, num_mels)`; None if there is no DVAE."""

    @cached_property
    def mel(self) -> np.ndarray | None:
        """Log-mel spectrogram that the DVAE decodes from the codes, `(T, num_mels)`; None if there is no DVAE."""
        return None if self.to_mel is None else np.concatenate([self.to_mel(piece.codes) for piece in self.pieces])

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples) / self.sample_rate

    def _repr_html_(self) -> str:
        """Returns an HTML audio player, which notebooks display."""
        encoder = SoundEncoder("mp3", DECODER_SAMPLE_RATE, is_open=False, from_rate=self.sample_rate)
        content = base64.b64encode(encoder.add(self.samples) + encoder.end()).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio>'

    def save(self, path: str | Path, sample_rate: int | None = None) -> None:
        """Saves the audio as 16-bit WAV, 16-bit FLAC, MP3 or Ogg, depending on the suffix of `path`.

        Resamples to `sample_rate`, 8000 to 96 000 Hz; None keeps the rate. Raises `UserError` if the suffix or the rate
        is not allowed, or writing fails."""
        rate = self.sample_rate if sample_rate is None else sample_rate
        fits = isinstance(rate, int | np.integer) and 8000 <= rate <= 96000
        require(fits, "sample_rate", "a whole number from 8000 to 96000", brief(rate))
        with refusing_unwritable(path):
            write_audio(path, self.samples, rate, self.sample_rate)


def _clock(seconds):
    milliseconds = round(1000 * seconds)
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02},{milliseconds % 1000:03}"


def silence(seconds: float, sample_rate: int) -> np.ndarray:
    """Returns `seconds` of silence at `sample_rate` Hz, `(S,)` float32."""
    return np.zeros(int(seconds * sample_rate), np.float32)


WORD_GAP, COMMA_PAUSE = 0.6, 3.0
"""Durations of a word boundary and of a pause at punctuation, as multiples of the duration of a phoneme or letter."""


class Word(NamedTuple):
    """A spoken or recognized word with its start and end, in seconds from the first sample."""

    text: str
    start: float
    end: float


def word_times(
    samples: np.ndarray, sample_rate: int, text: str, length: Callable[[str], int], start_seconds: float = 0.0
) -> list[Word]:
    """Estimates when each word of a sentence is spoken; returns an empty list for silence.

    Divides the time between initial and final silence in proportion to word lengths (accuracy: docs/serving.md).

    Args:
        samples: Audio of the sentence, `(S,)`.
        length: Function that returns the length of a word in phonemes or letters; 0 for a word that is not spoken.
        start_seconds: Start of the sentence in the speech. This time is added to the times of all words.
    """
    words = [word for word in text.split() if length(word)]
    size = max(1, round(0.01 * sample_rate))  # frames of 10 ms
    level = np.sqrt((samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64) ** 2).mean(axis=1))
    if not words or not level.any():
        return []
    loud = np.flatnonzero(level > 0.05 * level.max()) * size / sample_rate
    is_pronounced = lambda word: unicodedata.category(word[-1])[0] in "LMN" or length(word[-1])  # M: vowel signs
    pauses = [*(0.0 if is_pronounced(word) else COMMA_PAUSE for word in words[:-1]), 0.0]
    lengths = np.array([[length(word) + WORD_GAP, pause] for word, pause in zip(words, pauses)]).ravel()
    shares = np.concatenate([[0.0], np.cumsum(lengths)]) / lengths.sum()
    rounded = np.round(start_seconds + np.interp(shares, [0, 1], [loud[0], loud[-1] + size / sample_rate]), 3).tolist()
    return [Word(*one) for one in zip(words, rounded[0::2], rounded[1::2])]

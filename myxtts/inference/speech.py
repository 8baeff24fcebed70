"""Results of synthesis: samples, codes and times of the spoken text."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import soxr

from myxtts.audio.encoding import SoundEncoder, write_audio
from myxtts.config.rates import DECODER_SAMPLE_RATE
from myxtts.storage.files import write_text

FADE_SECONDS = 0.005
"""Fade at both ends of a piece, which avoids clicks."""


@dataclass(frozen=True, eq=False)
class SpokenPiece:
    """One part of a text, spoken in one go."""

    text: str
    start_seconds: float
    """Start within the speech."""
    end_seconds: float
    """End within the speech, without the pause after it."""
    codes: np.ndarray
    """`(C,)` int32, without the stop code."""
    stopped: bool
    """False if it was cut at the limit of codes."""
    confidence: float = 1.0
    """0 to 1; below 0.5 is low. See `self_check.Verdict` for this and the following fields."""
    reason: str = ""
    """Main cause of low confidence."""
    doubts: tuple[str, ...] = ()
    """All causes of low confidence."""
    is_calibrated: bool = False
    """Whether the confidence is a probability."""


class Spoken:
    """Spoken pieces of a text, and the result of their self-check."""

    pieces: tuple[SpokenPiece, ...]

    @property
    def codes(self) -> np.ndarray:
        """Codes of all pieces, `(C,)` int32."""
        return np.concatenate([piece.codes for piece in self.pieces])

    @property
    def stopped(self) -> bool:
        """False if a piece was cut at the limit of codes."""
        return all(piece.stopped for piece in self.pieces)

    @property
    def confidence(self) -> float:
        """Lowest confidence of a piece, 0 to 1; 1 without pieces."""
        return min((piece.confidence for piece in self.pieces), default=1.0)

    @property
    def reason(self) -> str:
        """Main cause of low confidence; empty if it is not low."""
        return min(self.pieces, key=lambda piece: piece.confidence).reason if self.pieces else ""

    @property
    def summary(self) -> str:
        """Result of the self-check in words, with a number if the model is calibrated."""
        if all(piece.is_calibrated for piece in self.pieces):
            return f"confidence {self.confidence:.2f}" + (f" ({self.reason})" if self.reason else "")
        return f"possible fault: {self.reason}" if self.reason else "no fault found"

    @property
    def doubts(self) -> dict[str, tuple[str, ...]]:
        """Causes of low confidence by the text of the piece."""
        return {piece.text: piece.doubts for piece in self.pieces if piece.doubts}

    def subtitles(self) -> str:
        """Subtitles in SubRip format (SRT)."""
        blocks = []
        for number, piece in enumerate(self.pieces, 1):
            times = f"{_clock(piece.start_seconds)} --> {_clock(piece.end_seconds)}"
            blocks.append(f"{number}\n{times}\n{' '.join(piece.text.split())}\n")
        return "\n".join(blocks)

    def save_subtitles(self, path: str | Path) -> None:
        """Writes the subtitles to a file."""
        write_text(path, self.subtitles())


@dataclass(frozen=True, eq=False)
class Speech(Spoken):
    """One spoken text."""

    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    """In Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
    pieces: tuple[SpokenPiece, ...]
    to_mel: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Codes of one piece -> log-mel; None without a DVAE."""

    @cached_property
    def mel(self) -> np.ndarray | None:
        """Log-mel of the codes, `(T, num_mels)`; None without a DVAE."""
        return self.to_mel and np.concatenate([self.to_mel(piece.codes) for piece in self.pieces])

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.sample_rate

    def resampled(self, sample_rate: int) -> Self:
        """A copy at another sample rate, in Hz."""
        samples = soxr.resample(self.samples, self.sample_rate, sample_rate, quality="HQ")
        return replace(self, samples=samples, sample_rate=sample_rate)

    def _repr_html_(self) -> str:
        """Audio player for notebooks."""
        encoder = SoundEncoder("mp3", DECODER_SAMPLE_RATE, is_open=False)
        sound = self if self.sample_rate == DECODER_SAMPLE_RATE else self.resampled(DECODER_SAMPLE_RATE)
        content = base64.b64encode(encoder.add(sound.samples) + encoder.end()).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio>'

    def save(self, path: str | Path) -> None:
        """Writes a 16-bit wav or flac, an mp3 or an ogg file, by the suffix.

        Raises:
            AudioError: The suffix is unknown, or the folder does not exist.
        """
        write_audio(path, self.samples, self.sample_rate)


def _clock(seconds):
    milliseconds = round(1000 * seconds)
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02},{milliseconds % 1000:03}"


def faded(samples: np.ndarray, sample_rate: int, begins: bool = True, ends: bool = True) -> np.ndarray:
    """Applies a short fade where the sound begins and where it ends."""
    length = min(int(FADE_SECONDS * sample_rate), len(samples))
    ramp = (np.arange(length, dtype=np.float32) + 1) / (length + 1)
    samples = samples.copy()
    if begins:
        samples[:length] *= ramp
    if ends:
        samples[len(samples) - length :] *= ramp[::-1]
    return samples


def silence(seconds: float, sample_rate: int) -> np.ndarray:
    """Zeros `(S,)`."""
    return np.zeros(int(seconds * sample_rate), np.float32)

"""What was spoken: samples, codes, and what was said when."""

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
"""Ramp at both ends of a piece, so that its edge against silence is no click."""


@dataclass(frozen=True, eq=False)
class SpokenPiece:
    """One piece of a text, spoken in one go."""

    text: str
    start_seconds: float
    """Where it begins in the speech."""
    end_seconds: float
    """Where its sound ends; the pause after it is not part of it."""
    codes: np.ndarray
    """`(C,)` int32, without the stop code."""
    stopped: bool
    """False when it ran into the limit of codes instead of ending by itself: its end is missing."""
    confidence: float = 1.0
    """0 to 1, as `self_check.Verdict` has it; below 0.5 there are doubts."""
    reason: str = ""
    """What lowers the confidence most, where there are doubts."""
    doubts: tuple[str, ...] = ()
    """What speaks against it, see `self_check.judge`; none where it seems right."""
    is_calibrated: bool = False
    """Whether the confidence is the estimated probability that a recognizer understands it."""


class Spoken:
    """Pieces of a text that are spoken, and how far they are to be trusted."""

    pieces: tuple[SpokenPiece, ...]
    """What was said when."""

    @property
    def codes(self) -> np.ndarray:
        """`(C,)` int32, of all pieces."""
        return np.concatenate([piece.codes for piece in self.pieces])

    @property
    def stopped(self) -> bool:
        """False when a piece ran into the limit of codes instead of ending by itself."""
        return all(piece.stopped for piece in self.pieces)

    @property
    def confidence(self) -> float:
        """0 to 1, of the piece with the least; 1 of none."""
        return min((piece.confidence for piece in self.pieces), default=1.0)

    @property
    def reason(self) -> str:
        """What lowers the confidence most, where it is below 0.5."""
        return min(self.pieces, key=lambda piece: piece.confidence).reason if self.pieces else ""

    @property
    def summary(self) -> str:
        """The result of the self-check: a number only where the model is calibrated."""
        if all(piece.is_calibrated for piece in self.pieces):
            return f"confidence {self.confidence:.2f}" + (f" ({self.reason})" if self.reason else "")
        return f"possible fault: {self.reason}" if self.reason else "no fault found"

    @property
    def doubts(self) -> dict[str, tuple[str, ...]]:
        """The pieces that may have gone wrong, by their text, and why."""
        return {piece.text: piece.doubts for piece in self.pieces if piece.doubts}

    def subtitles(self) -> str:
        """What is said when, as SubRip (SRT)."""
        blocks = []
        for number, piece in enumerate(self.pieces, 1):
            times = f"{_clock(piece.start_seconds)} --> {_clock(piece.end_seconds)}"
            blocks.append(f"{number}\n{times}\n{' '.join(piece.text.split())}\n")
        return "\n".join(blocks)

    def save_subtitles(self, path: str | Path) -> None:
        """Writes `subtitles` to a file."""
        write_text(path, self.subtitles())


@dataclass(frozen=True, eq=False)
class Speech(Spoken):
    """One spoken text."""

    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    """In Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
    pieces: tuple[SpokenPiece, ...]
    """What was said when."""
    to_mel: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Codes of one piece -> their log-mel; None without a DVAE."""

    @cached_property
    def mel(self) -> np.ndarray | None:
        """`(T, num_mels)` log-mel that the codes stand for; None without a DVAE."""
        return self.to_mel and np.concatenate([self.to_mel(piece.codes) for piece in self.pieces])

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.sample_rate

    def resampled(self, sample_rate: int) -> Self:
        """The same at another rate, in Hz."""
        samples = soxr.resample(self.samples, self.sample_rate, sample_rate, quality="HQ")
        return replace(self, samples=samples, sample_rate=sample_rate)

    def _repr_html_(self) -> str:
        """A player, by which a notebook shows the speech."""
        encoder = SoundEncoder("mp3", DECODER_SAMPLE_RATE, is_open=False)
        sound = self if self.sample_rate == DECODER_SAMPLE_RATE else self.resampled(DECODER_SAMPLE_RATE)
        content = base64.b64encode(encoder.add(sound.samples) + encoder.end()).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio>'

    def save(self, path: str | Path) -> None:
        """Writes a file in the format of its suffix: wav and flac with 16 bits, mp3, or ogg.

        Raises:
            AudioError: The suffix is another one, or the folder does not exist.
        """
        write_audio(path, self.samples, self.sample_rate)


def _clock(seconds):
    """`hours:minutes:seconds,milliseconds`."""
    milliseconds = round(1000 * seconds)
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02},{milliseconds % 1000:03}"


def faded(samples: np.ndarray, sample_rate: int, begins: bool = True, ends: bool = True) -> np.ndarray:
    """The sound with a short ramp where it begins and where it ends."""
    length = min(int(FADE_SECONDS * sample_rate), len(samples))
    ramp = (np.arange(length, dtype=np.float32) + 1) / (length + 1)
    samples = samples.copy()
    if begins:
        samples[:length] *= ramp
    if ends:
        samples[len(samples) - length :] *= ramp[::-1]
    return samples


def silence(seconds: float, sample_rate: int) -> np.ndarray:
    """`(S,)` zeros."""
    return np.zeros(int(seconds * sample_rate), np.float32)

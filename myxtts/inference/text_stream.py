"""One text on its way to sound, which nobody needs to wait for."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from myxtts.inference.code_engine import FIRST_CODES, CodeStream
from myxtts.inference.self_check import Verdict
from myxtts.inference.speech import Spoken, SpokenPiece, faded, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.waveforms import NO_SAMPLES, Sound

logger = logging.getLogger(__name__)


class EndedPiece(NamedTuple):
    """A piece whose sound is out."""

    piece: Piece
    stream: CodeStream
    start_seconds: float
    end_seconds: float

    def spoken(self, verdict: Verdict | None) -> SpokenPiece:
        """It and what the self-check says of it."""
        codes = np.array(self.stream.codes, np.int32)
        said = self.piece.text, self.start_seconds, self.end_seconds, codes, self.stream.stopped
        return SpokenPiece(*said, *(verdict and (verdict.doubts, verdict.confidence, verdict.reason) or ()))


class TextStream:
    """The sound of a text, piece by piece, as far as its codes are drawn.

    Begin with `open`; whenever `ready`, `more` gives what follows, until it is `finished`; `close` in any case.

    Args:
        open_piece: Number of a piece -> the stream of its codes, queued in the engine.
        begin_sound: Begins the waveform of a piece.
        sound_of: Of a stream and its waveform, the samples that follow and whether these are the last.
        sample_rate: In Hz.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        open_piece: Callable[[int], CodeStream],
        begin_sound: Callable[[], Sound],
        sound_of: Callable[[CodeStream, Sound], tuple[np.ndarray, bool]],
        sample_rate: int,
    ):
        self.pieces, self.sample_rate = pieces, sample_rate
        self.finished: bool = False
        """Whether `more` gave the end."""
        self._open_piece, self._begin_sound, self._sound_of = open_piece, begin_sound, sound_of
        self._streams: list[CodeStream] = []
        self._number, self._sound, self._begins, self._known = 0, None, True, 0
        self.ended: list[EndedPiece] = []
        """Pieces whose sound is out."""
        self._num_samples, self._start = 0, 0

    @property
    def num_codes(self) -> int:
        """Codes drawn so far."""
        return sum(len(stream.codes) for stream in self._streams)

    @property
    def num_rows(self) -> int:
        """Rows that it takes in the engine, or waits for."""
        return sum(stream.active for stream in self._streams)

    @property
    def is_heard(self) -> bool:
        """Whether the sound of the present piece has begun."""
        return not self._begins

    def open(self) -> None:
        """Queues the first piece."""
        self._begin(0)

    def look_ahead(self) -> None:
        """Queues the piece after this one, once the codes of the first sound are drawn."""
        stream, following = self._streams[self._number], self._number + 1
        if following == len(self._streams) < len(self.pieces):
            if stream.finished or len(stream.codes) >= FIRST_CODES:
                self._streams.append(self._open_piece(following))

    def ready(self) -> bool:
        """Whether there is anything new for `more`."""
        stream = self._streams[self._number]
        return not self.finished and (not stream.active or len(stream.codes) > self._known)

    def more(self) -> np.ndarray:
        """The samples that follow, `(S,)` float32, none or many."""
        stream, piece = self._streams[self._number], self.pieces[self._number]
        if stream.cancelled:
            self.finished = True
            return NO_SAMPLES
        self._known = len(stream.codes)
        samples, ended = self._sound_of(stream, self._sound)
        if len(samples):
            samples, self._begins = faded(samples, self.sample_rate, self._begins, ended), False
        self._num_samples += len(samples)
        if not ended:
            return samples
        tell_of(piece, stream)
        stream.states.clear()
        times = self._start / self.sample_rate, self._num_samples / self.sample_rate
        self.ended.append(EndedPiece(piece, stream, *times))
        if self._number + 1 == len(self.pieces):
            self.finished = True
            return samples
        self._begin(self._number + 1)
        pause = silence(piece.pause_seconds, self.sample_rate)
        self._num_samples += len(pause)
        self._start = self._num_samples
        return np.concatenate([samples, pause])

    def close(self) -> None:
        """Frees its rows before the next codes."""
        for stream in self._streams:
            stream.cancel()

    def _begin(self, number):
        if number == len(self._streams):
            self._streams.append(self._open_piece(number))
        self._number, self._sound, self._begins, self._known = number, self._begin_sound(), True, 0


class SpeechStream(Spoken):
    """The samples of a text, `(S,)` float32 each, as soon as they are known; `close` gives up the rest.

    `pieces` grows with the sentences whose sound is out and judged. What is out cannot be taken back, so a sentence in
    doubt is not drawn anew, as `Synthesizer.speak` does; nor does a judgment keep a sound waiting: a sentence is judged
    once the sound of the next one has begun, or the last one is out.

    Args:
        text: Not open yet; opened with the first samples that are asked for.
        wait: Returns once what it is given holds, see `CodeEngine.wait`.
        judge: What the self-check says of a piece, or None.
    """

    def __init__(
        self,
        text: TextStream,
        wait: Callable[[Callable[[], bool]], None],
        judge: Callable[[EndedPiece], Verdict | None],
    ):
        self._spoken = spoken = []
        # The generator knows nothing of this object: without a circle it ends as soon as both are dropped.
        self._samples = _samples(text, wait, lambda ended: spoken.append(ended.spoken(judge(ended))))

    @property
    def pieces(self) -> tuple[SpokenPiece, ...]:
        """Those that are spoken and judged so far."""
        return tuple(self._spoken)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> np.ndarray:
        return next(self._samples)

    def close(self) -> None:
        """Frees its rows before the next codes."""
        self._samples.close()


def _samples(text: TextStream, wait, judge) -> Iterator[np.ndarray]:
    num_judged = 0
    try:
        text.open()
        while not text.finished:
            wait(text.ready)
            text.look_ahead()  # its codes are drawn along with those of this one
            if len(samples := text.more()):
                yield samples
            while num_judged < len(text.ended) and (text.finished or text.is_heard):
                judge(text.ended[num_judged])
                num_judged += 1
    finally:
        text.close()


def tell_of(piece: Piece, stream: CodeStream) -> None:
    """Warns of a sentence that is not as it should be."""
    if not stream.codes:
        logger.warning("Speech ended at once: the model has nothing to say to %r. Try another seed.", piece.text)
    elif not stream.stopped:
        message = "Speech did not end by itself within %d codes; it was cut there, and its end is missing: %r"
        logger.warning(message, len(stream.codes), piece.text)

"""One text on its way to sound, which nobody needs to wait for."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from myxtts.inference.code_engine import FIRST_CODES, CodeStream
from myxtts.inference.speech import faded, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.waveforms import NO_SAMPLES, Sound

logger = logging.getLogger(__name__)


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

    @property
    def num_codes(self) -> int:
        """Codes drawn so far."""
        return sum(len(stream.codes) for stream in self._streams)

    @property
    def num_rows(self) -> int:
        """Rows that it takes in the engine, or waits for."""
        return sum(stream.active for stream in self._streams)

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
        if not ended:
            return samples
        tell_of(piece, stream)
        stream.states.clear()
        if self._number + 1 == len(self.pieces):
            self.finished = True
            return samples
        self._begin(self._number + 1)
        return np.concatenate([samples, silence(piece.pause_seconds, self.sample_rate)])

    def close(self) -> None:
        """Frees its rows before the next codes."""
        for stream in self._streams:
            stream.cancel()

    def _begin(self, number):
        if number == len(self._streams):
            self._streams.append(self._open_piece(number))
        self._number, self._sound, self._begins, self._known = number, self._begin_sound(), True, 0


def tell_of(piece: Piece, stream: CodeStream) -> None:
    """Warns of a sentence that is not as it should be."""
    if not stream.codes:
        logger.warning("Speech ended at once: the model has nothing to say to %r. Try another seed.", piece.text)
    elif not stream.stopped:
        message = "Speech did not end by itself within %d codes; it was cut there, and its end is missing: %r"
        logger.warning(message, len(stream.codes), piece.text)

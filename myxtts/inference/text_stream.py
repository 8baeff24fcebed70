"""A text on its way to audio, sentence by sentence."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from myxtts.config.config import SamplingConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.inference.code_engine import FIRST_CODES, CodeStream
from myxtts.inference.self_check import Listener, Verdict, judge
from myxtts.inference.speech import Spoken, SpokenPiece, faded, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.voices import Voice
from myxtts.inference.waveforms import NO_SAMPLES, Sound
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import rule_of_thumb

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

logger = logging.getLogger(__name__)


class Manner(NamedTuple):
    """How a text is spoken."""

    voice: Voice
    language: str
    sampling: SamplingConfig
    seed: int = 0
    speed: float = 1.0
    max_codes: int = 0
    """Most codes of a sentence; 0 takes the model's limit."""


class Sentence:
    """One piece of a text: `open` queues its codes, `more` gives its audio and `check` judges it, `best` does all.

    Args:
        number: Of the piece within its text.
    """

    def __init__(self, synthesizer: "Synthesizer", piece: Piece, number: int, manner: Manner):
        self.synthesizer, self.piece, self.number, self.manner = synthesizer, piece, number, manner
        self.stream: CodeStream | None = None
        """Its codes, once it is open."""
        self.verdict: Verdict | None = None
        """What the self-check says, once it was checked."""
        self.start_seconds, self.end_seconds = 0.0, 0.0
        self._sound: Sound | None = None
        self.is_heard, self._known = False, 0
        """Whether its audio has begun, and how many of its codes `more` has seen."""

    def open(self, hurry: bool = False, attempt: int = 0) -> None:
        """Queues its codes in the engine.

        Args:
            hurry: Whether somebody waits for the first of them.
            attempt: Each has noise of its own.
        """
        ids, number = self.synthesizer.text_front.ids(self.piece.text, self.manner.language), self.number
        voice, _, sampling, seed, _, max_codes = self.manner
        options = dict(sentence=number + attempt * 2**32, max_codes=max_codes, hurry=hurry)
        self.stream = self.synthesizer.engine.open(ids, voice.latents, sampling, seed, **options)

    def ready(self) -> bool:
        """Whether there is anything new for `more`."""
        return not self.stream.active or len(self.stream.codes) > self._known

    def more(self) -> tuple[np.ndarray, bool]:
        """The samples that follow, `(S,)` float32, as far as its codes are drawn, and whether this is the end."""
        self._known = len(self.stream.codes)
        if self._sound is None:
            self._sound = self.synthesizer.to_waveform.begin(self.manner.voice, self.manner.speed)
        samples, ended = self._follow(self._sound)
        if len(samples):
            samples = faded(samples, self.synthesizer.sample_rate, not self.is_heard, ended)
            self.is_heard = True
        return samples, ended

    def check(self, listener: Listener | None = None, samples: np.ndarray | None = None) -> Verdict:
        """Has the self-check judge the finished sentence; what a `listener` understands of `samples` counts too."""
        stream, synthesizer, language, text = self.stream, self.synthesizer, self.manner.language, self.piece.text
        code, calibration = get_language(language).code, synthesizer.calibration
        rate = synthesizer.rates.get(code) or rule_of_thumb(language)
        calibration = calibration if calibration and code in calibration.languages else None
        reading, wrong_share = None, None
        if stream.codes:
            reading = synthesizer.read_again(stream.voice_latents, stream.ids, stream.codes)
            wrong_share = listener and listener(samples, synthesizer.sample_rate, text, language)
        unspoken = synthesizer.tokenizer.unspoken_share(text, language)
        self.verdict = judge(text, stream.codes, stream.stopped, rate, reading, wrong_share, unspoken, calibration)
        return self.verdict

    def best(self, retries: int, listener: Listener | None) -> np.ndarray:
        """Samples `(S,)` of the finished sentence. A flagged one is sampled again; the most confident stays."""
        found = []
        for attempt in range(retries + 1):
            if attempt:
                self.open(attempt=attempt)
            self.synthesizer.engine.finish([self.stream])
            self._sound, self.is_heard = None, False
            samples, _ = self.more()
            found.append((self.check(listener, samples), self.stream, samples))
            if not self.verdict.doubts:
                break
        self.verdict, self.stream, samples = max(found, key=lambda one: one[0].confidence)
        return samples

    def end(self, start: int, end: int) -> None:
        """Notes where its audio stands in the speech, in samples, and warns if it is not as it should be."""
        rate, stream = self.synthesizer.sample_rate, self.stream
        self.start_seconds, self.end_seconds = start / rate, end / rate
        stream.states.clear()
        if not stream.codes:
            logger.warning("The model says nothing to %r. Try another seed.", self.piece.text)
        elif not stream.stopped:
            message = "Speech did not end by itself within %d codes; it was cut there, and its end is missing: %r"
            logger.warning(message, len(stream.codes), self.piece.text)

    def spoken(self) -> SpokenPiece:
        """What was said, and what the self-check says of it."""
        codes = np.array(self.stream.codes, np.int32)
        said = self.piece.text, self.start_seconds, self.end_seconds, codes, self.stream.stopped
        return SpokenPiece(*said, *(self.verdict or ()))

    def cancel(self) -> None:
        """Frees its row before the next codes."""
        if self.stream is not None:
            self.stream.cancel()

    def _follow(self, sound):
        codes, latents, finished = self.stream.drawn()
        if codes or not finished:
            return sound.more(codes, latents, finished), finished
        return np.zeros(CODE_STRIDE_SAMPLES * self.synthesizer.sample_rate // MODEL_SAMPLE_RATE, np.float32), True


class SpeechStream(Spoken):
    """The samples of a text, `(S,)` float32 each, as soon as they are known; `close` cancels the rest.

    Iterate over it; or, to do other things meanwhile, call `open`, then `more` whenever `ready`, until it is
    `finished`, and `close` in any case. `pieces` grows with the sentences whose audio is out and checked. What is out
    cannot be taken back, so a sentence of low confidence is not drawn again, as `Synthesizer.speak` does; nor does a
    check delay audio: a sentence is checked once the audio of the next one has begun, or the last one is out.

    Args:
        hurry: Whether the first audio is waited for.
        check: Whether the self-check judges each sentence once its audio is out.
    """

    def __init__(self, synthesizer: "Synthesizer", pieces: Sequence[Piece], manner: Manner, hurry=True, check=True):
        self._sentences = [Sentence(synthesizer, piece, number, manner) for number, piece in enumerate(pieces)]
        self._engine, self._sample_rate, self._hurry = synthesizer.engine, synthesizer.sample_rate, hurry
        self._number, self._start, self._num_samples = 0, 0, 0
        self._checks, self._num_checked = check, 0
        self.spans: list[tuple[str, int, int]] = []
        """Text, first sample and end of each sentence whose audio is out."""
        self.finished = False
        """Whether `more` gave the end, or it was closed."""

    @property
    def pieces(self) -> tuple[SpokenPiece, ...]:
        """Those that are spoken and, if asked for, checked so far."""
        return tuple(sentence.spoken() for sentence in self._sentences[: self._num_checked])

    @property
    def num_codes(self) -> int:
        """Codes drawn so far."""
        return sum(len(one.stream.codes) for one in self._sentences if one.stream)

    @property
    def num_rows(self) -> int:
        """Rows that it takes in the engine, or waits for."""
        return sum(one.stream.active for one in self._sentences if one.stream)

    def open(self) -> None:
        """Queues the first sentence."""
        self._sentences[0].open(self._hurry)

    def look_ahead(self) -> None:
        """Queues the sentence after this one, once the codes of the first audio are drawn."""
        stream = self._sentences[self._number].stream
        following = self._sentences[self._number + 1 : self._number + 2]
        if following and following[0].stream is None and (stream.finished or len(stream.codes) >= FIRST_CODES):
            following[0].open()

    def ready(self) -> bool:
        """Whether there is anything new for `more`."""
        return not self.finished and self._sentences[self._number].ready()

    def more(self) -> np.ndarray:
        """The samples that follow, `(S,)` float32, none or many.

        Raises:
            Exception: What the engine failed with.
        """
        sentence = self._sentences[self._number]
        if sentence.stream.cancelled:
            self.finished = True
            if sentence.stream.error is not None:
                raise sentence.stream.error
            return NO_SAMPLES
        samples, ended = sentence.more()
        self._num_samples += len(samples)
        if not ended:
            return samples
        sentence.end(self._start, self._num_samples)
        self.spans.append((sentence.piece.text, self._start, self._num_samples))
        if self._number + 1 == len(self._sentences):
            self.finished = True
            return samples
        self._number += 1
        if self._sentences[self._number].stream is None:
            self._sentences[self._number].open()
        pause = silence(sentence.piece.pause_seconds, self._sample_rate)
        self._num_samples += len(pause)
        self._start = self._num_samples
        return np.concatenate([samples, pause])

    def close(self) -> None:
        """Frees its rows before the next codes."""
        self.finished = True
        for sentence in self._sentences:
            sentence.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> np.ndarray:
        try:
            if self._sentences[0].stream is None and not self.finished:
                self.open()
            while True:
                self._check_ended()
                if self.finished:
                    raise StopIteration
                self._engine.wait(self.ready)
                self.look_ahead()  # its codes are drawn along with those of this one
                if len(samples := self.more()):
                    return samples
        except BaseException:
            self.close()
            raise

    def __del__(self):
        self.close()

    def _check_ended(self):
        """Checks the sentences whose audio is out, but for the last one while the next has not begun."""
        ended = self._number + self._is_out
        while self._num_checked < ended and (self._is_out or self._sentences[self._number].is_heard):
            if self._checks:
                self._sentences[self._num_checked].check()
            self._num_checked += 1

    @property
    def _is_out(self):
        return self.finished and self._sentences[-1].end_seconds > 0

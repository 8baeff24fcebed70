"""Synthesis of a text, sentence by sentence."""

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from myxtts.config.config import SamplingConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.inference.code_engine import FIRST_CODES, CodeStream
from myxtts.inference.self_check import DOUBT, SURE, Listener, Verdict, judge
from myxtts.inference.speech import Spoken, SpokenPiece, faded, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.voices import Voice
from myxtts.inference.waveforms import NO_SAMPLES, GriffinLim, Windows
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import rule_of_thumb

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

logger = logging.getLogger(__name__)


class Manner(NamedTuple):
    """Voice and options of a text to speak."""

    voice: Voice
    language: str
    sampling: SamplingConfig
    seed: int = 0
    speed: float = 1.0
    max_codes: int = 0
    """Maximum codes of a sentence; 0 takes the model's limit."""


class Sentence:
    """One piece of a text: `open` queues it, `more` returns audio, `check` runs the self-check, `best` does all three.

    Args:
        number: Number of the piece within its text.
    """

    def __init__(self, synthesizer: "Synthesizer", piece: Piece, number: int, manner: Manner):
        self.synthesizer, self.piece, self.number, self.manner = synthesizer, piece, number, manner
        self.stream: CodeStream | None = None
        self.verdict: Verdict | None = None
        self.start_seconds, self.end_seconds = 0.0, 0.0
        self.is_heard = False
        """Whether its audio has begun."""

    def open(self, hurry: bool = False, attempt: int = 0) -> None:
        """Queues the sentence in the engine; each `attempt` has other random numbers; `hurry` as in `CodeStream`."""
        voice, language, sampling, seed, speed, max_codes = self.manner
        ids, number = self.synthesizer.text_front.ids(self.piece.text, language), self.number + attempt * 2**32
        self.stream = self.synthesizer.engine.open(ids, voice.latents, sampling, seed, number, max_codes, hurry)
        self._sound: GriffinLim | Windows = self.synthesizer.to_waveform.begin(voice, speed)
        self.is_heard, self._num_seen = False, 0

    def ready(self) -> bool:
        """Whether `more` has anything new."""
        return not self.stream.active or len(self.stream.codes) > self._num_seen

    def more(self) -> tuple[np.ndarray, bool]:
        """Returns the next samples `(S,)` float32, possibly none, and whether the sentence has ended."""
        codes, latents, ended = self.stream.drawn()
        self._num_seen, sample_rate = len(codes), self.synthesizer.sample_rate
        if ended and not codes:
            samples = silence(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, sample_rate)
        else:
            samples = self._sound.more(codes, latents, ended)
        if len(samples):
            samples = faded(samples, sample_rate, not self.is_heard, ended)
            self.is_heard = True
        return samples, ended

    def check(self, listener: Listener | None = None, samples: np.ndarray | None = None) -> Verdict:
        """Runs the self-check of the finished sentence, with a `listener` also on its `samples`."""
        stream, synthesizer, language, text = self.stream, self.synthesizer, self.manner.language, self.piece.text
        code, calibration = get_language(language).code, synthesizer.calibration
        if calibration and code not in calibration.languages:
            calibration = None
        rate = synthesizer.rates.get(code) or rule_of_thumb(language)
        reading, wrong_share = None, None
        if stream.codes:
            reading = synthesizer.read_again(stream.voice_latents, stream.ids, stream.codes)
            wrong_share = listener and listener(samples, synthesizer.sample_rate, text, language)
        unspoken = synthesizer.tokenizer.unspoken_share(text, language)
        self.verdict = judge(text, stream.codes, stream.stopped, rate, reading, wrong_share, unspoken, calibration)
        return self.verdict

    def best(self, retries: int | None, listener: Listener | None) -> np.ndarray:
        """Returns the samples `(S,)` of the attempt with the highest confidence; see `Synthesizer.batch`."""
        found = []
        for attempt in itertools.count():
            if attempt:
                self.open(attempt=attempt)
            self.synthesizer.engine.finish([self.stream])
            samples, _ = self.more()
            found.append((self.check(listener, samples), self.stream, samples))
            calibrated = self.verdict.is_calibrated
            most = (3 if calibrated else 1) if retries is None else retries
            if attempt >= most or self.verdict.confidence >= (SURE if calibrated else DOUBT):
                break
        self.verdict, self.stream, samples = max(found, key=lambda one: one[0].confidence)
        return samples

    def end(self, start: int, end: int) -> None:
        """Records the position of its audio in the speech, in samples, and warns if it is empty or cut."""
        rate, stream = self.synthesizer.sample_rate, self.stream
        self.start_seconds, self.end_seconds = start / rate, end / rate
        stream.states.clear()
        if not stream.codes:
            logger.warning("No speech for %r. Try another seed.", self.piece.text)
        elif not stream.stopped:
            logger.warning("Speech was cut after %d codes, the limit: %r", len(stream.codes), self.piece.text)

    def spoken(self) -> SpokenPiece:
        """The result, with that of the self-check."""
        codes = np.array(self.stream.codes, np.int32)
        result = self.piece.text, self.start_seconds, self.end_seconds, codes, self.stream.stopped
        return SpokenPiece(*result, *(self.verdict or ()))

    def cancel(self) -> None:
        """Frees its row of the engine."""
        if self.stream is not None:
            self.stream.cancel()


class SpeechStream(Spoken):
    """Iterator over the samples of a text, `(S,)` float32 each, as soon as they are known.

    To do other things meanwhile, call `open`, then `more` whenever `ready` until `finished`, and always `close`.
    `pieces` grows with each sentence that is spoken and checked. To delay no audio, a sentence is checked after the
    audio of the next one has begun. Unlike `Synthesizer.speak`, a stream never repeats a sentence of low confidence.

    Args:
        hurry: As in `CodeStream`, for the first sentence.
        check: Whether to run the self-check.
    """

    def __init__(self, synthesizer: "Synthesizer", pieces: Sequence[Piece], manner: Manner, hurry=True, check=True):
        self._sentences = [Sentence(synthesizer, piece, number, manner) for number, piece in enumerate(pieces)]
        self._engine, self._sample_rate, self._hurry = synthesizer.engine, synthesizer.sample_rate, hurry
        self._number, self._start, self._num_samples = 0, 0, 0
        self._checks, self._num_checked = check, 0
        self.spans: list[tuple[str, int, int]] = []
        """Text, first sample and end of each sentence whose audio is out."""
        self.finished = False
        """Whether `more` returned the last samples, or the stream was closed."""

    @property
    def pieces(self) -> tuple[SpokenPiece, ...]:
        """Sentences spoken and, if asked for, checked so far."""
        return tuple(sentence.spoken() for sentence in self._sentences[: self._num_checked])

    @property
    def num_codes(self) -> int:
        """Codes sampled so far."""
        return sum(len(one.stream.codes) for one in self._sentences if one.stream)

    @property
    def num_rows(self) -> int:
        """Rows of the engine that it uses or waits for."""
        return sum(one.stream.active for one in self._sentences if one.stream)

    def open(self) -> None:
        """Queues the first sentence."""
        self._sentences[0].open(self._hurry)

    def look_ahead(self) -> None:
        """Queues the next sentence, once the codes for the first audio are sampled."""
        stream = self._sentences[self._number].stream
        following = self._sentences[self._number + 1 : self._number + 2]
        if following and following[0].stream is None and (stream.finished or len(stream.codes) >= FIRST_CODES):
            following[0].open()

    def ready(self) -> bool:
        """Whether `more` has anything new."""
        return not self.finished and self._sentences[self._number].ready()

    def more(self) -> np.ndarray:
        """Returns the next samples `(S,)` float32, possibly none. Re-raises an error of the engine."""
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
        """Cancels the rest of the text."""
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
                self.look_ahead()
                if len(samples := self.more()):
                    return samples
        except BaseException:
            self.close()
            raise

    def __del__(self):
        self.close()

    def _check_ended(self):
        """Checks the sentences whose audio has ended, once that of the next has begun."""
        ended = self._number if self._sentences[self._number].is_heard else 0
        if self.finished and self._sentences[-1].end_seconds:
            ended = len(self._sentences)
        for sentence in self._sentences[self._num_checked : ended]:
            if self._checks:
                sentence.check()
            self._num_checked += 1

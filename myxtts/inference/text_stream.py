"""Synthesizes a text sentence by sentence: samples codes, decodes them to audio, and runs the self-check.
Imports no TensorFlow, because the server also uses this module for exported models."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from myxtts.config.checks import brief, require
from myxtts.inference.speech import Manner, Spoken, SpokenPiece, Verdict, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.windows import FIRST_CODES, NO_SAMPLES, Sounding, faded
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import rule_of_thumb

if TYPE_CHECKING:
    from myxtts.inference.code_engine import CodeStream
    from myxtts.inference.self_check import Listener
    from myxtts.inference.synthesizer import Synthesizer

logger = logging.getLogger(__name__)


class Sentence:
    """Synthesis of one piece of a text: `open` queues it, `more` returns its audio, `check` runs the self-check."""

    def __init__(self, synthesizer: "Synthesizer", piece: Piece, number: int, manner: Manner):
        seed, speed, limit = manner.seed, manner.speed, manner.max_codes
        require(isinstance(seed, int | np.integer) and 0 <= seed < 2**63, "seed", "0 to 2**63 - 1", brief(seed))
        require(isinstance(speed, int | float | np.number) and 0.25 <= speed <= 4.0, "speed", "0.25 to 4.0", speed)
        require(isinstance(limit, int | np.integer) and limit >= 0, "max_codes", "0 or more", brief(limit))
        self.synthesizer, self.piece, self.number, self.manner = synthesizer, piece, number, manner
        self.stream: CodeStream | None = None
        self.verdict: Verdict | None = None
        self.start_seconds, self.end_seconds = 0.0, 0.0
        self.is_heard = False
        """Whether `more` has returned audio."""

    def open(self, hurry: bool = False, attempt: int = 0) -> None:
        """Queues the sentence for sampling. `attempt` changes the random numbers. For `hurry`, see `CodeStream`."""
        voice, language, sampling, seed, speed, max_codes = self.manner
        ids = self.synthesizer.text_front.ids(self.piece.text, language)
        number = self.number + attempt * 2**32
        self.stream = self.synthesizer.engine.open(ids, voice.latents, sampling, seed, number, max_codes, hurry)
        self._sound: Sounding = self.synthesizer.to_waveform.begin(voice, speed)
        self.is_heard = False

    def more(self) -> tuple[np.ndarray, bool]:
        """Returns the next samples `(S,)` float32 (S may be 0), and whether the sentence has ended."""
        codes, latents, ended = self.stream.drawn()
        samples = self._sound(codes, latents, ended) if codes or not ended else self.synthesizer.no_speech
        if ended and not (len(samples) or self.is_heard):  # at a high speed, the codes were too few for a sample
            samples = self.synthesizer.no_speech
        if len(samples):
            samples = faded(samples, self.synthesizer.sample_rate, not self.is_heard, ended)
            self.is_heard = True
        return samples, ended

    def check(self, listener: "Listener | None" = None, samples: np.ndarray | None = None) -> Verdict:
        """Runs the self-check of the finished sentence. If its audio `samples` `(S,)` is given and the speed is 1, also
        checks the audio for distortion. A `listener` measures the character error rate (CER) and requires `samples`."""
        from myxtts.inference.self_check import judge  # imports TensorFlow

        stream, synthesizer, language, text = self.stream, self.synthesizer, self.manner.language, self.piece.text
        code = get_language(language).code
        rate = synthesizer.rates.get(code) or rule_of_thumb(language)
        known, reading, wrong, distortion = synthesizer.calibration, None, None, 0.0
        known = known if known and code in known.languages else None
        if stream.codes:
            reading = synthesizer.read_again(stream.voice_latents, stream.ids, stream.codes)
            wrong = listener and listener(samples, synthesizer.sample_rate, text, code)
            if samples is not None and self.manner.speed == 1:
                distortion = synthesizer.distortion(stream.codes, samples)
        unspoken = synthesizer.tokenizer.unspoken_share(text, language)
        self.verdict = judge(text, stream.codes, stream.stopped, rate, reading, wrong, unspoken, known, distortion)
        return self.verdict

    def best(self, retries: int, listener: "Listener | None") -> np.ndarray:
        """Finishes the sentence and checks it. If the self-check finds faults, samples it again, up to `retries` times.
        Returns the samples `(S,)` of the attempt with the highest confidence. For `listener`, see `check`."""
        found = []
        for attempt in range(max(0, retries) + 1):
            if attempt:
                self.open(attempt=attempt)
            self.synthesizer.engine.finish([self.stream])
            samples, _ = self.more()
            found.append((self.check(listener, samples), self.stream, samples))
            if not self.verdict.doubts:
                break
        self.verdict, self.stream, samples = max(found, key=lambda one: one[0].confidence)
        return samples

    def end(self, start: int, end: int) -> None:
        """Records `start` and `end` of the sentence, in samples. Warns if the sentence is empty or was cut off."""
        rate, stream = self.synthesizer.sample_rate, self.stream
        self.start_seconds, self.end_seconds = start / rate, end / rate
        stream.states.clear()
        if not stream.codes:
            logger.warning("No speech for %r. Try another seed.", self.piece.text)
        elif not stream.stopped:
            logger.warning("Speech was cut off after %d codes, the limit: %r", len(stream.codes), self.piece.text)

    def spoken(self) -> SpokenPiece:
        """Returns the finished sentence with the result of its self-check."""
        codes = np.array(self.stream.codes, np.int32)
        result = self.piece.text, self.start_seconds, self.end_seconds, codes, self.stream.stopped
        return SpokenPiece(*result, **vars(self.verdict or Verdict()))

    def cancel(self) -> None:
        """Cancels the sampling of the sentence."""
        if self.stream is not None:
            self.stream.cancel()


class SpeechStream(Spoken):
    """Iterator that yields the audio of a text in parts, `(S,)` float32, each as soon as it is decoded.

    Iteration runs the self-check of a sentence after the next sentence's first audio, so the check delays no audio.
    The sentence is then added to `pieces`. To poll instead of iterating, call `open` once, then call `more` whenever
    `ready()` is true, until `finished` is true. Always call `close` at the end. Polling runs no self-checks and leaves
    `pieces` empty. A stream never retries a sentence. `Synthesizer.stream` explains the arguments.
    """

    def __init__(self, synthesizer: "Synthesizer", pieces: Sequence[Piece], manner: Manner, hurry: bool, check: bool):
        self._sentences = []  # `__del__` needs this list even if an argument is invalid
        require(bool(pieces), "text", "a text or a list of one or more pieces", brief(pieces))
        self._sentences = [Sentence(synthesizer, piece, number, manner) for number, piece in enumerate(pieces)]
        self._engine, self._sample_rate, self._hurry = synthesizer.engine, synthesizer.sample_rate, hurry
        self._number, self._start, self._num_samples = 0, 0, 0
        self._checks, self._num_checked = check, 0
        self.spans: list[tuple[str, int, int]] = []
        """`(text, start, end)` of each sentence whose audio is complete; times in samples from the stream's start."""
        self.finished = False
        """Whether `more` has returned the last samples, or the stream was closed."""

    @property
    def pieces(self) -> tuple[SpokenPiece, ...]:
        """Finished sentences, with self-check results if the self-check is on. Only iteration adds sentences."""
        return tuple(sentence.spoken() for sentence in self._sentences[: self._num_checked])

    @property
    def num_codes(self) -> int:
        """Number of codes sampled so far."""
        return sum(len(one.stream.codes) for one in self._sentences if one.stream)

    @property
    def num_rows(self) -> int:
        """Number of sentences of this stream that a `CodeEngine` is sampling or has in its queue."""
        return sum(one.stream.active for one in self._sentences if one.stream)

    def open(self) -> None:
        """Starts the stream by queueing its first sentence."""
        self._sentences[0].open(self._hurry)

    def look_ahead(self) -> None:
        """If the current sentence ended or has enough codes for audio, queues the next sentence if not yet queued."""
        stream = self._sentences[self._number].stream
        following = self._sentences[self._number + 1 : self._number + 2]
        if following and following[0].stream is None and (stream.finished or len(stream.codes) >= FIRST_CODES):
            following[0].open()

    def ready(self) -> bool:
        """Returns whether to call `more` now: True if the current sentence has new codes or has ended, False if the
        sentence has no new codes yet, or if `finished` is true."""
        return not self.finished and self._sentences[self._number].stream.is_ready

    def more(self) -> np.ndarray:
        """Returns the next samples `(S,)` float32 (S may be 0). Raises the engine's error, if any."""
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
        """Ends the stream and cancels the sampling of all its sentences."""
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
                self._check_heard()
                if self.finished:
                    raise StopIteration
                self._engine.wait(lambda: self.finished or self.ready())  # another thread may close the stream
                self.look_ahead()
                if len(samples := self.more()):
                    return samples
        except BaseException:
            self.close()
            raise

    def _check_heard(self):
        """Runs due self-checks. A sentence is due when the next sentence has audio, or when the stream has finished."""
        heard = self._number if self._sentences[self._number].is_heard else 0
        if self.finished and self._sentences[-1].end_seconds:
            heard = len(self._sentences)
        for sentence in self._sentences[self._num_checked : heard]:
            if self._checks:
                sentence.check()
            self._num_checked += 1

    def __del__(self):
        self.close()

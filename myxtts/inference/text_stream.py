"""Synthesizes a text sentence by sentence: samples codes, decodes them to audio, and runs the self-check.

A decoder (`GriffinLim` or `LatentDecoder`) has a `sample_rate` in Hz, and a method `begin` that returns the
decoder of one sentence, a `windows.Sounding`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import log_mel_to_wav
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.inference.code_engine import CodeStream
from myxtts.inference.self_check import Listener, judge
from myxtts.inference.speech import Manner, Spoken, SpokenPiece, Verdict, faded, silence
from myxtts.inference.text_front import Piece
from myxtts.inference.voices import Voice
from myxtts.inference.windows import FIRST_CODES, NO_SAMPLES, Sounding, Windows, WindowShape, spoken_faster
from myxtts.models.waveform_decoders import WaveformDecoder
from myxtts.models.xtts import XTTS
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import rule_of_thumb

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

logger = logging.getLogger(__name__)


class GriffinLim:
    """Decodes whole sentences by Griffin-Lim, for models without a waveform decoder.

    `to_mel` decodes codes `(C,)` to a log-mel `(4 C, num_mels)`.
    """

    sample_rate = MODEL_SAMPLE_RATE

    def __init__(self, to_mel: Callable[[np.ndarray], np.ndarray]):
        self.to_mel = to_mel

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Returns the decoder of one sentence. The voice has no effect, because the codes contain it."""

        def more(codes, latents, finished):
            if not finished:
                return NO_SAMPLES
            return log_mel_to_wav(spoken_faster(self.to_mel(np.array(codes, np.int32)), speed))

        return more


def window_shape(decoder: WaveformDecoder) -> WindowShape:
    """Returns the `WindowShape` of a waveform decoder."""
    return WindowShape(decoder.factors(), decoder.hop_length, decoder.history_frames, decoder.lookahead_frames)


class LatentDecoder:
    """Decodes GPT latents in windows with context; the samples equal those of a single window within 1e-6."""

    sample_rate = DECODER_SAMPLE_RATE

    def __init__(self, model: XTTS, traced: bool = True):
        self.decoder, self.to_samples = model.decoder, self._to_samples
        if traced:
            config, number = model.config, tf.TensorSpec([], tf.int32)
            latents, speaker = tf.TensorSpec([1, None, config.width]), tf.TensorSpec([1, config.speaker_width])
            signature = [latents, speaker, number, number]
            self.to_samples = tf.function(self._to_samples, input_signature=signature, autograph=False)

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Returns the decoder of one sentence, spoken faster by the factor `speed`."""
        to_samples = lambda latents, start, end: self.to_samples(latents[None], voice.speaker, start, end)[0].numpy()
        return Windows(window_shape(self.decoder), to_samples, speed)

    def _to_samples(self, latents, speaker, start, end):
        """Decodes the frames `start` to `end` of latents `(1, n, width)` to samples `(1, S)`."""
        samples = self.decoder.frames_to_samples(self.decoder.latents_to_frames(latents)[:, start:end], speaker)
        return tf.cast(samples, tf.float32)


class Sentence:
    """Synthesis of one piece of a text: `open` queues it, `more` returns its audio, `check` runs the self-check."""

    def __init__(self, synthesizer: "Synthesizer", piece: Piece, number: int, manner: Manner):
        self.synthesizer, self.piece, self.number, self.manner = synthesizer, piece, number, manner
        self.stream: CodeStream | None = None
        self.verdict: Verdict | None = None
        self.start_seconds, self.end_seconds = 0.0, 0.0
        self.is_heard = False
        """Whether `more` has returned audio."""

    def open(self, hurry: bool = False, attempt: int = 0) -> None:
        """Queues the sentence for sampling. Each `attempt` has other random numbers; `hurry` is as in `CodeStream`."""
        voice, language, sampling, seed, speed, max_codes = self.manner
        ids = self.synthesizer.text_front.ids(self.piece.text, language)
        number = self.number + attempt * 2**32
        self.stream = self.synthesizer.engine.open(ids, voice.latents, sampling, seed, number, max_codes, hurry)
        self._sound: Sounding = self.synthesizer.to_waveform.begin(voice, speed)
        self.is_heard, self._num_seen = False, 0

    def ready(self) -> bool:
        """Whether there are new codes for `more`, or the sentence has ended."""
        return not self.stream.active or len(self.stream.codes) > self._num_seen

    def more(self) -> tuple[np.ndarray, bool]:
        """Returns the next samples `(S,)` float32 (S may be 0), and whether the sentence has ended."""
        codes, latents, ended = self.stream.drawn()
        self._num_seen, sample_rate = len(codes), self.synthesizer.sample_rate
        pause = CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
        samples = self._sound(codes, latents, ended) if codes or not ended else silence(pause, sample_rate)
        if len(samples):
            samples = faded(samples, sample_rate, not self.is_heard, ended)
            self.is_heard = True
        return samples, ended

    def check(self, listener: Listener | None = None, samples: np.ndarray | None = None) -> Verdict:
        """Runs the self-check of the finished sentence; a `listener` also scores its `samples`, `(S,)`."""
        stream, synthesizer, language, text = self.stream, self.synthesizer, self.manner.language, self.piece.text
        code = get_language(language).code
        rate = synthesizer.rates.get(code) or rule_of_thumb(language)
        calibration = synthesizer.calibration
        if calibration and code not in calibration.languages:
            calibration = None
        reading, wrong_share = None, None
        if stream.codes:
            reading = synthesizer.read_again(stream.voice_latents, stream.ids, stream.codes)
            wrong_share = listener and listener(samples, synthesizer.sample_rate, text, language)
        unspoken = synthesizer.tokenizer.unspoken_share(text, language)
        self.verdict = judge(text, stream.codes, stream.stopped, rate, reading, wrong_share, unspoken, calibration)
        return self.verdict

    def best(self, retries: int, listener: Listener | None) -> np.ndarray:
        """Speaks the sentence up to `retries` + 1 times, until it has no faults; returns the best samples, `(S,)`."""
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
        """Records the position of the sentence in the speech, in samples; warns if the sentence is empty or cut off."""
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
            self.stream.cancelled = True


class SpeechStream(Spoken):
    """Iterator that yields the audio of a text part by part, as `(S,)` float32, as soon as a part is decoded.

    Iteration runs the self-check of a sentence after the first audio of the next one, so that no audio is delayed, and
    then adds the sentence to `pieces`. To poll instead, without self-checks and `pieces`, call `open`, then `more`
    whenever `ready()` is true, until `finished`; always call `close` at the end. Unlike `Synthesizer.speak`, a stream
    never retries a sentence. The arguments are explained in `Synthesizer.stream`.
    """

    def __init__(self, synthesizer: "Synthesizer", pieces: Sequence[Piece], manner: Manner, hurry=True, check=True):
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
        """Sentences that were spoken and, if the self-check is on, checked. Grows only while iterating."""
        return tuple(sentence.spoken() for sentence in self._sentences[: self._num_checked])

    @property
    def num_codes(self) -> int:
        """Number of codes sampled so far."""
        return sum(len(one.stream.codes) for one in self._sentences if one.stream)

    @property
    def num_rows(self) -> int:
        """Number of sentences that the engine is sampling or has queued."""
        return sum(one.stream.active for one in self._sentences if one.stream)

    def open(self) -> None:
        """Starts the stream by queueing its first sentence."""
        self._sentences[0].open(self._hurry)

    def look_ahead(self) -> None:
        """Queues the next sentence early, as soon as the current one has enough codes to start its audio."""
        stream = self._sentences[self._number].stream
        following = self._sentences[self._number + 1 : self._number + 2]
        if following and following[0].stream is None and (stream.finished or len(stream.codes) >= FIRST_CODES):
            following[0].open()

    def ready(self) -> bool:
        """Whether `more` would return new samples or end the stream."""
        return not self.finished and self._sentences[self._number].ready()

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
        """Ends the stream and cancels the rest of the text."""
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
                self._engine.wait(self.ready)
                self.look_ahead()
                if len(samples := self.more()):
                    return samples
        except BaseException:
            self.close()
            raise

    def _check_heard(self):
        """Checks the previous sentences, if the current one already has audio. At the end of the text, checks all."""
        heard = self._number if self._sentences[self._number].is_heard else 0
        if self.finished and self._sentences[-1].end_seconds:
            heard = len(self._sentences)
        for sentence in self._sentences[self._num_checked : heard]:
            if self._checks:
                sentence.check()
            self._num_checked += 1

    def __del__(self):
        self.close()

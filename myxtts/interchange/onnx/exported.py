"""Speaks with an exported model in the server, without TensorFlow and Keras.

Unlike `speak.py`, it streams audio, and reads voices from all audio formats.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from myxtts.audio.files import read_audio
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.speech import VOICE_SUFFIX, Manner, Voice, faded, silence
from myxtts.inference.text_front import Piece, TextFront
from myxtts.inference.windows import FIRST_CODES, NO_SAMPLES, Sounding, Windows, WindowShape
from myxtts.interchange.onnx import speak
from myxtts.storage.files import CheckpointError
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


class ExportedModel:
    """An exported model, with the methods of `Synthesizer` that the server uses.

    Computes speech in the calling thread. Raises `CheckpointError` if a file is missing or damaged.
    """

    def __init__(self, folder: Path, warm: str = "none"):
        try:
            self.exported = exported = speak.Speaker(folder)
            settings = exported.config
            self.tokenizer = XTTSTokenizer.from_file(folder / "vocab.json").with_g2p(exported.reader.g2p)
            self.text_front = TextFront(self.tokenizer, settings["model"]["max_text_tokens"], settings["longest_texts"])
            self.config = XTTSConfig(sampling=SamplingConfig(**settings["sampling"]))
            self._windows = WindowShape(**settings["windows"])
            for name in ("conditioning", "speaker"):  # must exist, are loaded later
                (folder / f"{name}.onnx").stat()
            self.warm_up(warm)  # here, so that a damaged graph ends the command
        except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{folder} is not a complete export: {error}. Run `myxtts export` again.") from error
        self.sample_rate: int = exported.sample_rate
        self.engine, self.changed = self, threading.Condition()
        """The server waits on `engine.changed`, which nothing here notifies: `more` samples in the caller's thread."""
        self.speakers = {name: language or None for name, language in exported.voice_languages.items()}
        """Names of the stored voices, each with its language code; None for a voice whose language is unknown."""

    @property
    def cache_bytes(self) -> int:
        """Size in bytes of the float32 key-value cache for a sentence of maximum length."""
        positions = sum(self.exported.model[name] for name in ("num_latents", "max_text_tokens", "max_codes"))
        return 2 * 4 * self.exported.model["layers"] * self.exported.model["width"] * positions

    def as_voice(self, voice: str | Path) -> Voice:
        """Returns a voice, given a name in `speakers`, a recording or a `*.voice` file."""
        if Path(voice).suffix == VOICE_SUFFIX:
            found = Voice.load(voice)
            shapes = [found.latents.shape[1:], np.shape(found.speaker)[1:]]
            if shapes != [one.shape for one in self._no_voice()]:
                raise UserError(f"{voice} belongs to another model. Create it with this model from recordings.")
            return found
        found = self.exported.voices.get(voice)
        try:
            found = found or self.exported.listen(read_audio(voice).samples, MODEL_SAMPLE_RATE)
        except ValueError as error:
            raise UserError(str(error).replace("The recording", str(voice))) from error
        return Voice(*(array[None] for array in found))

    def _no_voice(self):
        """Returns zeros in the shapes of a voice: latents `(num_latents, width)`, speaker vector `(speaker_width,)`."""
        shapes = [("num_latents", "width"), ("speaker_width",)]
        return [np.zeros([self.exported.model[name] for name in names], np.float32) for names in shapes]

    def warm_up(self, which: str = "short", check: bool = False) -> None:
        """Loads and runs graphs, so that the first request is faster. `short` runs the GPT and the decoder, `all` also
        the encoders, which recordings need, and `none` runs nothing. `check` is ignored."""
        if which != "none":
            self.exported.sentence([], *self._no_voice(), max_codes=2)
        if which == "all":
            self.exported.listen(np.zeros(MODEL_SAMPLE_RATE, np.float32), MODEL_SAMPLE_RATE)

    def stream(self, text: Sequence[Piece], *manner, check: bool = False, hurry: bool = True) -> "ExportedStream":
        """Starts to speak a text, like `Synthesizer.stream`; `check` and `hurry` are ignored."""
        return ExportedStream(self, text, Manner(*manner))

    def sounding(self, voice: Voice, speed: float) -> Sounding:
        """Returns the decoder of one sentence, a `Sounding` that works window by window."""

        def to_samples(latents, start, end):
            window = dict(start=np.array([start]), end=np.array([end]))
            return self.exported.run("decoder", latents=latents[None], speaker=voice.speaker, **window)["samples"][0]

        return Windows(self._windows, to_samples, speed)


@dataclass
class ExportedStream:
    """Speech of one text, which is sampled piece by piece in calls of `more`; has the methods of `SpeechStream`."""

    model: ExportedModel
    pieces: Sequence[Piece]
    manner: Manner
    finished: bool = False
    num_codes: int = 0
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """Text, first sample and end sample (exclusive) of each piece spoken so far."""
    num_samples: int = 0
    num_rows: int = 1

    def open(self) -> None:
        """Prepares to sample the next piece."""
        exported, number = self.model.exported, len(self.spans)
        voice, language, sampling, seed, speed, _ = self.manner
        ids = self.model.text_front.ids(self.pieces[number].text, language)
        values = {name: getattr(sampling, name) for name in exported.config["sampling"]}
        self._draw = exported.draw(ids, voice.latents[0], seed, number, **values)
        self._sound: Sounding = self.model.sounding(voice, speed)
        self._drawn: list[tuple] = []  # states and codes
        self._start, self._is_heard = self.num_samples, False

    def look_ahead(self) -> None:
        """Does nothing, because this stream does not sample the next piece early."""

    def ready(self) -> bool:
        """Whether there is more to speak, so that `more` can be called."""
        return not self.finished

    def more(self) -> np.ndarray:
        """Samples a few codes; returns the next samples `(S,)` float32 (S may be 0), with the pause after a piece."""
        if self._draw is None:
            self.open()
        before = len(self._drawn)
        self._drawn += islice(self._draw, 2 * FIRST_CODES if before else FIRST_CODES)
        states, codes = zip(*self._drawn)
        last, rate = codes[-1], self.model.sample_rate
        ended = last in (None, self.model.exported.model["stop_audio_token"])
        if ended:
            codes = codes[:-1]
        self.num_codes += len(codes) - before
        samples = self._sound(codes, np.concatenate(states), ended) if codes else NO_SAMPLES
        if len(samples):
            samples = faded(samples, rate, not self._is_heard, ended)
            self._is_heard = True
        self.num_samples += len(samples)
        if not ended:
            return samples
        if last is None:
            logger.warning("Speech was cut off after %d codes.", len(codes))
        piece, self._draw = self.pieces[len(self.spans)], None
        self.spans.append((piece.text, self._start, self.num_samples))
        if len(self.spans) == len(self.pieces):
            self.finished = True
            return samples
        pause = silence(piece.pause_seconds, rate)
        self.num_samples += len(pause)
        return np.concatenate([samples, pause])

    def close(self) -> None:
        """Ends the stream without speaking the remaining pieces."""
        self.finished, self._draw, self._drawn = True, None, []

"""Runs exported models in the server, without TensorFlow and Keras.

Unlike `speak.py`, this module streams audio and reads recordings in all supported audio formats.
"""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from myxtts.audio.files import read_audio
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.speech import VOICE_SUFFIX, Voice
from myxtts.inference.text_front import TextFront
from myxtts.inference.windows import FIRST_CODES, NO_SAMPLES, Sounding, Windows, WindowShape
from myxtts.interchange.onnx import speak
from myxtts.storage.files import CheckpointError
from myxtts.text.tokenizer import XTTSTokenizer


class ExportedModel:
    """Exported model with the methods of `Synthesizer` that the server uses. It synthesizes in the calling thread.

    Streams must be polled, not iterated (see `SpeechStream`). Raises `CheckpointError` for missing or damaged files.
    """

    def __init__(self, folder: Path, warm: str = "none"):
        try:
            self.exported = exported = speak.Speaker(folder)
            settings, model = exported.config, exported.model
            self._shapes = (model["num_latents"], model["width"]), (model["speaker_width"],)
            self.tokenizer = XTTSTokenizer.from_file(folder / "vocab.json").with_g2p(exported.reader.g2p)
            self.text_front = TextFront(self.tokenizer, model["max_text_tokens"], settings["longest_texts"])
            self.config = XTTSConfig(sampling=SamplingConfig(**settings["sampling"]))
            self._windows = WindowShape(**settings["windows"])
            for name in ("conditioning", "speaker"):  # must exist, are loaded later
                (folder / f"{name}.onnx").stat()
            self.warm_up(warm)  # here, so that a damaged graph ends the command
        except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{folder} is not a complete export: {error}. Run `myxtts export` again.") from error
        self.sample_rate: int = exported.sample_rate
        self.no_speech = NO_SAMPLES  # as in speak.py
        self.engine = self.to_waveform = self
        self.changed = threading.Condition()
        """Condition on which the server waits. It is never notified, because `more` samples in the caller's thread."""
        self.speakers = {name: language or None for name, language in exported.voice_languages.items()}
        """Names of the stored voices, each with its language code; None for a voice whose language is unknown."""

    @property
    def cache_bytes(self) -> int:
        """Size in bytes of the float32 key-value cache for a sentence of maximum length."""
        positions = sum(self.exported.model[name] for name in ("num_latents", "max_text_tokens", "max_codes"))
        return 2 * 4 * self.exported.model["layers"] * self.exported.model["width"] * positions

    def as_voice(self, voice: str | Path) -> Voice:
        """Returns a `Voice`, given a name in `speakers` or the path of a recording or a `*.voice` file."""
        if Path(voice).suffix == VOICE_SUFFIX:
            return Voice.load(voice).checked(voice, *((1, *shape) for shape in self._shapes))
        found = self.exported.voices.get(voice)
        try:
            found = found or self.exported.listen(read_audio(voice).samples, MODEL_SAMPLE_RATE)
        except ValueError as error:
            raise UserError(str(error).replace("The recording", str(voice))) from error
        return Voice(*(array[None] for array in found))

    def warm_up(self, which: str = "short", check: bool = False) -> None:
        """Loads graphs and runs them, so that the first request is faster. `which` is `none`, `short` (GPT and decoder)
        or `all` (GPT, decoder, and the encoders for recordings). `check` is ignored."""
        if which != "none":
            self.exported.sentence([], *(np.zeros(shape, np.float32) for shape in self._shapes), max_codes=2)
        if which == "all":
            self.exported.listen(np.sin(np.arange(MODEL_SAMPLE_RATE)), MODEL_SAMPLE_RATE)  # silence would be refused

    def open(
        self, ids: list[int], latents: np.ndarray, sampling: SamplingConfig, seed: int, sentence: int, *limits
    ) -> "ExportedCodes":
        """Prepares a sentence for sampling, like `CodeEngine.open`. Ignores `limits` (`max_codes` and `hurry`)."""
        values = {name: getattr(sampling, name) for name in self.exported.config["sampling"]}
        draw = self.exported.draw(ids, latents[0], seed, sentence, **values)
        return ExportedCodes(draw, self.exported.model["stop_audio_token"])

    def begin(self, voice: Voice, speed: float = 1.0) -> Sounding:
        """Returns a `Sounding`: a function that decodes the GPT latents of one sentence window by window."""
        to_samples = lambda latents, start, end: self.exported.sound(latents, voice.speaker[0], 1.0, start, end)
        return Windows(self._windows, to_samples, speed)


class ExportedCodes:
    """Codes of one sentence, used like a `CodeStream`. The method `drawn` samples the codes in the calling thread."""

    is_ready, error = True, None

    def __init__(self, draw: Iterator[tuple[np.ndarray, int | None]], stop: int):
        self._draw, self._stop = draw, stop
        self.codes: list[int] = []
        self.states: list[np.ndarray] = []
        self.active, self.stopped, self.finished, self.cancelled = False, False, False, False

    def cancel(self) -> None:
        """Ends the sampling and frees the key-value cache and the GPT latents."""
        self.active, self.cancelled = False, True
        self._draw, self.states = iter(()), []

    def drawn(self) -> tuple[list[int], np.ndarray, bool]:
        """Samples a few codes. Returns codes and GPT latents `(n, width)` so far, and whether the sentence ended."""
        self.active = True
        for state, code in islice(self._draw, 2 * FIRST_CODES if self.codes else FIRST_CODES):
            self.states.append(state)
            self.stopped, self.finished = code == self._stop, code in (None, self._stop)
            if not self.finished:
                self.codes.append(code)
        if self.finished:
            self.active, self._draw = False, iter(())  # frees the key-value cache
        return self.codes, np.concatenate(self.states), self.finished

"""Lets the server speak with an exported folder, without TensorFlow and Keras.

Unlike `speak.py` alone, it has MyXTTS's text front end and reads all audio formats.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from myxtts.audio.files import read_audio
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.speech import VOICE_SUFFIX, Manner, Voice, silence
from myxtts.inference.text_front import Piece, TextFront
from myxtts.interchange.onnx import speak
from myxtts.storage.files import CheckpointError
from myxtts.text.g2p import ESPEAK
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


class ExportedModel:
    """An exported model; has the methods of `Synthesizer` that the server uses.

    Speaks one sentence at a time, in the calling thread. Raises `CheckpointError` if a file is missing or damaged.
    """

    def __init__(self, folder: Path):
        try:
            self.exported = exported = speak.Speaker(folder)
            settings = exported.config
            as_it_sounds = [*settings["written_as_it_sounds"], *[ESPEAK] * bool(settings["espeak_voices"])]
            self.tokenizer = XTTSTokenizer.from_file(folder / "vocab.json").with_g2p(as_it_sounds)
            most_tokens, longest_texts = settings["model"]["max_text_tokens"], settings["longest_texts"]
            self.config = XTTSConfig(sampling=SamplingConfig(**settings["sampling"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise CheckpointError(f"{folder} is not a complete export: {error}. Run `myxtts export` again.") from error
        self.text_front = TextFront(self.tokenizer, most_tokens, longest_texts)
        self.sample_rate: int = exported.sample_rate
        self.engine, self.changed = self, threading.Condition()
        """Replaces `CodeEngine.changed`, the condition on which the server waits; never notified."""
        self.speakers = {name: language or None for name, language in exported.voice_languages.items()}
        """Language of each stored voice, by name; None if unknown."""

    def as_voice(self, voice: str | Path) -> Voice:
        """Returns the voice of a name in `speakers`, of a recording, or of a `*.voice` file."""
        if Path(voice).suffix == VOICE_SUFFIX:
            found = Voice.load(voice)
            if (found.latents[0].shape, np.shape(found.speaker)[1:]) != tuple(one.shape for one in self._no_voice()):
                raise UserError(f"{voice} belongs to another model. Make a voice with this model from recordings.")
            return found
        found = self.exported.voices.get(voice)
        try:
            found = found or self.exported.listen(read_audio(voice).samples, MODEL_SAMPLE_RATE)
        except ValueError as error:
            raise UserError(f"{voice}: {error}") from error
        return Voice(*(array[None] for array in found))

    def _no_voice(self):
        """Returns latents and a speaker vector of zeros, in the shapes of the model."""
        shapes = [("num_latents", "width"), ("speaker_width",)]
        return [np.zeros([self.exported.model[name] for name in names], np.float32) for names in shapes]

    def warm_up(self, which: str = "short", check: bool = False) -> None:
        """Loads the graphs, unless `which` is `none`; `check` has no effect."""
        if which != "none":
            self.exported.sentence([], *self._no_voice(), max_codes=2)

    def stream(self, text: Sequence[Piece], *manner, check: bool = False, hurry: bool = True) -> "ExportedStream":
        """Starts to speak a text, like `Synthesizer.stream`; `check` and `hurry` have no effect."""
        return ExportedStream(self, text, Manner(*manner))


@dataclass
class ExportedStream:
    """Speech of one text; has the methods of `SpeechStream`. Each call of `more` speaks one piece."""

    model: ExportedModel
    pieces: Sequence[Piece]
    manner: Manner
    finished: bool = False
    num_codes: int = 0
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """Text, first sample and end sample of each piece spoken so far."""
    num_samples: int = 0
    num_rows: int = 1

    def open(self) -> None:
        """Does nothing: `more` needs no preparation."""

    look_ahead = open

    def ready(self) -> bool:
        """Whether `more` can be called."""
        return not self.finished

    def more(self) -> np.ndarray:
        """Speaks the next piece; returns its samples and the pause after it, `(S,)` float32."""
        exported, number = self.model.exported, len(self.spans)
        piece, (voice, language, sampling, seed, speed, _) = self.pieces[number], self.manner
        ids, arrays = self.model.text_front.ids(piece.text, language), (voice.latents[0], voice.speaker[0])
        values = {name: getattr(sampling, name) for name in exported.config["sampling"]}
        samples, codes, stopped = exported.sentence(ids, *arrays, seed, number, speed, **values)
        if not stopped:
            logger.warning("Speech was cut off after %d codes.", len(codes))
        self.num_codes += len(codes)
        self.spans.append((piece.text, self.num_samples, self.num_samples + len(samples)))
        self.finished |= len(self.spans) == len(self.pieces)
        if not self.finished:
            samples = np.concatenate([samples, silence(piece.pause_seconds, self.model.sample_rate)])
        self.num_samples += len(samples)
        return samples

    def close(self) -> None:
        """Cancels the pieces that have not been spoken."""
        self.finished = True

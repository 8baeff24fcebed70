"""Text and a voice -> speech: whole, in batches, or as a stream of sound."""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import tensorflow as tf

from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import MEL_FLOOR, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.inference.advancing import TensorflowSteps
from myxtts.inference.choices import DECODERS, ENGINES
from myxtts.inference.code_engine import FIRST_CODES, CodeEngine
from myxtts.inference.loading import load_model
from myxtts.inference.self_check import Calibration, Listener, SecondReading
from myxtts.inference.speech import Speech, silence
from myxtts.inference.text_front import Piece, SpeechError, TextFront  # noqa: F401  callers catch the error
from myxtts.inference.text_stream import Manner, Sentence, SpeechStream
from myxtts.inference.voices import VOICE_SUFFIX, Recording, Voice, VoiceEncoder, stored_voice
from myxtts.inference.waveforms import GriffinLim, LatentDecoder
from myxtts.models.xtts import XTTS
from myxtts.storage.base_model import default_speaker
from myxtts.storage.speakers import find_speaker, read_speakers
from myxtts.text.language_guess import language_to_read
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import SpeechRate, longest_texts, read_rates
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

REMEMBERED_VOICES = 32
"""Voices that a loaded model keeps."""
MOST_AHEAD = 64
"""Sentences that are opened at a time: what is drawn ahead of their audio stays in memory."""
WARM_UPS = ("none", "short", "all")
AnyVoice = Voice | Recording | list[Recording]
"""A `Voice`, the name of a speaker, the file of a `Voice`, or recordings to make one from."""


class Synthesizer:
    """Speaks with a model that has a trained `gpt`, and `speaker` and `decoder`, which make the sound, or a `dvae`.

    `voice` turns recordings into a `Voice`; `engine` draws the codes, with TensorFlow unless its `steps` are replaced.
    Any number of threads may speak at once: what they ask for is drawn together.

    Args:
        decoder: `model` or `griffin-lim`, what makes the sound; None takes the model's decoder where there is one.
        compiled: As in `TensorflowSteps`.
        remember_voices: As in `VoiceEncoder`.
        traced: Whether all that is computed becomes graphs. For a sentence or two they take longer to make than they
            save; without, only the drawing of codes is one.
        rates: How long texts take, by language; for others there is a rule of thumb.
        calibration: What makes the self-check's confidence a probability; None for a model that was never calibrated.
    """

    def __init__(
        self,
        model: XTTS,
        tokenizer: XTTSTokenizer,
        config: XTTSConfig,
        decoder: str | None = None,
        compiled: bool | None = None,
        remember_voices: int = 0,
        traced: bool = True,
        rates: dict[str, SpeechRate] | None = None,
        calibration: Calibration | None = None,
    ):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.rates, self.calibration = rates or {}, calibration
        longest = longest_texts(self.rates, config.training.init_from)
        self.text_front = TextFront(tokenizer, config.model.max_text_tokens, longest)
        self.voice = VoiceEncoder(model, config, remember_voices, traced)
        self.engine = CodeEngine(TensorflowSteps(model.gpt, config.model, compiled, traced), config.model)
        self.read_again = SecondReading(model.gpt, traced)
        self.folder: Path | None = None
        """Where the model was loaded from, for its own voices."""
        self.engine_name, self.make_steps = "tensorflow", None
        """Which of `choices.ENGINES` draws; and `(name) -> steps` of another, set by whoever can make one."""
        self._engines = {"tensorflow": self.engine}
        codes = [tf.TensorSpec([None, None], tf.int32)]
        self._to_mel = tf.function(lambda codes: model.denormalize_mel(model.dvae.decode(codes)), input_signature=codes)
        self.to_waveform = self._make_waveform(decoder, traced)

    def _make_waveform(self, decoder, traced):
        if decoder not in (None, *DECODERS):
            raise UserError(f"decoder must be one of {', '.join(DECODERS)}. Received: {decoder}.")
        part = DECODERS.get(decoder)
        if part and part not in self.model.parts:
            raise UserError(
                f"--decoder {decoder} needs a trained {part}. The model has: {', '.join(self.model.parts)}."
            )
        by_latents = part == "decoder" or part is None and "decoder" in self.model.parts
        return LatentDecoder(self.model, traced) if by_latents else GriffinLim(self.codes_to_mel)

    @classmethod
    def load(cls, folder: str | Path, which: str = "best", only_speech: bool = False, **options) -> Self:
        """Opens a run's folder, or what `myxtts convert` wrote; see `load_model`. `options` are those of the class.

        Args:
            only_speech: Leave out what can be done without, of a model with a waveform decoder: the mel of a `Speech`.
        """
        model, tokenizer, config = load_model(folder, which, only_speech and options.get("decoder") != "griffin-lim")
        known = {"rates": read_rates(folder), "calibration": Calibration.read(folder)}
        options = {"remember_voices": REMEMBERED_VOICES, **known, **options}
        synthesizer = cls(model, tokenizer, config, **options)
        synthesizer.folder = Path(folder)
        if "decoder" not in synthesizer.model.parts:
            logger.info("No trained waveform decoder in %s: Griffin-Lim turns the mel into sound.", folder)
        return synthesizer

    @property
    def sample_rate(self) -> int:
        """Of all sound, in Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
        return self.to_waveform.sample_rate

    @property
    def speakers(self) -> list[str]:
        """Names of the voices that come with the model, for `voice=`; their languages are in `read_speakers`."""
        return [*read_speakers(self.folder)] if self.folder else []

    def __repr__(self) -> str:
        languages, names = " ".join(sorted(self.tokenizer.languages)), self.speakers
        shown = f"speakers: {', '.join(names[:4])}{', …' * (len(names) > 4)}" if names else "no speakers of its own"
        kind = f"{self.config.model.size}, languages: {languages}, {shown}, engine: {self.engine_name}"
        return f"<{type(self).__name__} of {self.folder or 'a model in memory'}: {kind}; .speak(text, voice=…)>"

    def with_engine(self, name: str | None) -> Self:
        """This model with its codes drawn by another of `choices.ENGINES`, made when first asked for; itself for None.

        Raises:
            UserError: There is no such engine, or a package is missing.
        """
        if name in (None, self.engine_name):
            return self
        if name not in self._engines:
            if self.make_steps is None or name not in ENGINES:
                raise UserError(f"engine must be one of {', '.join(ENGINES)}. Received: {name}.")
            self._engines[name] = CodeEngine(self.make_steps(name), self.config.model)
        other = copy.copy(self)
        other.engine, other.engine_name = self._engines[name], name
        return other

    def set_g2p(self, languages: Sequence[str]) -> None:
        """Writes text as it sounds in these languages alone; by default in those that the model was trained so with.

        Raises:
            SpeechError: There are no rules for the sounds of one of them.
        """
        try:
            self.tokenizer = self.tokenizer.with_g2p(languages)
        except ValueError as error:
            raise SpeechError(f"--g2p: {error}") from None
        self.text_front = replace(self.text_front, tokenizer=self.tokenizer)

    def speak(
        self,
        text: str,
        voice: AnyVoice | None = None,
        language: str | None = None,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        speed: float = 1.0,
        retries: int = 0,
        listener: Listener | None = None,
        progress: Callable[[int, int], None] | None = None,
        engine: str | None = None,
        **drawing: float,
    ) -> Speech:
        """Speaks one text of any length, sentence by sentence; raises `SpeechError` where the model cannot.

        Args:
            voice: The name of a speaker of the model, a `.voice` file, or recordings; None takes the voice of its own
                that the bundled model has for the language.
            language: Code, such as `en` or `fa`; by default the speaker's, else English, unless the text's letters are
                those of one other language alone.
            sampling: How codes are drawn; None takes the run's.
            speed: How much faster than the model speaks by itself, at the same pitch.
            retries: As in `batch`, like `listener` and `progress`.
            engine: What draws the codes, one of `choices.ENGINES`; None takes the one that was chosen at loading.
            drawing: Single values of `SamplingConfig`: `temperature`, `top_k`, `top_p`, `repetition_penalty`.
        """
        sampling = (sampling or self.config.sampling).changed(drawing)
        if language is None:
            name = voice if isinstance(voice, str) and voice in self.speakers else None
            own = name and self.folder and find_speaker(self.folder, name).language
            language, note = language_to_read(text, None, own, name or "", self.tokenizer.languages)
            if note:
                logger.info("%s", note)
        options = dict(speed=speed, retries=retries, listener=listener, progress=progress)
        return self.with_engine(engine).batch([text], [voice], [language], sampling, seed, **options)[0]

    def batch(
        self,
        texts: Sequence[str],
        voices: Sequence[AnyVoice | None],
        languages: Sequence[str],
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        max_codes: int = 0,
        speed: float = 1.0,
        retries: int = 0,
        listener: Listener | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Speech]:
        """Speaks several texts of any length together, sentence by sentence.

        Args:
            voices: None takes the voice that the bundled model has for the language.
            languages: Codes, such as `en` or `fa`.
            sampling: How codes are drawn; None takes the run's.
            max_codes: Most codes of a sentence; 0 takes the model's limit.
            speed: How much faster than the model speaks by itself, at the same pitch.
            retries: How often a sentence of low confidence is sampled again; the one with the highest stays.
            listener: A recognizer whose errors count too, see `hearing.recognizers.Listening`.
            progress: Called with how many pieces of the texts are spoken, and of how many.

        Raises:
            SpeechError: The model cannot speak one of the texts.
        """
        found = [self.text_front.pieces(text, language) for text, language in zip(texts, languages, strict=True)]
        spoken = []
        for pieces, voice, language in zip(found, voices, languages, strict=True):
            voice = self.as_voice(voice, language)
            manner = Manner(voice, language, sampling or self.config.sampling, seed, speed, max_codes)
            spoken.append([Sentence(self, piece, number, manner) for number, piece in enumerate(pieces)])
        sentences, done = sum(spoken, []), 0
        try:
            speeches = []
            for text in spoken:
                parts, end = [], 0
                for sentence in text:
                    if done % MOST_AHEAD == 0:
                        with self.engine.changed:
                            for following in sentences[done : done + MOST_AHEAD]:
                                following.open()
                    parts += [sentence.best(retries, listener), silence(sentence.piece.pause_seconds, self.sample_rate)]
                    sentence.end(end, end + len(parts[-2]))
                    end += len(parts[-2]) + len(parts[-1])
                    done += 1
                    if progress:
                        progress(done, len(sentences))
                to_mel = self.codes_to_mel if "dvae" in self.model.parts else None
                pieces = tuple(sentence.spoken() for sentence in text)
                speeches.append(Speech(np.concatenate(parts[:-1]), self.sample_rate, pieces, to_mel))
            return speeches
        finally:
            for sentence in sentences:
                sentence.cancel()

    def stream(
        self,
        text: str | Sequence[Piece],
        voice: AnyVoice | None = None,
        language: str = "en",
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        speed: float = 1.0,
        check: bool = True,
        hurry: bool = True,
    ) -> SpeechStream:
        """The samples of `speak`, `(S,)` float32 each, as soon as they are known; `close` cancels the rest.

        With a waveform decoder they come window by window, with Griffin-Lim sentence by sentence. What cannot be spoken
        is an error of this call, before anything is drawn.

        Args:
            text: A text, or what `text_front.pieces` made of one.
            check: Whether the self-check judges each sentence once its audio is out.
            hurry: Whether the first audio is waited for.
        """
        pieces = self.text_front.pieces(text, language) if isinstance(text, str) else text
        voice = self.as_voice(voice, language)
        manner = Manner(voice, language, sampling or self.config.sampling, seed, speed)
        return SpeechStream(self, pieces, manner, hurry, check)

    def as_voice(self, voice: AnyVoice | None, language: str = "en") -> Voice:
        """The voice itself, a speaker's by name, that of a `.voice` file or of recordings, or for None the model's own.

        Raises:
            UserError: It is none of these, or of another model.
        """
        if voice is None:
            name = self.folder and default_speaker(self.folder, get_language(language).code)
            if not name:
                raise SpeechError("This model has no voice of its own. Give one: recordings or a .voice file.")
            voice = stored_voice(self.folder, name, self.voice)
        if isinstance(voice, Voice):
            return self._checked(voice, "What was given")
        if isinstance(voice, str) and self.folder:
            if voice in self.speakers or not (Path(voice).suffix or Path(voice).exists()):
                return self._checked(stored_voice(self.folder, voice, self.voice), voice)
        if isinstance(voice, str | Path) and Path(voice).suffix == VOICE_SUFFIX:
            return self._checked(Voice.load(voice), voice)
        return self.voice(voice)

    def codes_to_mel(self, codes: np.ndarray) -> np.ndarray:
        """Log-mel `(4 C, num_mels)` that codes `(C,)` stand for; of no code, a moment of silence."""
        if not len(codes):
            return np.full((MEL_FRAMES_PER_CODE, NUM_MELS), np.log(MEL_FLOOR), np.float32)
        return self._to_mel(codes[None])[0].numpy()

    def attention(self, speech: Speech, voice: AnyVoice, language: str = "en") -> np.ndarray:
        """How what was spoken follows its text, `(C, L)`: where each code looks among the tokens; see `Reading`.

        Args:
            speech: Of this model, in the voice and language given. The texts of several pieces come one after another.
        """
        from scipy.linalg import block_diag  # it takes a while to import, and speaking does without

        latents, found = self.as_voice(voice).latents, []
        for piece in speech.pieces:
            ids = self.text_front.ids(piece.text, language)
            codes, nothing = piece.codes, np.zeros((0, len(ids) + 2), np.float32)
            found.append(self.read_again(latents, ids, codes).attention if len(codes) else nothing)
        return block_diag(*found)

    def warm_up(self, which: str = "short", check: bool = True) -> None:
        """Does ahead what the first sentences would wait for.

        Args:
            check: Whether this includes the GPT's second reading, by which sentences are judged.
            which: `short` traces the graphs, which takes seconds; `all` also compiles every shape of batch, which takes
                minutes and makes the draws faster from then on; `none` does nothing.
        """
        if which not in WARM_UPS:
            raise UserError(f"warm_up must be one of {', '.join(WARM_UPS)}. Received: {which}.")
        if which == "none":
            return
        voice = self.voice(np.random.default_rng(0).normal(0, 0.1, 2 * MODEL_SAMPLE_RATE).astype(np.float32))
        stream = self.engine.open([], voice.latents, self.config.sampling, max_codes=FIRST_CODES)
        self.engine.finish([stream])
        self.to_waveform.begin(voice).more(*stream.drawn())
        if check:
            self.read_again(voice.latents, [], np.zeros(1, np.int32))
        if which == "all":
            self.engine.compile_all()

    def _checked(self, voice, where):
        config = self.config.model
        shapes = [voice.latents.shape == (1, config.num_latents, config.width)]
        arrays = [voice.latents]
        if isinstance(self.to_waveform, LatentDecoder):
            shapes.append(voice.speaker is not None and voice.speaker.shape == (1, config.speaker_width))
            arrays.append(voice.speaker)
        if not all(shapes):
            raise SpeechError(f"{where} holds a voice of another model. Make one with this model from recordings.")
        if not all(np.isfinite(array).all() for array in arrays):
            raise SpeechError(f"{where} holds a voice with NaN or infinity. Create it again from recordings.")
        return voice

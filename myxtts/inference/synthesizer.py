"""Speech synthesis of one text, of several texts together, or as a stream."""

import copy
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, resample
from myxtts.config.checks import UserError, brief, require
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FLOOR, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.inference.advancing import TensorflowSteps
from myxtts.inference.choices import DECODERS, ENGINES
from myxtts.inference.code_engine import CodeEngine
from myxtts.inference.decoding import GriffinLim, LatentDecoder
from myxtts.inference.loading import load_model
from myxtts.inference.self_check import Calibration, Listener, SecondReading
from myxtts.inference.speech import VOICE_SUFFIX, Manner, Speech, SpeechError, SpokenPiece, Voice, silence
from myxtts.inference.text_front import Piece, TextFront
from myxtts.inference.text_stream import Sentence, SpeechStream
from myxtts.inference.voices import Recording, VoiceEncoder, stored_voice
from myxtts.inference.windows import FIRST_CODES
from myxtts.models.xtts import XTTS
from myxtts.storage.base_model import is_base
from myxtts.storage.speakers import composed, default_speaker, language_of, read_speakers
from myxtts.text.language_guess import language_to_read
from myxtts.text.languages import get_language
from myxtts.text.speech_rates import longest_texts, read_rates
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

MOST_AHEAD = 64
"""Maximum number of sentences that `batch` queues at a time, to limit the memory for their codes and latents."""
AnyVoice = Voice | Recording | list[Recording]
"""A `Voice`, the name of a voice that comes with the model, the path of a `.voice` file, or a speaker's recordings."""


class Synthesizer:
    """Synthesizes speech with a GPT and a waveform decoder. Without a waveform decoder, uses a DVAE and Griffin-Lim.

    Thread-safe: the attribute `engine` samples the codes for all threads together. The attribute `voice` is the encoder
    that turns recordings into a `Voice`.

    Args:
        decoder: `model` or `griffin-lim`. None means `model` if the model has a waveform decoder, else `griffin-lim`.
        traced: Whether to trace all computations. False traces only the sampling, and is faster for a single sentence.
        folder: Folder with the model's voices, speech rates and `Calibration`. If None, encoded voices are not cached;
            the model's weights can then be changed safely.
    """

    def __init__(
        self,
        model: XTTS,
        tokenizer: XTTSTokenizer,
        config: XTTSConfig,
        decoder: str | None = None,
        traced: bool = True,
        folder: Path | None = None,
    ):
        self.model, self.tokenizer, self.config, self.folder = model, tokenizer, config, folder
        self.languages: list[str] = sorted(tokenizer.languages)
        """Codes of the languages that the model was trained on: the permitted values of `language`."""
        self.rates = read_rates(folder) if folder else {}
        self.calibration = Calibration.read(folder) if folder else None
        longest = longest_texts(self.rates, config.training.init_from)
        self.text_front = TextFront(tokenizer, config.model.max_text_tokens, longest)
        self.voice = VoiceEncoder(model, config, remember=32 if folder else 0, traced=traced)
        self.engine = CodeEngine(TensorflowSteps(model.gpt, config.model, traced=traced), config.model)
        self.read_again, self._mel_of = SecondReading(model.gpt, traced), MelSpectrogram(DVAE_MEL)
        self.engine_name, self.make_steps = "tensorflow", None
        """`engine_name` names the engine in use. `make_steps(name)` loads an ONNX engine; without ONNX, it is None."""
        self._engines, self._loading = {"tensorflow": self.engine}, threading.Lock()
        to_mel = lambda codes: model.denormalize_mel(model.dvae.decode(codes))
        self._to_mel = tf.function(to_mel, input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
        require(decoder in (None, *DECODERS), "decoder", f"one of {', '.join(DECODERS)}", decoder)
        part = DECODERS.get(decoder)
        if part and part not in model.parts:
            raise UserError(f"--decoder {decoder} needs a trained {part}. The model has: {', '.join(model.parts)}.")
        is_trained = part != "dvae" and "decoder" in model.parts
        self.to_waveform = LatentDecoder(model, traced) if is_trained else GriffinLim(self.codes_to_mel)
        shapes = (1, config.model.num_latents, config.model.width), (1, config.model.speaker_width)
        self._voice_shapes = shapes if is_trained else shapes[:1]
        self.sample_rate: int = self.to_waveform.sample_rate
        """Sample rate in Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
        self.no_speech = silence(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, self.sample_rate)
        """Silence, `(S,)` float32, that replaces a sentence for which the model samples no codes."""

    @classmethod
    def load(cls, folder: str | Path, which: str = "best", only_speech: bool = False, **options) -> Self:
        """Loads a model; for arguments and errors, see `load_model`. `options` are arguments of `__init__`.
        If `only_speech` is true and XTTS's waveform decoder is used, skips the DVAE, so that `Speech.mel` is None."""
        model = load_model(folder, which, only_speech and options.get("decoder") != "griffin-lim")
        if "decoder" not in model.parts:
            logger.info("%s has no trained waveform decoder: Griffin-Lim is used.", folder)
        return cls(model, *model.preset, folder=Path(model.origin), **options)

    @property
    def speakers(self) -> list[str]:
        """Names of the voices that come with the model, for the argument `voice`."""
        return [*read_speakers(self.folder)] if self.folder else []

    def __repr__(self) -> str:
        languages, names = " ".join(self.languages), self.speakers
        shown = f"speakers: {', '.join(names[:4])}{', …' * (len(names) > 4)}" if names else "no speakers of its own"
        kind = f"{self.config.model.size}, languages: {languages}, {shown}, engine: {self.engine_name}"
        return f"<{type(self).__name__} of {self.folder or 'a model in memory'}: {kind}; .speak(text, voice=…)>"

    def with_engine(self, name: str | None) -> Self:
        """Returns a copy that samples with the engine `name`, a key of `choices.ENGINES`. Returns `self` if `name`
        is None or the engine in use. Raises `UserError` if the engine is unknown or its package is missing."""
        if name in (None, self.engine_name):
            return self
        with self._loading:  # so that no two threads load the same engine
            if name not in self._engines:
                offered, hint = (ENGINES, "") if self.make_steps else (self._engines, "Load it with myxtts.load.")
                require(name in offered, "engine", f"one of {', '.join(offered)}", name, hint)
                self._engines[name] = CodeEngine(self.make_steps(name), self.config.model)
        other = copy.copy(self)
        other.engine, other.engine_name = self._engines[name], name
        return other

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
        """Synthesizes a text of any length, sentence by sentence. For errors and other arguments, see `sentences`.

        Args:
            language: Language code, such as `fa`. None means the first known of these: the language of the voice, the
                language that all training speakers share, the language detected from the text.
            engine: Name in `choices.ENGINES`; None uses the engine that was chosen at loading.
            drawing: Values that override `sampling`: `temperature`, `top_k`, `top_p`, `repetition_penalty`.
        """
        voice, language = self._voice_and_language(text if isinstance(text, str) else None, voice, language)
        sampling = (sampling or self.config.sampling).changed(drawing, "voice language seed speed retries".split())
        options = dict(speed=speed, retries=retries, listener=listener, progress=progress)
        return self.with_engine(engine).batch([text], [voice], [language], sampling, seed, **options)[0]

    def _voice_and_language(self, text, voice, language):
        voice = None if isinstance(voice, str) and not voice else voice
        if voice is None and not language and self.folder and not is_base(self.folder):  # base: a voice per language
            voice = default_speaker(self.folder, "")
        name = composed(voice) if isinstance(voice, str) and composed(voice) in self.speakers else ""
        own = language_of(self.folder, name) if self.folder and not language else None
        language, note = language_to_read(text, language, own, name, self.tokenizer.languages)
        if text is not None:
            self.text_front.check(text, language)
        voice = self.as_voice(voice, language)  # raises its errors before the note is logged
        logger.log(logging.INFO if note else logging.DEBUG, "%s", note.replace("--language", "language"))
        return voice, language

    def batch(
        self, texts: Sequence[str], voices: Sequence[AnyVoice | None], languages: Sequence[str], *given, **options
    ) -> list[Speech]:
        """Synthesizes several texts of any length together, and returns a `Speech` for each text, in the same order.
        For arguments and errors, see `sentences`."""
        to_mel = self.codes_to_mel if "dvae" in self.model.parts else None
        found = []
        for piece, samples in self.sentences(texts, voices, languages, *given, **options):
            if not piece.start_seconds:
                found.append(([], []))
            for parts, part in zip(found[-1], (piece, samples)):
                parts.append(part)
        return [Speech(np.concatenate(parts), self.sample_rate, tuple(pieces), to_mel) for pieces, parts in found]

    def sentences(
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
    ) -> Iterator[tuple[SpokenPiece, np.ndarray]]:
        """Synthesizes several texts together. Returns an iterator, so that the audio need not fit in memory.

        Yields `(piece, samples)` for each piece, text after text. The samples `(S,)` float32 include the pause before
        the next piece of the same text.

        Args:
            voices: One `AnyVoice` per text. None means the model's default voice for the language of the text.
            languages: One language code per text, such as `en` or `fa`.
            sampling: Sampling parameters; None uses those in the model's configuration.
            max_codes: Maximum number of codes per sentence; 0 means the model's limit.
            speed: Factor of the speaking rate; the pitch does not change.
            retries: Maximum number of further attempts at a sentence with low confidence. The attempt with the highest
                confidence is used.
            listener: Speech recognizer for the self-check, such as `hearing.recognizers.Listening`.
            progress: Called after each piece with the number of spoken pieces and the number of all pieces.

        Raises `SpeechError`, before anything is sampled, if the model cannot speak one of the texts.
        """
        require(isinstance(retries, int | np.integer) and 0 <= retries <= 100, "retries", "0 to 100", brief(retries))
        found = [self.text_front.pieces(text, language) for text, language in zip(texts, languages, strict=True)]
        planned = []
        for pieces, voice, language in zip(found, voices, languages, strict=True):
            voice, sampling = self.as_voice(voice, language), sampling or self.config.sampling
            manner = Manner(voice, language, sampling, seed, speed, max_codes)
            pieces = [*pieces[:-1], pieces[-1]._replace(pause_seconds=0.0)]
            planned += [Sentence(self, piece, number, manner) for number, piece in enumerate(pieces)]
        return self._speak(planned, retries, listener, progress)

    def _speak(self, planned, retries, listener, progress):
        total, end = len(planned), 0
        while planned:
            sentences, planned = planned[:MOST_AHEAD], planned[MOST_AHEAD:]
            try:
                with self.engine.changed:
                    for sentence in sentences:
                        sentence.open()
                for done, sentence in enumerate(sentences, total - len(planned) - len(sentences) + 1):
                    samples = sentence.best(retries, listener)
                    start = end if sentence.number else 0
                    sentence.end(start, start + len(samples))
                    samples = np.concatenate([samples, silence(sentence.piece.pause_seconds, self.sample_rate)])
                    end = start + len(samples)
                    if progress:
                        progress(done, total)
                    yield sentence.spoken(), samples
            finally:
                for sentence in sentences:
                    sentence.cancel()

    def stream(
        self,
        text: str | Sequence[Piece],
        voice: AnyVoice | None = None,
        language: str | None = None,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        speed: float = 1.0,
        check: bool = True,
        hurry: bool = True,
    ) -> SpeechStream:
        """Returns an iterator that synthesizes a text part by part. With Griffin-Lim, each part is a whole sentence.

        Args:
            text: A text, or the pieces that `text_front.pieces` splits it into.
            check: Whether to run the self-check.
            hurry: Whether to sample the first codes in short calls, so that the audio starts early.

        For the other arguments, see `speak`. Raises `SpeechError` before sampling if the model cannot speak the text.
        """
        voice, language = self._voice_and_language(text if isinstance(text, str) else None, voice, language)
        is_split = isinstance(text, list | tuple) and all(isinstance(one, Piece) for one in text)
        pieces = text if is_split else self.text_front.pieces(text, language)
        manner = Manner(voice, language, sampling or self.config.sampling, seed, speed)
        return SpeechStream(self, pieces, manner, hurry, check)

    def as_voice(self, voice: AnyVoice | None, language: str = "en") -> Voice:
        """Loads or encodes a voice. None means the model's default voice for `language`. Raises `UserError` if the
        voice does not exist or belongs to another model."""
        if voice is None:
            if not (voice := self.folder and default_speaker(self.folder, get_language(language).code)):
                own = f", one of the speakers ({', '.join(self.speakers[:3])})" if self.speakers else ""
                raise SpeechError(f"No voice given. Give recordings{own} or a .voice file.")
        if isinstance(voice, Voice):
            return voice.checked("The given voice", *self._voice_shapes)
        if isinstance(voice, list) and len(voice) == 1 and isinstance(voice[0], str | Path):
            voice = Path(voice[0])  # may be a .voice file
        if isinstance(voice, str) and self.folder:
            if composed(voice) in self.speakers or not (Path(voice).suffix or Path(voice).exists()):
                try:
                    return stored_voice(self.folder, voice, self.voice).checked(voice, *self._voice_shapes)
                except UserError as error:
                    error.add_note("From Python: voice= takes the values of --speaker and --reference-audio.")
                    raise
        if isinstance(voice, str | Path) and Path(voice).suffix == VOICE_SUFFIX:
            return Voice.load(voice).checked(voice, *self._voice_shapes)
        return self.voice(voice)

    def codes_to_mel(self, codes: np.ndarray) -> np.ndarray:
        """Decodes codes `(C,)` to a log-mel spectrogram `(4 C, num_mels)`; returns four silent frames if C is 0."""
        if not len(codes):
            return np.full((MEL_FRAMES_PER_CODE, NUM_MELS), np.log(MEL_FLOOR), np.float32)
        return self._to_mel(codes[None])[0].numpy()

    def distortion(self, codes: np.ndarray, samples: np.ndarray) -> float:
        """Returns the mean absolute difference in nats between two log-mels: the log-mel of the audio `(S,)`, and the
        log-mel that the DVAE decodes from the `codes` `(C,)`. Returns 0 if there is no DVAE, or if the audio is not
        decoded by an `istft` decoder, because the limits `self_check.DISTORTION` are for this decoder only."""
        is_checked = self.config.model.decoder_type == "istft" and isinstance(self.to_waveform, LatentDecoder)
        if not is_checked or "dvae" not in self.model.parts:
            return 0.0
        wav = resample(samples[None], self.sample_rate, MODEL_SAMPLE_RATE)
        wanted, heard = self.codes_to_mel(np.asarray(codes)), self._mel_of(wav)[0].numpy()
        frames = min(len(wanted), len(heard))
        return float(np.abs(wanted[:frames] - heard[:frames]).mean())

    def attention(self, speech: Speech, voice: AnyVoice, language: str = "en") -> np.ndarray:
        """Returns the attention of codes to text tokens, `(C, L)`: a block on the diagonal for each piece, 0 elsewhere.
        `speech` must have been synthesized by this model, with this voice and language."""
        from scipy.linalg import block_diag  # slow to import

        latents, found = self.as_voice(voice).latents, []
        for piece in speech.pieces:
            ids = self.text_front.ids(piece.text, language)
            codes, nothing = piece.codes, np.zeros((0, len(ids) + 2), np.float32)
            found.append(self.read_again(latents, ids, codes).attention if len(codes) else nothing)
        return block_diag(*found)

    def warm_up(self, which: str = "short", check: bool = True) -> None:
        """Traces graphs in advance, so that the first text is synthesized as fast as later texts.

        Args:
            which: `none`, `short` (traces all graphs in seconds) or `all` (also compiles all batch shapes in minutes).
            check: Whether to include the graph of the self-check.
        """
        require(which in ("none", "short", "all"), "warm_up", "one of none, short, all", which)
        if which == "none":
            return
        voice = self.voice(np.random.default_rng(0).normal(0, 0.1, 2 * MODEL_SAMPLE_RATE).astype(np.float32))
        stream = self.engine.open([], voice.latents, self.config.sampling, max_codes=FIRST_CODES)
        self.engine.finish([stream])
        self.to_waveform.begin(voice)(*stream.drawn())
        if check:
            self.read_again(voice.latents, [], np.zeros(1, np.int32))
            self.distortion(np.zeros(1, np.int32), self.no_speech)
        if which == "all":
            self.engine.compile_all()

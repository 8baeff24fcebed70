"""What a client asks for, checked before the first byte of the answer."""

import dataclasses
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from myxtts.apps.server.errors import ApiError
from myxtts.audio.encoding import OPEN_FORMATS, SOUND_FORMATS
from myxtts.config.checks import UNPRINTABLE, UserError
from myxtts.config.config import SamplingConfig
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.text_front import SpeechError
from myxtts.text.language_guess import guess_language
from myxtts.text.languages import get_language

ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that clients of OpenAI ask for by default; each means the model that is served."""
_SAMPLED = ("temperature", "top_k", "top_p", "repetition_penalty")


class VoiceId(BaseModel):
    """A voice as OpenAI's clients name those of their own."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(min_length=1, max_length=200)]


class SpeechRequest(BaseModel):
    """Body of `POST /v1/audio/speech`: OpenAI's fields, then this server's own."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: Annotated[str, Field(min_length=1, max_length=200, description="see /v1/models")]
    input: Annotated[str, Field(min_length=1, description="the text")]
    voice: Annotated[str, Field(min_length=1, max_length=200)] | VoiceId
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = Field(
        "mp3", description="pcm: 16 bit, little-endian, mono, 24 000 Hz"
    )
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    stream_format: Literal["audio", "sse"] | None = Field(
        None, description="send the sound while it is made, plain or as server-sent events"
    )
    instructions: str | None = Field(None, max_length=10_000, description="accepted, and without effect")
    user: str | None = Field(None, max_length=200, description="accepted, and without effect")
    stream: bool | None = Field(None, description="true is stream_format audio")
    language: str | None = Field(None, max_length=20, description="code; by default the voice's, as far as letters fit")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    temperature: Annotated[float, Field(allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(lt=2**31)] | None = None
    top_p: Annotated[float, Field(allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @property
    def voice_name(self) -> str:
        """The voice's name, however it is given."""
        return self.voice if isinstance(self.voice, str) else self.voice.id

    @property
    def is_open(self) -> bool:
        """Whether the sound is sent while it is made. PCM always is: its bytes are the same."""
        return bool(self.stream or self.stream_format or self.response_format == "pcm")


def check_request(asked: SpeechRequest, model: str, max_characters: int) -> None:
    """Raises `ApiError` for what can be seen without the model."""
    if asked.model not in (model, *ALIASES):
        raise ApiError(404, f"There is no model {asked.model!r}; this server has {model}.", "model", "model_not_found")
    if len(asked.input) > max_characters:
        rule = f"input has at most {max_characters} characters"
        raise ApiError(400, f"{rule}. Received: {len(asked.input)}.", "input", "string_above_max_length")
    formats = OPEN_FORMATS if asked.is_open else SOUND_FORMATS
    if asked.response_format not in formats:
        how = "while it is made" if asked.is_open else "by this server"
        sentence = f"{asked.response_format} cannot be written {how}. Ask for {', '.join(formats)}."
        raise ApiError(400, sentence, "response_format", "unsupported_format")
    if any("\ud800" <= character <= "\udfff" for character in asked.input):
        raise ApiError(400, "input holds half of a character (a lone surrogate).", "input")
    if asked.stream is False and asked.stream_format:
        raise ApiError(400, "stream false contradicts stream_format.", "stream")


def settle_language(asked: SpeechRequest, voices_language: str | None, default: str) -> str:
    """The language that a request means; raises `ApiError` where that cannot be told."""
    if asked.language:
        try:
            return get_language(asked.language).code
        except ValueError as error:
            raise ApiError(400, str(error), "language") from error
    usual = voices_language or default
    language, told = guess_language([asked.input], usual)
    if told and language == usual:
        raise ApiError(400, UNPRINTABLE.sub("", told).replace("--language", "language"), "language")
    return language


def check_text(asked: SpeechRequest, language: str, synthesizer: Synthesizer) -> SamplingConfig:
    """Raises `ApiError` for a text or sampling values that the model cannot take; returns the values."""
    given = {name: getattr(asked, name) for name in _SAMPLED if getattr(asked, name) is not None}
    try:
        sampling = dataclasses.replace(synthesizer.config.sampling, **given)
    except UserError as error:
        raise ApiError(400, str(error).replace("sampling.", ""), next(iter(given))) from error
    try:
        synthesizer.text_front.pieces(asked.input, language)
    except SpeechError as error:
        raise ApiError(400, str(error)[:500], "input", "cannot_be_spoken") from error
    return sampling

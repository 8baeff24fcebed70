"""Requests to synthesize speech (`POST /v1/audio/speech`): their fields and checks, and the responses with audio."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.datastructures import Headers
from starlette.responses import Response

from myxtts.apps.server.gate import ApiError, ServerSettings, as_api_error
from myxtts.apps.server.speaker import Speaker, SpeechJob
from myxtts.apps.server.voices import ServedVoice, VoiceBook
from myxtts.audio.encoding import OPEN_FORMATS, SoundEncoder
from myxtts.config.checks import UNPRINTABLE, UserError, read_toml
from myxtts.inference.speech import SpeechError, silence, word_times
from myxtts.text.g2p import ESPEAK
from myxtts.text.language_guess import guess_language, language_to_read
from myxtts.text.languages import get_language

ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "kokoro")
"""Model names that clients of OpenAI and Kokoro-FastAPI send by default. All of them select the served model."""
MEDIA_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "flac": "audio/flac", "wav": "audio/wav", "pcm": "audio/pcm"}
SILENCE_SECONDS = 0.1
"""Minimum length of the silence that is returned for a text without letters and digits, such as an emoji."""
MOST_PAUSE_SECONDS = 60.0
_PAUSE = re.compile(r"\[pause:\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)?\s*\]", re.IGNORECASE)
_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
VoiceName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class VoiceId(BaseModel):
    """Voice in the form `{"id": NAME}`, which OpenAI's clients use for custom voices."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: VoiceName


class SpeechRequest(BaseModel):
    """Body of `POST /v1/audio/speech`: OpenAI's fields, then additional fields. Unknown fields are ignored."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: Annotated[str, Field(min_length=1, max_length=200, description="see /v1/models")]
    input: Annotated[str, Field(description="the text; [pause:1s] is silence; Markdown and URLs are not read out")]
    voice: VoiceName | VoiceId
    response_format: Literal[*MEDIA_TYPES] = Field("mp3", description="pcm: 16 bit, little-endian, mono, 24 000 Hz")
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    stream_format: Literal["audio", "sse"] | None = Field(None, description="sse: as server-sent events")
    instructions: str | None = Field(None, max_length=10_000, description="accepted, no effect")
    stream: bool | None = Field(None, description="false: all at once, with its length, as flac always is")
    language: str | None = Field(None, max_length=20, description="code; default: the voice's, else detected")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    temperature: Annotated[float, Field(allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(lt=2**31)] | None = None
    top_p: Annotated[float, Field(allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the audio is streamed while it is synthesized, instead of sent all at once."""
        return self.response_format in OPEN_FORMATS and (self.stream is not False or self.stream_format == "sse")


def _sentence(parts):
    text = ", ".join(filter(None, map(str.strip, parts)))
    return text + "." * text[-1:].isalnum()


_MARKUP = read_toml(__file__, "markup.toml")


def without_sections(text: str) -> tuple[str, bool]:
    """Removes code blocks and an initial `<think>` section. Returns the text, and whether a code block has no end."""
    for pattern, replacement in _MARKUP["sections"]:
        text = re.sub(pattern, replacement, text)
    return text, bool(re.search(_MARKUP["open"], text))


def plain_text(text: str) -> str:
    """Removes Markdown, HTML tags and URLs from a text. Headings become paragraphs, list items become sentences."""
    text, _ = without_sections(text)
    for pattern, replacement in _MARKUP["blocks"]:
        text = re.sub(pattern, replacement, text)
    text = re.sub(_MARKUP["item"], lambda item: _sentence([item[1]]), text)
    text = re.sub(_MARKUP["row"], lambda row: _sentence(row[1].split("|")), text)
    for mark, before, after in _MARKUP["emphasis"]:
        text = re.sub(rf"(?<![{before}]){mark}(?=\S)(.{{0,499}}?\S){mark}(?![{after}])", r"\1", text)
    return text


def spoken_parts(text: str) -> tuple[float, list[tuple[str, float]]]:
    """Splits a text at pauses such as `[pause: 2s]`.

    Returns the seconds of initial silence, and a pair (part, seconds of silence after the part) for each part that has
    letters or digits. If there is no such part, the initial silence is at least `SILENCE_SECONDS`. Raises `ApiError` if
    the sum of the pauses is above `MOST_PAUSE_SECONDS`.
    """
    parts = [("", 0.0)]
    fields = [*_PAUSE.split(plain_text(text)), "0", None]
    for part, number, unit in zip(fields[0::3], fields[1::3], fields[2::3]):
        seconds = float(number) / (1000 if unit and unit.lower() == "ms" else 1)
        if any(map(str.isalnum, part)):
            parts.append((part, seconds))
        else:
            parts[-1] = parts[-1][0], parts[-1][1] + seconds
    if sum(seconds for _, seconds in parts) > MOST_PAUSE_SECONDS:
        raise ApiError(400, f"The pauses of a text must last at most {MOST_PAUSE_SECONDS:g} s in all.", "input")
    (_, lead), *parts = parts
    return lead if parts else max(lead, SILENCE_SECONDS), parts


def find_voice(
    text: str, voices: VoiceBook, settings: ServerSettings, voice: str, language: str | None
) -> tuple[ServedVoice, str]:
    """Returns the voice called `voice`, and the code of the language to speak `text` in: `language` or, if it is
    None, the voice's, the server's or a guess (see `language_to_read`). Raises `ApiError` if either is unknown."""
    languages = voices.model.tokenizer.languages
    try:
        asked = language and get_language(language, languages).code
    except ValueError as error:
        raise ApiError(400, str(error), "language") from error
    found = voices.find(voice, language_to_read(text, asked, settings.language, "", languages)[0])
    return found, language_to_read(text, asked, found.language or settings.language, "", languages)[0]


def make_job(
    request: SpeechRequest, speaker: Speaker, voices: VoiceBook, settings: ServerSettings, id: str = ""
) -> SpeechJob:
    """Checks a request and creates a job for it. Reads files, so the function must not run in the event loop.

    `id` is the id of the HTTP request. Raises `ApiError` if a field is invalid, or the text cannot be spoken."""
    if request.model not in (known := (settings.model, *ALIASES)):
        raise ApiError(404, f"The model {request.model!r} does not exist; use {known[0]}.", "model", "model_not_found")
    if (size := len(request.input)) > (most := settings.max_characters):
        raise ApiError(400, f"input must be at most {most} characters, not {size}.", "input", "string_above_max_length")
    if any("\ud800" <= character <= "\udfff" for character in request.input):
        raise ApiError(400, "input contains a lone surrogate.", "input")
    lead, parts = spoken_parts(request.input)
    text, languages = " ".join(part for part, _ in parts), speaker.synthesizer.tokenizer.languages
    name = request.voice if isinstance(request.voice, str) else request.voice.id
    voice, language = find_voice(text, voices, settings, name, request.language)
    if note := guess_language([text], language, languages)[1]:  # the letters belong to other languages, not to this one
        raise ApiError(400, UNPRINTABLE.sub("", note).replace("--language", "language"), "language")
    try:
        sampling = speaker.synthesizer.config.sampling.changed({name: getattr(request, name) for name in _SAMPLING})
    except UserError as error:
        message = re.sub(r"sampling\.(\w+) \(\S+\)", r"\1", str(error))  # without the flag
        raise ApiError(400, message, message.partition(" ")[0]) from error
    pieces, after, front = [], 0.0, speaker.synthesizer.text_front
    try:
        if parts:
            front.check(text, language)
    except UserError as error:  # also if the extra of a romanized language is not installed
        raise ApiError(400, str(error)[:500], "input", "cannot_be_spoken") from error
    for part, seconds in parts:
        with suppress(SpeechError):  # a part in unknown letters is left out, like such a sentence
            pieces, after = pieces + front.pieces(part, language), 0.0
        if not pieces:
            lead += seconds
        elif after := after + seconds:
            pieces[-1] = pieces[-1]._replace(pause_seconds=after)
    seed, speed, hurry = request.seed, request.speed, request.is_open
    return SpeechJob((lead, after), pieces, voices, voice, language, sampling, seed, speed, hurry, id)


class SpeechResponse(Response):
    """HTTP response that submits `job` and sends the audio, or an error if the job fails before the first audio."""

    def __init__(self, speaker: Speaker, job: SpeechJob, request: SpeechRequest):
        self.speaker, self.job, self.request, self.background, self.error = speaker, job, request, None, None
        self.sound_type = MEDIA_TYPES[request.response_format]
        self.events = request.stream_format == "sse" and self.media_type is None
        self.encoder = SoundEncoder(request.response_format, 24_000, request.is_open, speaker.synthesizer.sample_rate)

    async def __call__(self, scope, receive, send):
        speaking = asyncio.create_task(self._speak(scope, receive, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((speaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
        finally:
            self.speaker.cancel(self.job)
            for task in (speaking, leaving):
                task.cancel()
            await asyncio.gather(speaking, leaving, return_exceptions=True)
            scope["state"]["speech"] = self._facts()

    async def _speak(self, scope, receive, send):
        started = False
        try:
            self.speaker.submit(self.job)
            async for content, is_last in self._parts():
                if not started:
                    kind = "text/event-stream" if self.events else self.media_type or self.sound_type
                    headers = {"content-type": kind, "content-language": self.job.language}
                    headers |= {"cache-control": "no-store", "x-accel-buffering": "no"}
                    headers |= {"content-length": str(len(content))} if is_last and not self.events else {}
                    await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})
                    started = True
                await send({"type": "http.response.body", "body": content, "more_body": not is_last})
        except Exception as error:
            self.error = as_api_error(error)
            if not started:
                await self.error.response()(scope, receive, send)
            elif self.events:
                content = _event(self.error.body | {"type": "error"})
                await send({"type": "http.response.body", "body": content, "more_body": True})
            # Audio that was cut off gets no proper end, so that no client takes it for complete.

    async def _parts(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yields the parts of the response's body as pairs: the content, and True if it is the last part."""
        while (samples := await self.job.next()) is not None:
            if content := self.encoder.add(samples):
                yield self._audio_event(content) if self.events else content, False
        content = self.encoder.end()
        if self.events:
            used, made = len(self.request.input), self.job.num_codes
            usage = dict(input_tokens=used, output_tokens=made, total_tokens=used + made)
            content = self._audio_event(content) + _event({"type": "speech.audio.done", "usage": usage})
        yield content, True

    def _audio_event(self, content):
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(content).decode()})

    def _facts(self):
        """Returns the fields for the request's log line, which contains the length of the text but not the text."""
        job, rate = self.job, self.speaker.synthesizer.sample_rate
        facts = dict(characters=len(self.request.input), language=job.language, codes=job.num_codes)
        facts |= dict(error=self.error.code, cancelled=False) if self.error else dict(cancelled=job.cancelled)
        facts |= dict(sound_seconds=round(job.num_samples / rate, 3), ignored_fields=len(self.request.model_extra))
        times = dict(first_sound=job.first_sound, queued=job.begun)
        return facts | {name: round(at - job.arrived, 4) for name, at in times.items() if at}


class CaptionedResponse(SpeechResponse):
    """Audio and word times in Kokoro-FastAPI's format: one JSON object, or one JSON object per sentence if streamed."""

    media_type = "application/json"

    async def _parts(self):
        rate, content, times = self.speaker.synthesizer.sample_rate, b"", []
        lead, received, num_timed = len(silence(self.job.silences[0], rate)), np.zeros(0, np.float32), 0
        at = -lead  # place of the first sample of `received` in the stream of sentences
        while (samples := await self.job.next()) is not None:
            received = np.concatenate([received, samples])
            content += self.encoder.add(samples)
            for text, start, end in self.job.stream.spans[num_timed:] if self.job.stream else ():
                if end > at + len(received):  # its audio has not arrived
                    break
                sentence, begin = received[start - at : end - at], (lead + start) / rate
                times += word_times(sentence, rate, text, self._length_of_word, begin)
                received, at, num_timed = received[end - at :], end, num_timed + 1
            if self.encoder.is_open and times:
                yield self._captioned(content, times), False
                content, times = b"", []
        content += self.encoder.end()  # of mp3, opus and flac, its last bytes
        yield self._captioned(content, times) if content or times else b"", True

    def _length_of_word(self, word):
        """Estimates a word's relative duration: its number of phonemes, or of letters if the model uses no phonemes."""
        tokenizer = self.speaker.synthesizer.tokenizer
        ids = tokenizer.encode(word, self.job.language)[1:]
        letters = sum(map(str.isalnum, tokenizer.decode(ids)))
        return len(ids) if letters and ESPEAK in tokenizer.g2p else letters

    def _captioned(self, content, times):
        stamps = [dict(word=one.text, start_time=one.start, end_time=one.end) for one in times]
        audio = base64.b64encode(content).decode()
        return (json.dumps(dict(audio=audio, audio_format=self.sound_type, timestamps=stamps)) + "\n").encode()


async def _until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(value):
    return f"data: {json.dumps(value)}\n\n".encode()

"""The HTTP interface: OpenAI's speech endpoints, and what machines ask of a server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

import myxtts
from myxtts.apps.server.docs_page import docs_page
from myxtts.apps.server.errors import ApiError, told
from myxtts.apps.server.gate import Gate
from myxtts.apps.server.speaker import Speaker, SpeechJob
from myxtts.apps.server.speech_request import ALIASES, SpeechRequest, check_request, check_text, settle_language
from myxtts.apps.server.speech_response import MEDIA_TYPES, Listener, SpeechResponse
from myxtts.apps.server.voices import MOST_UPLOAD_BYTES, VoiceBook

SPEECH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"


@dataclass(frozen=True)
class ServerSettings:
    """What a server allows."""

    model: str
    """Name of the model."""
    api_key: str | None = None
    max_characters: int = 4096
    language: str = "en"
    """Of texts for which neither the request nor the voice says it."""
    allow_uploads: bool = False
    body_seconds: float = 20.0
    """How long the body of a request may take to arrive."""
    untouched: tuple[str, ...] = ()
    """Beginnings of paths that have rules of their own, such as a mounted page."""

    @property
    def max_body_bytes(self) -> dict[str, int]:
        """For `Gate`: a text may be written as escapes of six bytes a UTF-16 unit."""
        return {f"{VOICES}/": MOST_UPLOAD_BYTES, "": 12 * self.max_characters + 2**16}


def make_app(
    speaker: Speaker, voices: VoiceBook, settings: ServerSettings, at_start: Callable[[Speaker], None] | None = None
) -> FastAPI:
    """The application, `Gate` included; its start starts the speaker and calls `at_start`, its end stops it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        speaker.start()
        if at_start:
            at_start(speaker)
        yield
        await asyncio.to_thread(speaker.stop)

    app = FastAPI(title="MyXTTS", version=myxtts.__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_errors(app)
    _add_speech(app, speaker, voices, settings)
    _add_lists(app, voices, settings)
    if settings.allow_uploads:
        _add_uploads(app, voices)
    _add_state(app, speaker)
    key = settings.api_key
    limits = dict(max_body_bytes=settings.max_body_bytes, body_seconds=settings.body_seconds)
    app.add_middleware(Gate, metrics=speaker.metrics, key=key, **limits, untouched=settings.untouched)
    return app


def _add_errors(app):
    async def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            error = _first_mistake(error)
        elif isinstance(error, HTTPException):
            error = ApiError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}.")
        error = told(error)
        return JSONResponse(error.body(), error.status, error.headers())

    for kind in (RequestValidationError, HTTPException, ApiError):
        app.add_exception_handler(kind, answer)


def _first_mistake(error):
    first = error.errors()[0]
    names = [str(part) for part in first["loc"][1:] if part != "str" and part != "VoiceId"]
    param = ".".join(names)[:100] or None
    if first["type"] == "json_invalid" or not names:
        return ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_json")
    return ApiError(400, f"{param}: {first['msg']}.", param, first["type"])


def _add_speech(app, speaker, voices, settings):
    sound = {200: {"content": {kind: {} for kind in sorted({*MEDIA_TYPES.values(), "text/event-stream"})}}}

    @app.post(SPEECH, response_class=Response, responses=sound)
    async def speech(asked: SpeechRequest, request: Request) -> Response:
        """Speaks a text."""
        check_request(asked, settings.model, settings.max_characters)
        voice, find = await asyncio.to_thread(voices.find, asked.voice_name)
        language = settle_language(asked, voice.language, settings.language)
        sampling = await asyncio.to_thread(check_text, asked, language, speaker.synthesizer)
        listener = Listener()
        options = dict(speed=asked.speed, hurry=asked.is_open, id=request.state.request_id)
        job = SpeechJob(asked.input, find, listener.tell, language, sampling, asked.seed, **options)
        events = asked.stream_format == "sse"
        return SpeechResponse(speaker, job, listener, asked.response_format, asked.is_open, events)


def _add_lists(app, voices, settings):
    # Clients want a date; a server need not ask a clock that may be set.
    created = int(Path(myxtts.__file__).stat().st_mtime)

    def entry(name):
        return {"id": name, "object": "model", "created": created, "owned_by": "myxtts"}

    @app.get("/v1/models")
    async def models() -> dict:
        """The model, and the names that clients of OpenAI have for it."""
        return {"object": "list", "data": [entry(name) for name in (settings.model, *ALIASES)]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict:
        """One of them."""
        if name not in (settings.model, *ALIASES):
            raise ApiError(404, f"There is no model {name[:200]!r}.", "model", "model_not_found")
        return entry(name)

    @app.get("/v1/audio/models")
    async def audio_models() -> dict:
        """The same for Open WebUI."""
        return {"models": [{"id": name, "name": name} for name in (settings.model, *ALIASES)]}

    @app.get(VOICES)
    async def all_voices() -> dict:
        """Names of the voices, as Open WebUI reads them."""
        found = await asyncio.to_thread(voices.all)
        return {"voices": [{"id": name, "name": name, "language": one.language} for name, one in found.items()]}


def _add_uploads(app, voices):
    @app.put(f"{VOICES}/{{name}}", status_code=201)
    async def add_voice(name: Annotated[str, InPath(max_length=200)], request: Request) -> dict:
        """Keeps the voice of a recording: the body is a wav, flac, ogg or mp3 file."""
        content = await request.body()
        made = await asyncio.to_thread(voices.add, name, content)
        return {"id": made.name, "object": "audio.voice", "name": made.name, "created_at": made.created}


def _add_state(app, speaker):
    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether the process lives."""
        return JSONResponse({"status": "ok" if speaker.alive else "ended"}, 200 if speaker.alive else 503)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Whether it is warm and takes texts."""
        waiting, speaking, rows = speaker.load
        told = dict(ready=speaker.ready, waiting=waiting, speaking=speaking, rows=rows)
        return JSONResponse(told, 200 if speaker.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Figures for Prometheus."""
        speaker.metrics.waiting.set(speaker.load[0])
        return PlainTextResponse(speaker.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> str:
        """The interface for people, without a request to anywhere else."""
        return docs_page(app.openapi())

"""FastAPI application of the server: endpoints for speech, models, voices, health and metrics, and HTML pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import jinja2
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

import myxtts
from myxtts.apps.server.gate import CAPTIONED, PAGE, SPEECH, VOICES, ApiError, Gate, ServerSettings
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.speech import ALIASES, MEDIA_TYPES, CaptionedResponse, SpeechRequest, SpeechResponse, make_job
from myxtts.apps.server.voices import VoiceBook


def make_app(speaker: Speaker, voices: VoiceBook, settings: ServerSettings) -> FastAPI:
    """Builds the FastAPI app. At startup, the app starts `speaker` if necessary; at shutdown, it stops `speaker`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not speaker.alive:
            speaker.start()
        yield
        speaker.stop()

    app = FastAPI(title="MyXTTS", version=myxtts.__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    for kind in (RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _raise_api_error)
    app.add_middleware(Gate, metrics=speaker.metrics, settings=settings)
    if origins := [origin.rstrip("/") for origin in settings.cors]:  # as browsers send them
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    audio = {200: {"content": {kind: {} for kind in sorted({*MEDIA_TYPES.values(), "text/event-stream"})}}}

    async def answer(kind, body, request):
        job = await asyncio.to_thread(make_job, body, speaker, voices, settings, id=request.state.request_id)
        return kind(speaker, job, body)

    @app.post(SPEECH, response_class=Response, responses=audio)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Synthesizes a text and returns the audio, or streams it."""
        return await answer(SpeechResponse, body, request)

    @app.post(CAPTIONED, response_class=Response, responses={200: {"content": {"application/json": {}}}})
    async def captioned_speech(body: SpeechRequest, request: Request) -> Response:
        """Returns audio and word times in Kokoro-FastAPI's format. A stream has one line of JSON per piece of text."""
        return await answer(CaptionedResponse, body, request)

    _add_state(app, speaker, voices, settings)
    template = jinja2.Template(Path(__file__).with_name("page.html").read_text("utf-8"), autoescape=True)
    render = partial(template.render, title=f"{app.title} {app.version}", page=settings.has_page and PAGE)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start() -> str:
        return render()

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs(request: Request) -> str:
        """Renders the documentation of the endpoints, with examples. The page loads nothing from other hosts."""
        url, described = str(request.base_url).rstrip("/"), app.openapi()
        fields = described["components"]["schemas"][SpeechRequest.__name__]
        return render(url=url, has_key=bool(settings.api_key), paths=described["paths"], request=fields)

    return app


def _add_state(app, speaker, voices, settings):
    entry = {"object": "model", "created": int(Path(myxtts.__file__).stat().st_mtime), "owned_by": "myxtts"}
    entries = {name: {"id": name} | entry for name in (settings.model, *ALIASES)}

    @app.get("/v1/models")
    async def models() -> dict:
        """Lists the model under its own name and under its aliases."""
        return {"object": "list", "data": list(entries.values())}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict:
        """Describes one model."""
        if name not in entries:
            raise ApiError(404, f"The model {name[:200]!r} does not exist.", "model", "model_not_found")
        return entries[name]

    @app.get("/v1/audio/models")
    async def audio_models() -> dict:
        """Lists the models in the format of Open WebUI."""
        return {"models": [{"id": name, "name": name} for name in entries]}

    @app.get(VOICES)
    async def all_voices() -> dict:
        """Lists the voices in the format of Open WebUI."""
        found = await asyncio.to_thread(voices.all)
        return {"voices": [{"id": name, "name": name, "language": one.language} for name, one in found.items()]}

    if settings.allow_uploads:
        adding = asyncio.Lock()  # not a thread lock: waiting uploads would block threads that other requests need

        @app.put(f"{VOICES}/{{name}}", status_code=201)
        async def add_voice(name: str, request: Request) -> dict:
            """Adds a voice from a recording. The body is a wav, flac, ogg or mp3 file."""
            async with adding:
                made = await asyncio.to_thread(voices.add, name, await request.body())
            return {"id": made.name, "object": "audio.voice", "name": made.name, "created_at": made.version[0] // 10**9}

    @app.get("/health")
    async def health() -> JSONResponse:
        """Reports whether the server can still synthesize (200) or has failed for good (503)."""
        return JSONResponse({"status": "ok" if speaker.alive else "ended"}, 200 if speaker.alive else 503)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Reports the load, and whether the server accepts texts (200) or is still warming up or stopping (503)."""
        state = dict(zip(("waiting", "speaking", "rows"), speaker.load), ready=speaker.ready)
        return JSONResponse(state, 200 if state["ready"] else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Returns metrics in the text format of Prometheus."""
        return PlainTextResponse(generate_latest(speaker.metrics.registry), media_type="text/plain; version=0.0.4")


async def _raise_api_error(request, error):
    if isinstance(error, HTTPException):
        is_upload = request.method == "PUT" and request.url.path.rpartition("/")[0] == VOICES
        hint = " Uploads need the server option --allow-uploads." * is_upload
        raise ApiError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}.{hint}")
    first = max(error.errors(), key=lambda one: len(one["loc"]))  # for `voice`, a union, the branch that was meant
    param = ".".join(map(str, first["loc"][1:2] + first["loc"][3:]))[:100]  # the part between names the branch
    if first["type"] == "json_invalid" or not param:
        raise ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_json")
    raise ApiError(400, f"{param}: {first['msg']}.", param, first["type"])

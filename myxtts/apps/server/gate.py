"""Middleware that checks, limits, counts and logs all HTTP requests; settings and errors of the HTTP API."""

import asyncio
import hmac
import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from myxtts.config.checks import UserError

if TYPE_CHECKING:
    from myxtts.apps.server.speaker import Metrics
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.interchange.onnx.exported import ExportedModel

Model: TypeAlias = "Synthesizer | ExportedModel"
SPEECH, CAPTIONED, VOICES = "/v1/audio/speech", "/dev/captioned_speech", "/v1/audio/voices"
PAGE = "/ui"
"""Path prefix of the web page (`--ui`), which limits request sizes and checks the password itself."""
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/health", "/ready")
"""Paths that need no API key, because they reveal nothing private, only documentation and the server's load."""
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
_REQUEST_ID = re.compile(r"[\w.-]{1,80}", re.ASCII)
log = logging.getLogger("myxtts.apps.server.access")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the HTTP interface, from the options of `myxtts serve`."""

    model: str
    api_key: str | None = None
    """Key that every client must send. If it is None, only requests to a local host name are answered."""
    max_characters: int = 4096
    language: str | None = None
    """Language to use if neither request nor voice sets a language. If None, the language is detected from the text."""
    allow_uploads: bool = False
    has_page: bool = False
    cors: tuple[str, ...] = ()
    """Origins allowed in browsers, such as `https://chat.example`; `*` for all."""
    body_seconds: float = 20.0


@dataclass
class ApiError(Exception):
    """Error that is reported to the client. HTTP clients receive the error in the format of OpenAI's API."""

    status: int
    message: str
    param: str | None = None
    """Name of the invalid field of the request, or None."""
    code: str | None = None
    """Machine-readable kind of the error, such as `voice_not_found`, or None."""
    retry_after_seconds: int | None = None

    @property
    def body(self) -> dict:
        """Content of the response: `{"error": {"message": …, "type": …, "param": …, "code": …}}`."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Creates the HTTP response. `retry_after_seconds` adds `Retry-After`; status 401 adds `WWW-Authenticate`."""
        headers = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return JSONResponse(self.body, self.status, headers)


def as_api_error(error: Exception) -> ApiError:
    """Converts an exception to an `ApiError`. Only an `ApiError` or a `UserError` keeps its message."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    return ApiError(500, "The server could not speak this text. The reason is in its log, under the request id.")


class Gate:
    """ASGI middleware around the whole app: checks API key and body size, counts and logs requests, sends errors."""

    def __init__(self, app, metrics: "Metrics", settings: ServerSettings):
        self.app, self.metrics, self.settings = app, metrics, settings

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request, began = Request(scope, receive), time.monotonic()
        given, sent = request.headers.get("x-request-id", ""), dict(status=None, bytes=0)
        request.state.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def send_counted(message):
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                headers.update({"X-Request-ID": request.state.request_id, "X-Content-Type-Options": "nosniff"})
                message = message | {"headers": headers.raw}
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            self._check_caller(request)
            path, most = scope["path"], 0  # max bytes of the body; 0 for requests whose body is not read here
            if request.method == "POST" and not path.startswith(PAGE):
                most = 12 * self.settings.max_characters + 2**16  # JSON may escape each UTF-16 unit as six bytes
            elif self.settings.allow_uploads and request.method == "PUT" and path.startswith(f"{VOICES}/"):
                most = 20 * 2**20
            if most:
                receive = await self._read_body(request, most)
            await self.app(scope, receive, send_counted)
        except Exception as error:
            if not isinstance(error, ApiError):
                log.exception("A request failed", extra={"fields": {"request_id": request.state.request_id}})
            request.state.speech = {"error": as_api_error(error).code}
            if sent["status"] is None:
                await as_api_error(error).response()(scope, receive, send_counted)
        finally:
            route = getattr(scope.get("route"), "path", PAGE if scope["path"].startswith(PAGE) else "other")
            self.metrics["requests"].labels(route, sent["status"] or "none").inc()
            facts = dict(request_id=request.state.request_id, method=request.method, path=scope["path"][:200])
            facts |= sent | dict(seconds=round(time.monotonic() - began, 4))
            log.info("request", extra={"fields": facts | getattr(request.state, "speech", {})})

    def _check_caller(self, request):
        path, expected = request.scope["path"], self.settings.api_key
        if path in OPEN_PATHS or expected and path.startswith(PAGE):
            return
        if expected is None:
            # Against DNS rebinding: a web page whose host name resolves to this machine sends that name as Host.
            if not _LOCAL_HOST.fullmatch(request.headers.get("host", "")):
                raise ApiError(403, "Without an API key, only requests to localhost or 127.0.0.1 are answered.", "Host")
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), expected.encode()):
            raise ApiError(401, "Send the server's API key as `Authorization: Bearer KEY`.", code="invalid_api_key")

    async def _read_body(self, request, most):
        """Reads a body of up to `most` bytes within `body_seconds`; returns an ASGI `receive` that replays the body."""
        too_large = ApiError(413, f"The body of a request to {request.scope['path']} must have at most {most} bytes.")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"The request body did not arrive within {self.settings.body_seconds:g} s.") from None
        except ClientDisconnect:
            raise ApiError(400, "The client cancelled the request.") from None
        messages = [{"type": "http.request", "body": bytes(body)}]

        async def replay():
            return messages.pop() if messages else await request.receive()

        return replay

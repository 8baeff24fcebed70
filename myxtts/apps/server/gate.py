"""What every HTTP request passes first: who may ask, how much, and a line in the log."""

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.responses import JSONResponse

from myxtts.apps.server.errors import ApiError, told
from myxtts.apps.server.metrics import Metrics
from myxtts.storage.files import digest_bytes

OPEN_PATHS = ("/health", "/ready")
"""Asked by machines that have no key."""
LOCAL_HOSTS = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
"""What the Host header of a browser on this machine says; of a page that a foreign name leads here, that name."""
_REQUEST_ID = re.compile(r"[\w.-]{1,80}", re.ASCII)
log = logging.getLogger("myxtts.apps.server.access")


class Gate:
    """An ASGI layer around the app: ids, key, sizes and times of bodies, log and count.

    Args:
        key: What clients must send as `Authorization: Bearer KEY`; None asks nothing of them, and answers only those
            that address this machine by a local name.
        max_body_bytes: Of a request, by path; of other paths the value of "".
        body_seconds: How long a body may take to arrive.
        untouched: Beginnings of paths whose bodies are not looked at.
    """

    def __init__(
        self,
        app,
        metrics: Metrics,
        key: str | None,
        max_body_bytes: dict[str, int],
        body_seconds: float = 20.0,
        untouched: Sequence[str] = (),
    ):
        self.app, self.metrics, self.max_body_bytes = app, metrics, max_body_bytes
        self.body_seconds, self.untouched = body_seconds, tuple(untouched)
        self._key = key and digest_bytes(key.encode())

    async def __call__(self, scope, receive, send):
        """See https://asgi.readthedocs.io/en/latest/specs/www.html."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or self._is_untouched(scope):
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        scope.setdefault("state", {})["request_id"] = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        seen = _Seen(scope, send)
        try:
            self._check(scope, headers)
            if not self._is_untouched(scope):
                receive = await self._with_body(scope, headers, receive)
            await self.app(scope, receive, seen.send)
        except ApiError as error:
            response = JSONResponse(error.body(), error.status, error.headers())
            await response(scope, receive, seen.send)
        except Exception as error:
            log.exception("A request failed", extra={"told": {"request_id": scope["state"]["request_id"]}})
            if seen.status is None:
                failed = told(error)
                await JSONResponse(failed.body(), failed.status)(scope, receive, seen.send)
        finally:
            self._log(scope, seen)

    def _is_untouched(self, scope):
        return bool(self.untouched) and scope["path"].startswith(self.untouched)

    def _check(self, scope, headers):
        if scope["path"] in OPEN_PATHS or self._key and self._is_untouched(scope):
            return
        if self._key is None:
            if not LOCAL_HOSTS.fullmatch(headers.get("host", "")):
                raise ApiError(403, "Without an API key this server answers only as localhost or 127.0.0.1.", "Host")
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = digest_bytes(key.strip().encode())
        if not hmac.compare_digest(given, self._key) or scheme.lower() != "bearer":
            raise ApiError(401, "Send the server's API key as `Authorization: Bearer KEY`.", code="invalid_api_key")

    async def _with_body(self, scope, headers, receive):
        """Reads the body, as far as it may be, and returns a `receive` that gives it at once."""
        most = next(
            (most for path, most in self.max_body_bytes.items() if path and scope["path"].startswith(path)),
            self.max_body_bytes[""],
        )
        too_large = ApiError(413, f"The body of a request to {scope['path']} has at most {most} bytes.")
        claimed = headers.get("content-length", "0")
        if not claimed.isdecimal() or len(claimed) > 18 or int(claimed) > most:
            raise too_large
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "The request was broken off.")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"The body did not arrive within {self.body_seconds:g} s.") from None
        messages = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay():
            return messages.pop() if messages else await receive()

        return replay

    def _log(self, scope, seen):
        route = getattr(scope.get("route"), "path", None) or ("/ui" if self._is_untouched(scope) else "other")
        self.metrics.requests.labels(route, seen.status or "none").inc()
        facts = dict(request_id=scope["state"]["request_id"], method=scope["method"], path=scope["path"][:200])
        facts |= dict(status=seen.status, bytes=seen.num_bytes, seconds=round(time.monotonic() - seen.began, 4))
        log.info("request", extra={"told": facts | scope["state"].get("told", {})})


class _Seen:
    """What was sent of an answer; it puts the request's id among the headers."""

    def __init__(self, scope, send):
        self.status, self.num_bytes, self.began = None, 0, time.monotonic()
        self._id, self._send = scope["state"]["request_id"], send

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"x-request-id", self._id.encode("latin-1")), (b"x-content-type-options", b"nosniff")]
            message = message | {"headers": [*message.get("headers", ()), *own]}
        self.num_bytes += len(message.get("body", b""))
        await self._send(message)


class JSONLines(logging.Formatter):
    """A log line as one JSON object: time, level, logger, message, and what the record's `told` holds."""

    def format(self, record):
        """One line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {"time": f"{at}.{record.msecs:03.0f}Z", "level": record.levelname.lower(), "logger": record.name}
        fields |= {"message": record.getMessage()} | getattr(record, "told", {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)

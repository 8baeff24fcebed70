"""Errors of requests, in OpenAI's form."""

from dataclasses import dataclass

from starlette.responses import JSONResponse

from myxtts.config.checks import UserError


@dataclass
class ApiError(Exception):
    """What is wrong with a request, or why it cannot be served."""

    status: int
    """HTTP status code."""
    message: str
    """A sentence for people."""
    param: str | None = None
    """Name of the field that is wrong."""
    code: str | None = None
    """A word for programs."""
    retry_after_seconds: int | None = None

    @property
    def body(self) -> dict:
        """`{"error": {"message", "type", "param", "code"}}`."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer to the request."""
        headers = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return JSONResponse(self.body, self.status, headers)


def as_api_error(error: Exception) -> ApiError:
    """The error for the client: a user's mistake in its own words, a fault of the server without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    return ApiError(500, "The server failed to speak this. Its log says why, under the id of the request.")

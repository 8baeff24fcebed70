"""A server's process: addresses it may bind, its log, and how it stops."""

import asyncio
import ipaddress
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress

import uvicorn

from myxtts.apps.server.gate import JSONLines
from myxtts.apps.server.speaker import Speaker
from myxtts.config.checks import UserError

MOST_CONNECTIONS = 1_000


def is_local(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def check_bind(host: str, port: int, api_key: str | None) -> None:
    """Raises `UserError` for an address that everybody could reach without a key, or that is none."""
    if not is_local(host) and not api_key:
        risk = f"--host {host} can be reached from other machines, and without a key everybody could speak there"
        raise UserError(f"{risk}. Give --api-key-file FILE, or set MYXTTS_API_KEY.")
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be 0 to 65535. Received: {port}.")


def log_lines(level: int = logging.INFO) -> None:
    """Sends the package's log and uvicorn's errors to standard error, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name in ("myxtts", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Serving(uvicorn.Server):
    """Runs an app until SIGINT or SIGTERM; then nothing new is begun, and what is spoken is spoken to its end.

    Args:
        grace_seconds: After that, what is still spoken is broken off. A second signal breaks it off at once.
        besides: Coroutines that run as long as the server does, such as other protocols.
    """

    def __init__(self, app, speaker: Speaker, host: str, port: int, grace_seconds: int, besides: Sequence = ()):
        limits = dict(limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=grace_seconds)
        quiet = dict(log_config=None, access_log=False, server_header=False)
        super().__init__(uvicorn.Config(app, host, port, lifespan="on", ws="none", **limits, **quiet))
        self.speaker, self._besides, self._tasks = speaker, besides, []

    async def startup(self, sockets=None):
        """Binds, and says where."""
        await super().startup(sockets)
        if self.started:
            self._tasks = [asyncio.ensure_future(one) for one in self._besides]
            for server in self.servers:
                for socket in server.sockets:
                    host, port = socket.getsockname()[:2]
                    logging.getLogger("myxtts.apps.server").info("Listening on http://%s:%d", host, port)

    async def shutdown(self, sockets=None):
        """Refuses what waits, and finishes what is spoken."""
        self.speaker.refuse_more()
        await super().shutdown(sockets)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

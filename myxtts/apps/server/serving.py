"""A server's process: the model and the app from the options, the log, and how it stops."""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI

from myxtts.apps.server.app import make_app
from myxtts.apps.server.gate import ServerSettings
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.voices import VoiceBook
from myxtts.devices.configuration import configure_for_speech
from myxtts.devices.kinds import device_named
from myxtts.interchange.hub.fetching import local_folder
from myxtts.interchange.onnx.engines import load_synthesizer
from myxtts.utils.commons import get_device_context

MOST_CONNECTIONS = 1_000


class Opened(NamedTuple):
    """The parts of a server; nothing of it runs yet."""

    app: FastAPI
    speaker: Speaker
    voices: VoiceBook
    settings: ServerSettings


def open_model(arguments: argparse.Namespace, key: str | None) -> Opened:
    """Loads the model that the options of `options.build_parser` name."""
    configure_for_speech()
    device = arguments.device and device_named(arguments.device)
    run = local_folder(arguments.checkpoint)
    with get_device_context(device):
        synthesizer = load_synthesizer(run, arguments.which, arguments.engine, decoder=arguments.decoder)
    voices = VoiceBook(synthesizer, run, arguments.voices and Path(arguments.voices))
    limits = arguments.queue, arguments.queue_seconds, arguments.max_seconds
    speaker = Speaker(synthesizer, *limits, arguments.warm, lambda: get_device_context(device))
    settings = ServerSettings(
        model=arguments.model_name or Path(arguments.checkpoint).resolve().name,
        api_key=key,
        max_characters=arguments.max_characters,
        language=arguments.language,
        allow_uploads=arguments.allow_uploads,
    )
    return Opened(make_app(speaker, voices, settings), speaker, voices, settings)


class _JSONLines(logging.Formatter):
    """A log line as one JSON object: time, level, logger, message, and the record's `fields`."""

    def format(self, record):
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {"time": f"{at}.{record.msecs:03.0f}Z", "level": record.levelname.lower(), "logger": record.name}
        fields |= {"message": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Sends the package's log and uvicorn's errors to standard error, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONLines())
    for name in ("myxtts", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


class Serving(uvicorn.Server):
    """Runs an app until SIGINT or SIGTERM; then nothing new is begun, and what is spoken is spoken to its end.

    Args:
        grace_seconds: After that, what is still spoken is broken off. A second signal breaks it off at once.
        beside: Runs as long as the server does, such as another protocol.
    """

    def __init__(
        self, app, speaker: Speaker, host: str, port: int, grace_seconds: int, beside: Coroutine | None = None
    ):
        limits = dict(limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=grace_seconds)
        quiet = dict(log_config=None, access_log=False, server_header=False)
        super().__init__(uvicorn.Config(app, host, port, lifespan="on", ws="none", **limits, **quiet))
        self.speaker, self._beside, self._task = speaker, beside, None

    async def startup(self, sockets=None):
        """Binds, and logs the addresses."""
        await super().startup(sockets)
        if self.started:
            self._task = self._beside and asyncio.ensure_future(self._beside)
            for address in [socket.getsockname() for server in self.servers for socket in server.sockets]:
                logging.getLogger("myxtts.apps.server").info("Listening on http://%s:%d", *address[:2])

    async def shutdown(self, sockets=None):
        """Refuses what waits, and finishes what is spoken."""
        self.speaker.refuse_more()
        await super().shutdown(sockets)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

"""Server process: loads the model, builds the app, logs as JSON, limits connections and shuts down gracefully."""

import argparse
import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from myxtts.apps.server.app import make_app
from myxtts.apps.server.gate import PAGE, ServerSettings
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.voices import OPENAI_VOICES, VoiceBook
from myxtts.cli.errors import language_code
from myxtts.config.checks import UserError, require
from myxtts.devices.tensorflow_start import filter_native_errors, import_tensorflow
from myxtts.interchange.hub import local_folder
from myxtts.interchange.onnx.exported import ExportedModel
from myxtts.storage.base_model import EXPORT, MODELS, kind_of
from myxtts.storage.run_folder import vocabulary_path
from myxtts.storage.speakers import composed
from myxtts.text.language_guess import language_to_read
from myxtts.text.tokenizer import XTTSTokenizer

ANSWER_SECONDS = 2.0
"""Minimum time at shutdown for sending the last responses, even if the time limit for finishing texts has passed."""
HEAD_SECONDS = 10.0
"""Time limit for receiving the request line and headers of a request."""
SEND_SECONDS = 30.0
"""Time limit for a client to receive some bytes of a waiting response. Slower clients are disconnected."""
MOST_IN_TURNS, MOST_CACHE_BYTES = 32, 2**30
"""Limits for an exported model: number of texts synthesized simultaneously, and bytes of all key-value caches."""
MOST_CONNECTIONS = 500
"""Maximum number of open connections from all addresses together."""


def open_model(arguments: argparse.Namespace, key: str | None) -> tuple[FastAPI, Speaker, VoiceBook, ServerSettings]:
    """Loads the model; returns the app, speaker, voices and settings. `key` is the API key, None if there is no key."""
    run = local_folder(arguments.checkpoint, arguments.accept_licence, kinds=(*MODELS, EXPORT))
    if requested := arguments.language:
        requested = language_code(requested, XTTSTokenizer.from_file(vocabulary_path(run)).languages)
    open_folder = _open_exported if kind_of(run) == EXPORT else _open_trained
    model, speakers, trained, options = open_folder(run, arguments)
    language = requested or (speakers[trained[0]] if len({speakers[name] for name in trained}) == 1 else None)
    if arguments.warm != "none" and not language:
        language_to_read("Loads the words of all languages.", None, None, "")
    # If there is one trained speaker, it is the default voice, as in `myxtts say`.
    usual = dict.fromkeys(("", *OPENAI_VOICES), trained[0]) if len(trained) == 1 else {}
    voices = VoiceBook(model, speakers, arguments.voices and Path(arguments.voices), usual | arguments.voice_map)
    if taken := {composed(name) for name, voice in arguments.voice_map.items() if name != voice} & speakers.keys():
        raise UserError(f"--voice-map must assign new names, and {min(taken)} is the name of a voice.")
    speaker = Speaker(model, arguments.queue, arguments.queue_seconds, arguments.max_seconds, arguments.warm, **options)
    name = arguments.model_name or Path(arguments.checkpoint).resolve().name
    given = {field: getattr(arguments, field) for field in ("max_characters", "allow_uploads")} | {"language": language}
    settings = ServerSettings(name, key, **given, has_page=bool(arguments.ui), cors=tuple(arguments.cors))
    return make_app(speaker, voices, settings), speaker, voices, settings


def _open_exported(run, arguments):
    """Returns an exported model, its voices `{name: language}`, its training speakers, and arguments for `Speaker`."""
    for name in ("decoder", "engine", "device", "which"):
        given, rule = getattr(arguments, name), "left out: exported models have one checkpoint and run on the CPU"
        require(given in (None, "best"), f"--{name}", rule, given)
    model = ExportedModel(run, arguments.warm)
    trained = [name for name, is_own in model.exported.trained.items() if is_own]
    most = min(MOST_IN_TURNS, max(2, MOST_CACHE_BYTES // model.cache_bytes))
    return model, model.speakers, trained, {"most_texts": most}


def _open_trained(run, arguments):
    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.interchange.onnx.engines import load_synthesizer
    from myxtts.storage.speakers import read_speakers

    device = configure_for_speech(arguments.device)
    with device:
        model = load_synthesizer(run, arguments.which, arguments.engine, decoder=arguments.decoder)
    stored = read_speakers(run)
    trained = [name for name, one in stored.items() if one.clip]
    return model, {name: one.language for name, one in stored.items()}, trained, {"device": device}


class _JSONLines(logging.Formatter):
    """Formats a log record as a JSON object with time, level, logger, message and the record's additional `fields`."""

    def format(self, record):
        # The texts of users must not be logged, only their lengths.
        if record.name.startswith("myxtts.inference.text_") and isinstance(record.args, tuple):
            record.args = tuple(f"[{len(one)} characters]" if isinstance(one, str) else one for one in record.args)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {"time": f"{at}.{record.msecs:03.0f}Z", "level": record.levelname.lower(), "logger": record.name}
        fields |= {"message": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Sends the logs of the package, and the errors of uvicorn, to standard error as JSON lines."""
    filter_native_errors()  # now, so that the handler does not write to the filter, which a signal may end
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONLines())
    for name in ("myxtts", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def limited_protocol(max_of_address: int) -> type[H11Protocol]:
    """Returns a uvicorn protocol class that limits connections, and closes them after `HEAD_SECONDS` without a request
    and after `SEND_SECONDS` in which a client reads nothing of a response. The class allows `max_of_address`
    connections per address (0: no limit) and `MOST_CONNECTIONS` in total. If a new connection exceeds a limit, the
    oldest one that awaits no response is closed. If all of them await a response, the new connection is closed.
    """
    opened: dict[H11Protocol, str] = {}  # the oldest first
    has_no_request = lambda one: one.cycle is None or one.cycle.response_complete or one.cycle.more_body

    class Limited(H11Protocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # else `_watch` sees the progress of a slow reader too rarely
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2**16)
            address = self.client[0] if self.client else ""
            same = [one for one, theirs in opened.items() if theirs == address]
            full = opened if len(opened) >= MOST_CONNECTIONS else ()
            crowd = same if 0 < max_of_address <= len(same) else full
            opened[self] = address
            if crowd:
                oldest = next((one for one in crowd if has_no_request(one)), self)
                del opened[oldest]
                oldest.transport.abort()
            self._watching = self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)

        def data_received(self, data):
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._deadline.cancel()
            elif self._deadline.cancelled() and before.response_complete:
                self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

        def pause_writing(self):
            super().pause_writing()
            self._watch(None)

        def _watch(self, before):  # until `resume_writing`, the buffer can only shrink
            if (size := self.transport.get_write_buffer_size()) == before:
                self.transport.abort()
            self._watching = self.loop.call_later(SEND_SECONDS, self._watch, size)

        def resume_writing(self):
            super().resume_writing()
            self._watching.cancel()

        def connection_lost(self, exc):
            opened.pop(self, None)
            self._deadline.cancel()
            self._watching.cancel()
            super().connection_lost(exc)

    return Limited


class Serving(uvicorn.Server):
    """Runs an app until SIGINT or SIGTERM, then rejects queued texts and finishes the texts in progress.

    Args:
        connections: Maximum number of connections per address; 0 for no limit.
        grace_seconds: Time limit for finishing texts after the signal. A second signal ends the server immediately.
        beside: Coroutine to run alongside the server, such as the server of another protocol.
    """

    def __init__(self, app, speaker: Speaker, connections: int, grace_seconds: int, beside: Coroutine | None = None):
        limits = dict(http=limited_protocol(connections), timeout_graceful_shutdown=grace_seconds)
        quiet = dict(log_config=None, access_log=False, server_header=False)
        super().__init__(uvicorn.Config(app, lifespan="on", ws="none", **limits, **quiet))
        self.speaker, self._beside, self._task = speaker, beside, None

    async def startup(self, sockets=None):
        """Starts to accept connections, and logs the addresses."""
        await super().startup(sockets)
        if self.started:
            self._task = self._beside and asyncio.ensure_future(self._beside)
            for host, port, *_ in [socket.getsockname() for server in self.servers for socket in server.sockets]:
                place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                logging.getLogger("myxtts.apps.server").info("Listening on http://%s", place)

    async def shutdown(self, sockets=None):
        """Rejects queued texts, and finishes the texts in progress unless they take longer than `grace_seconds`."""
        self.speaker.refuse_more()
        end = time.monotonic() + self.config.timeout_graceful_shutdown
        while self.speaker.load[1] and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.1)
        self.speaker.stop()  # answers the remaining requests, which uvicorn would cancel
        while self.speaker.alive and self.speaker.warmed and not self.force_exit:  # a warm-up can take minutes
            await asyncio.sleep(0.1)
        for connection in self.server_state.connections:
            if connection.cycle and connection.scope["path"].startswith(PAGE):
                connection.transport.close()  # an open page would keep the connection until the time limit
        self.config.timeout_graceful_shutdown = max(ANSWER_SECONDS, end - time.monotonic())
        await super().shutdown(sockets)
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=ANSWER_SECONDS)  # since Python 3.12, waits for idle clients too

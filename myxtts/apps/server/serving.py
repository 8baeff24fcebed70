"""A server's process: the model and the app from the options, the log, and how it stops."""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from myxtts.apps.server.app import make_app
from myxtts.apps.server.connections import limited_protocol
from myxtts.apps.server.gate import ServerSettings
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.voices import VoiceBook
from myxtts.config.checks import UserError
from myxtts.interchange.hub.fetching import local_folder
from myxtts.interchange.onnx.exported import ExportedModel, is_exported
from myxtts.storage.files import CheckpointError


def open_model(arguments: argparse.Namespace, key: str | None) -> tuple[FastAPI, Speaker, VoiceBook, ServerSettings]:
    """The parts of a server for the options of `options.build_parser`; an exported model without TensorFlow."""
    run = local_folder(arguments.checkpoint)
    model, speakers, open_speaker, scope = (_open_exported if is_exported(run) else _open_trained)(run, arguments)
    folder = arguments.voices and Path(arguments.voices)
    voices = VoiceBook(model, speakers, open_speaker, folder, arguments.voice_map)
    limits = arguments.queue, arguments.queue_seconds, arguments.max_seconds
    speaker = Speaker(model, *limits, arguments.warm, **scope)
    settings = ServerSettings(
        model=arguments.model_name or Path(arguments.checkpoint).resolve().name,
        api_key=key,
        max_characters=arguments.max_characters,
        language=arguments.language,
        allow_uploads=arguments.allow_uploads,
        has_page=bool(arguments.ui),
        cors=tuple(arguments.cors),
    )
    return make_app(speaker, voices, settings), speaker, voices, settings


def _open_exported(run, arguments):
    """The model, the languages of its own voices by name, what opens one, and options of `Speaker`."""
    for name in ("decoder", "engine", "device"):
        if getattr(arguments, name):
            raise UserError(f"--{name} is for models that were not exported: {run} speaks in ONNX Runtime on the CPU.")
    model = ExportedModel(run)
    try:
        model.warm_up(arguments.warm)  # here, since a damaged graph must end the command and not a thread
    except Exception as error:  # ONNX Runtime raises classes of its own, which share no base but this
        raise CheckpointError(f"{run} is not a whole export: {error}. Run `myxtts export` again.") from error
    return model, model.speakers, model.as_voice, {}


def _open_trained(run, arguments):
    from myxtts.devices.tensorflow_start import filter_native_errors, import_tensorflow

    filter_native_errors()
    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.devices.kinds import device_named
    from myxtts.inference.voices import stored_voice
    from myxtts.interchange.onnx.engines import load_synthesizer
    from myxtts.storage.speakers import read_speakers
    from myxtts.utils.commons import get_device_context

    configure_for_speech()
    scope = partial(get_device_context, arguments.device and device_named(arguments.device))
    with scope():
        model = load_synthesizer(run, arguments.which, arguments.engine, decoder=arguments.decoder)
    speakers = {name: one.language for name, one in read_speakers(run).items()}
    return model, speakers, lambda name: stored_voice(run, name, model.as_voice), {"device": scope}


class _WithoutTexts(logging.Filter):
    """Puts lengths for the texts and their parts that the log of `inference` quotes."""

    def filter(self, record):
        if record.name.startswith("myxtts.inference.text_") and isinstance(record.args, tuple):
            record.args = tuple(f"[{len(one)} characters]" if isinstance(one, str) else one for one in record.args)
        return True


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
    handler.addFilter(_WithoutTexts())
    for name in ("myxtts", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


class Serving(uvicorn.Server):
    """Runs an app until SIGINT or SIGTERM; then nothing new is begun, and what is spoken is spoken to its end.

    Args:
        connections: Most of them from one address; 0 for no limit.
        grace_seconds: After that, what is still spoken is broken off. A second signal breaks it off at once.
        beside: Runs as long as the server does, such as another protocol; None for nothing.
    """

    def __init__(self, app, speaker: Speaker, host, port, connections, grace_seconds, beside: Coroutine | None = None):
        limits = dict(http=limited_protocol(connections), timeout_graceful_shutdown=grace_seconds)
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

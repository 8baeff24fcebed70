"""A model, and the application that speaks with it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI

from myxtts.apps.server.app import ServerSettings, make_app
from myxtts.apps.server.metrics import Metrics
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.voices import VoiceBook
from myxtts.devices.configuration import configure_for_speech
from myxtts.devices.kinds import device_named
from myxtts.interchange.hub.fetching import local_folder
from myxtts.interchange.onnx.engines import load_synthesizer
from myxtts.utils.commons import get_device_context


class Opened(NamedTuple):
    """What a server is made of; nothing of it runs yet."""

    app: FastAPI
    speaker: Speaker
    voices: VoiceBook
    settings: ServerSettings


def open_model(
    arguments: argparse.Namespace, key: str | None, at_start: Callable[[Speaker], None] | None = None
) -> Opened:
    """Loads the model that `options.build_parser` was given; `at_start` is called as the application starts."""
    configure_for_speech()
    device = arguments.device and device_named(arguments.device)
    run = local_folder(arguments.checkpoint)
    with get_device_context(device):
        synthesizer = load_synthesizer(run, arguments.which, arguments.engine, decoder=arguments.decoder)
    voices = VoiceBook(synthesizer, run, arguments.voices and Path(arguments.voices))
    limits = arguments.queue, arguments.queue_seconds, arguments.max_seconds
    speaker = Speaker(synthesizer, Metrics(), *limits, arguments.warm, lambda: get_device_context(device))
    settings = ServerSettings(
        untouched=("/ui",) if arguments.ui else (),
        model=arguments.model_name or Path(arguments.checkpoint).resolve().name,
        api_key=key,
        max_characters=arguments.max_characters,
        language=arguments.language,
        allow_uploads=arguments.allow_uploads,
    )
    return Opened(make_app(speaker, voices, settings, at_start), speaker, voices, settings)

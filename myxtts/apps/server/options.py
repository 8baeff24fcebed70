"""The command line of a server, and what can be told from it alone."""

import argparse
import os
from pathlib import Path

from myxtts.config.checks import UserError, read_bounded, require
from myxtts.inference.choices import add_choices
from myxtts.text.languages import get_language

KEY_VARIABLE = "MYXTTS_API_KEY"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `myxtts serve`."""
    checkpoint = "folder of a training run or of `myxtts convert`, or base, the model in the box"
    parser.add_argument("--checkpoint", metavar="FOLDER", help=checkpoint)
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to speak with")
    parser.add_argument("--model-name", metavar="NAME", help="what clients call it (default: the folder's name)")
    place = parser.add_argument_group("where")
    place.add_argument("--host", default="127.0.0.1", help="address; another than this machine's own needs a key")
    place.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    wyoming = "also answer Home Assistant there, by the Wyoming protocol, which knows no keys; usual: 10200"
    place.add_argument("--wyoming-port", type=int, metavar="PORT", help=wyoming)
    place.add_argument("--wyoming-host", default="127.0.0.1", metavar="HOST", help="address for that")
    page = "also show the page of `myxtts ui` at /ui, with the runs in this folder; a key is its password"
    place.add_argument("--ui", metavar="FOLDER", help=page)
    key = f"file whose first line clients must send as their key (or set {KEY_VARIABLE})"
    place.add_argument("--api-key-file", metavar="FILE", help=key)
    place.add_argument("--api-key", metavar="KEY", help="the key itself, which others can see in the list of processes")
    voices = parser.add_argument_group("voices")
    voices.add_argument("--voices", metavar="FOLDER", help="a file for each voice; they may come and go")
    voices.add_argument("--allow-uploads", action="store_true", help="let clients add voices to that folder")
    voices.add_argument("--language", default="en", help="of texts for which neither request nor voice says it")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--queue", type=int, default=32, metavar="N", help="texts that may wait; others are told 429")
    limits.add_argument("--queue-seconds", type=float, default=120.0, help="how long a text may wait")
    limits.add_argument("--max-seconds", type=float, default=600.0, help="how long a text may take, with its waiting")
    limits.add_argument("--max-characters", type=int, default=4096, metavar="N", help="of a text")
    limits.add_argument("--grace-seconds", type=int, default=30, help="at a stop, for what is being spoken")
    model = parser.add_argument_group("model")
    warm = "what is done before the first text: short traces, all also compiles every shape of batch, for minutes"
    model.add_argument("--warm", choices=("none", "short", "all"), default="short", help=warm)
    add_choices(model)


def check_options(arguments: argparse.Namespace) -> str | None:
    """Raises `UserError` for what can be seen from the command line; returns the key."""
    if not arguments.checkpoint:
        raise UserError("--checkpoint must name the folder of a model. Try: myxtts serve --checkpoint runs/mine")
    if arguments.allow_uploads and not arguments.voices:
        raise UserError("--allow-uploads needs --voices FOLDER, where the voices are kept.")
    if arguments.allow_uploads and not os.access(arguments.voices, os.W_OK):
        raise UserError(f"--allow-uploads needs a folder that can be written to. {arguments.voices} is not.")
    require(0 <= (arguments.wyoming_port or 0) <= 65535, "--wyoming-port", "0 to 65535", arguments.wyoming_port)
    for flag, most in (
        ("queue", 10_000),
        ("max_characters", 10**6),
        ("queue_seconds", 86_400),
        ("max_seconds", 86_400),
    ):
        value, least = getattr(arguments, flag), 0 if flag == "queue" else 1
        require(least <= value <= most, f"--{flag.replace('_', '-')}", f"{least} to {most}", value)
    require(0 <= arguments.grace_seconds <= 3600, "--grace-seconds", "0 to 3600", arguments.grace_seconds)
    try:
        get_language(arguments.language)
    except ValueError as error:
        raise UserError(f"--language: {error}") from error
    return _read_key(arguments)


def _read_key(arguments):
    if arguments.api_key is not None and arguments.api_key_file:
        raise UserError("--api-key is not allowed with --api-key-file: give one of them.")
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    if arguments.api_key_file:
        try:
            key = (read_bounded(Path(arguments.api_key_file), 2**16).splitlines() or [""])[0].strip()
        except ValueError as error:
            raise UserError(f"--api-key-file {arguments.api_key_file} {error}.") from error
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key):
        raise UserError("An API key must be of 8 or more printable ASCII characters without spaces.")
    return key

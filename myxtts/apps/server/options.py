"""Command line of `myxtts serve`, and checks of its options."""

import argparse
import ipaddress
import os
from pathlib import Path

from myxtts.cli.arguments import PlainParser, add_model, add_options
from myxtts.cli.errors import read_input
from myxtts.config.checks import UserError, read_toml, require
from myxtts.devices.machine import check_device
from myxtts.inference.choices import add_choices
from myxtts.interchange.hub import check_model
from myxtts.storage.base_model import BASE_NAME, EXPORT, FILE, KINDS, MODELS, require_kind

KEY_VARIABLE = "MYXTTS_API_KEY"
COMMAND = read_toml(__file__, "options.toml")
"""Content of `options.toml`. Its table `ranges` maps each numeric flag to the minimum and maximum of its value."""


def build_parser() -> argparse.ArgumentParser:
    """Builds the argument parser of `myxtts serve`."""
    parser = PlainParser(prog="myxtts serve", description=COMMAND["about"])
    add_model(parser, "; also the folder of `myxtts export`", default=BASE_NAME)
    computed = {"--cors": {"default": ()}, "--voice-map": {"type": _voice_map, "default": {}}}
    add_choices(add_options(parser, COMMAND["options"], computed)["model"])
    return parser


def check_options(arguments: argparse.Namespace) -> str | None:
    """Checks the options and raises `UserError` for invalid ones; returns the API key, or None if there is none.

    Does not check whether the ports are free: a Ray Serve replica calls this function while Ray uses the HTTP port.
    """
    if arguments.allow_uploads and not os.access(arguments.voices or "", os.W_OK):
        raise UserError("--allow-uploads needs --voices FOLDER, a writable folder.")
    check_device(arguments.device)
    if arguments.ui is not None:
        require_kind(Path(arguments.ui), "--ui", {*KINDS} - {FILE}, "the folder that contains the runs")
    if arguments.voices is not None:
        require(Path(arguments.voices).is_dir(), "--voices", "an existing folder", arguments.voices)
    for flag, (least, most) in COMMAND["ranges"].items():
        value = getattr(arguments, flag[2:].replace("-", "_"))
        require(least <= value <= most, flag, f"{least} to {most}", value)
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    if arguments.api_key_file:
        key = read_input("--api-key-file", arguments.api_key_file, 2**16).splitlines()[0].strip()
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key):
        raise UserError("An API key must have 8 or more printable ASCII characters and no spaces.")
    if not key and not _is_local(arguments.host):
        raise UserError(f"--host {arguments.host} needs an API key. Give --api-key-file FILE, or set {KEY_VARIABLE}.")
    check_model(arguments.checkpoint, kinds=(*MODELS, EXPORT))
    return key


def _voice_map(text):
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    if not all(name.strip() and voice.strip() for name, voice in pairs):
        raise argparse.ArgumentTypeError(f"must be NAME=VOICE, or several with commas between them. Received: {text}")
    return {name.strip(): voice.strip() for name, voice in pairs}


def _is_local(host):
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

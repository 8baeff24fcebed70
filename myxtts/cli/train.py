"""`python train_main.py`: flags are settings and options of `myxtts.api`, which trains."""

import argparse
from typing import Any

from myxtts.cli.arguments import PlainParser, add_flags
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import UserError, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.flags import StartOptions, all_flags


def build_parser(prog: str = "myxtts train") -> argparse.ArgumentParser:
    """The training command line; its flags are a public contract."""
    parser = PlainParser(
        prog=prog,
        description="Train XTTS on a folder of recordings; without one, on a small sample corpus that it makes.",
        epilog="Without a flag its value comes from --config, else from the defaults named here.",
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="recordings to train on, as --train-data")
    add_flags(parser, all_flags())
    return parser


def config_from_arguments(arguments: argparse.Namespace) -> XTTSConfig:
    """The settings in `--config`, with the flags that were given on top."""
    from myxtts import api

    settings = {name for flag in all_flags() if flag.settings for name in flag.keywords}
    named = {name: value for name, value in _given(arguments).items() if name in settings}
    return api.configure(arguments.config, **named)


def set_up_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `runs.setup.set_up` that the command line gives, but for the configuration."""
    given = {flag.field.name: getattr(arguments, flag.keywords[0]) for flag in all_flags() if not flag.settings}
    options = vars(StartOptions(**{name: value for name, value in given.items() if value is not None}))
    return {name: value for name, value in options.items() if name not in ("config", "resume", "device_plan")}


def _given(arguments) -> dict[str, Any]:
    """What was given, by the names that `myxtts.api` has for it."""
    known = {name for flag in all_flags() for name in flag.keywords}
    given = {name: value for name, value in vars(arguments).items() if name in known and value is not None}
    if arguments.folder is None:
        return given
    if "train_data" in given:
        told = f"{printable(arguments.folder)} and --train-data {printable(given['train_data'])}"
        raise UserError(f"{told} were given: name the recordings once.")
    return given | {"train_data": arguments.folder}


def main(argv: list[str] | None = None) -> int:
    """Trains what is missing; returns the exit code."""
    code = train(argv)
    from myxtts.runs.signals import leave_in_order

    leave_in_order(code)
    return code


@exits_with_sentence
def train(argv: list[str] | None = None) -> int:
    """As `main`, for `train_main.py` where `argv` is None. Workers that it has joined are still there."""
    arguments = (build_parser("train_main.py") if argv is None else build_parser()).parse_args(argv)
    config_from_arguments(arguments)  # what is wrong with them is said before anything takes long
    from myxtts import api
    from myxtts.devices.tensorflow_start import filter_native_errors

    filter_native_errors()
    run = api.open_run(**_given(arguments))
    from myxtts.runs.signals import leave_at_once, leave_in_order, stops_on_signals

    if not run.train(guard=stops_on_signals) and not (run.trainer and run.trainer.under_way):
        leave_in_order(0)
        leave_at_once()
    return 0

"""`python train_main.py` and `myxtts train`: flags become settings and options of `myxtts.api`, which trains."""

import argparse
from collections.abc import Iterable
from typing import Any

from myxtts.cli.arguments import PlainParser, add_flags
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import UserError, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.flags import Flag, all_flags

OWN_OPTIONS = ("config", "resume", "device_plan")
"""Options of `StartOptions` that `runs.setup.set_up` does not take."""


def build_parser(prog: str = "myxtts train") -> argparse.ArgumentParser:
    """The training command line; its flags are a public contract."""
    parser = PlainParser(
        prog=prog,
        description="Train XTTS on a folder of recordings, or on a small generated sample corpus if none is given.",
        epilog="Settings without a flag on the command line come from --config, else from the defaults above.",
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="training set, same as --train-data")
    add_flags(parser, all_flags())
    return parser


def config_from_arguments(arguments: argparse.Namespace) -> XTTSConfig:
    """The settings in `--config`, overridden by the flags that were given."""
    from myxtts import api

    return api.configure(arguments.config, **_given(arguments, (flag for flag in all_flags() if flag.settings)))


def set_up_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `runs.setup.set_up` besides the configuration."""
    flags = [flag for flag in all_flags() if not flag.settings and flag.field.name not in OWN_OPTIONS]
    given = {flag.field.name: getattr(arguments, flag.keywords[0]) for flag in flags}
    return {name: value for name, value in given.items() if value is not None}


def _given(arguments, flags: Iterable[Flag]) -> dict[str, Any]:
    """Values of these flags as arguments of `myxtts.api`, without those that were not given."""
    names = {name for flag in flags for name in flag.keywords}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if arguments.folder is None:
        return given
    if "train_data" in given:
        both = f"{printable(arguments.folder)} and --train-data {printable(given['train_data'])}"
        raise UserError(f"Name the recordings once. Received: {both}.")
    return given | {"train_data": arguments.folder}


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Trains what is missing; returns the exit code. `argv` is None for `train_main.py`."""
    arguments = (build_parser("train_main.py") if argv is None else build_parser()).parse_args(argv)
    config_from_arguments(arguments)  # reports wrong settings before the slow imports
    from myxtts import api
    from myxtts.devices.tensorflow_start import filter_native_errors

    filter_native_errors()
    run = api.open_run(**_given(arguments, all_flags()))
    from myxtts.runs.signals import leave_at_once, leave_in_order, stops_on_signals

    if not run.train(guard=stops_on_signals) and not (run.trainer and run.trainer.under_way):
        leave_in_order(0)
        leave_at_once()
    return 0

"""`python train_main.py`: flags are settings and options of `myxtts.api`, which trains."""

import argparse
from contextlib import contextmanager
from typing import Any

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.flags import all_flags
from myxtts.config.optimizations import DEFAULT_EMA_DECAY, PRESETS
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB


def _kinds():
    """Options of `argparse` by the kind of a flag; for another kind, it is the metavar."""
    gpus = _value("GPU numbers such as 1,2,3", lambda text: tuple(map(int, text.split(","))))
    languages = _value("languages such as en,fa", lambda text: tuple(text.split(",")))
    batch_size = _value("a number of clips, or auto", lambda text: text if text == "auto" else int(text))
    return {
        "yes": dict(action="store_true", default=None),
        "fixed": dict(action="store_true", dest="static_shapes", default=None),
        "varying": dict(action="store_false", dest="static_shapes", default=None),
        "on/off": dict(action=argparse.BooleanOptionalAction, default=None),
        "int": dict(type=int),
        "float": dict(type=float),
        "MB": dict(type=int, metavar="MB"),
        "N": dict(type=int, metavar="N"),
        "gpus": dict(type=gpus, metavar="I,J,…"),
        "batch": dict(type=batch_size, metavar="N|auto"),
        "decay": dict(type=float, nargs="?", const=DEFAULT_EMA_DECAY, metavar="DECAY"),
        "DIR...": dict(action="append", metavar="DIR"),
        "LANG...": dict(action="append", metavar="LANG"),
        "ADDR,…": dict(type=lambda text: tuple(text.split(",")), metavar="HOST:PORT,…"),
        "names": dict(type=lambda text: tuple(map(str.strip, text.split(","))), metavar="NAME,…"),
        "LANGS": dict(type=languages, nargs="?", const=("all",), metavar="LANG,…"),
        "auto": dict(choices=("auto",)),
        "size": dict(choices=MODEL_SIZES),
        "stage": dict(choices=(*STAGES, "all")),
        "preset": dict(choices=PRESETS),
        "TEXT": {},
    }


def _value(rule, parse):
    def value(text):
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {rule}. Received: {text}") from None

    return value


def build_parser(prog: str = "myxtts train") -> argparse.ArgumentParser:
    """The training command line; its flags are a public contract."""
    parser = PlainParser(
        prog=prog,
        description="Train XTTS on a folder of recordings; without one, on a small sample corpus that it makes.",
        epilog="Without a flag its value comes from --config, else from the defaults named here.",
    )
    kinds, group, title, rivals = _kinds(), None, None, None
    for flag in all_flags():
        if flag.group != title:
            title = flag.group
            name, _, description = title[1:].partition("]")
            group = parser.add_argument_group(name, description.strip() or None)
        rivals = (rivals or group.add_mutually_exclusive_group()) if flag.excludes else None
        options = kinds.get(flag.kind, dict(metavar=flag.kind))
        (rivals or group).add_argument(*flag.names, help=flag.help, **options)
    parser.set_defaults(data_gpu_memory=DATA_GPU_MEMORY_MB, model_gpu_memory=MODEL_GPU_MEMORY_MB)
    return parser


def config_from_arguments(arguments: argparse.Namespace) -> XTTSConfig:
    """The settings in `--config`, with the flags that were given on top."""
    from myxtts import api

    given = _given(arguments)
    named = {name: given[name] for flag in all_flags() if flag.settings for name in flag.keywords if name in given}
    with _naming_flags(arguments):
        return api.configure(arguments.config, **named)


def set_up_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `runs.setup.set_up` that the command line gives, but for the configuration."""
    names = "model_gpus", "data_gpu_memory", "model_gpu_memory", "virtual_devices"
    switches = dict(memory_isolation=arguments.enable_memory_isolation, download=arguments.download_ljspeech)
    return {name: getattr(arguments, name) for name in names} | {name: bool(on) for name, on in switches.items()}


def _given(arguments) -> dict[str, Any]:
    """What was given, by the names that `myxtts.api` has for it."""
    known = {name for flag in all_flags() for name in flag.keywords}
    given = {name: value for name, value in vars(arguments).items() if name in known and value is not None}
    if arguments.static_shapes is not None:
        given["enable_static_shapes"] = arguments.static_shapes
    return given


@contextmanager
def _naming_flags(arguments):
    """Inside, a setting's error names the flag that gave the setting, which is what the user typed."""
    try:
        yield
    except ConfigError as error:
        told, given = str(error), _given(arguments)
        for flag in all_flags() if "--" not in told else ():
            if flag.keywords[0] in given and flag.settings and told.startswith(flag.settings):
                raise ConfigError(f"{flag.names[0]}: {told}") from error
        raise


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
    with _naming_flags(arguments):
        run = api.open_run(**_given(arguments))
    from myxtts.runs.signals import leave_at_once, leave_in_order, stops_on_signals

    if not run.train(guard=stops_on_signals) and not (run.trainer and run.trainer.under_way):
        leave_in_order(0)
        leave_at_once()
    return 0

"""The commands `myxtts train` (also `train_main.py`), `plan`, `launch` and `prepare`, which call the Python API."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from myxtts import api
from myxtts.cli.arguments import EXAMPLES, LICENCE, OPTIONS, PlainParser, add_flags, add_options
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, printable, require
from myxtts.config.config import XTTSConfig
from myxtts.config.flags import Flag, all_flags
from myxtts.config.model import DEFAULT_TEXT_TOKENS
from myxtts.devices.tensorflow_start import filter_native_errors, import_tensorflow
from myxtts.storage.files import write_json


def build_parser(prog: str = "myxtts train") -> argparse.ArgumentParser:
    """Returns the argument parser of `myxtts train`."""
    parser = PlainParser(
        prog=prog,
        description="Train XTTS on a folder of recordings, or on a small generated sample corpus if none is given.",
        epilog="Settings without a flag on the command line come from --config, else from the defaults above.",
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="training set, same as --train-data")
    add_flags(parser, all_flags())
    return parser


def config_from_arguments(arguments: argparse.Namespace) -> XTTSConfig:
    """Returns the settings of the --config file, overridden by the values of the other flags that were given."""
    return api.configure(arguments.config, **_given(arguments, (flag for flag in all_flags() if flag.settings)))


def _given(arguments, flags: Iterable[Flag]) -> dict[str, Any]:
    """Returns keyword arguments for `api.train`: the `flags` that the user gave, and the folder DIR as `train_data`."""
    names = {name for flag in flags for name in flag.keywords}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if arguments.folder is None:
        return given
    if "train_data" in given:
        one, other = printable(arguments.folder), printable(given["train_data"])
        raise UserError(f"Give the recordings only once. Received: {one} and --train-data {other}.")
    return given | {"train_data": arguments.folder}


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Starts or resumes training; returns the exit code. If `argv` is None, reads `sys.argv` (for `train_main.py`)."""
    arguments = (build_parser("train_main.py") if argv is None else build_parser()).parse_args(argv)
    filter_native_errors()
    run = api.open_run(**_given(arguments, all_flags()))
    from myxtts.distributed.workers import end_process
    from myxtts.runs.run import stops_on_signals

    if not run.train(guard=stops_on_signals) and not (run.trainer and run.trainer.under_way):
        end_process()
    return 0


@exits_with_sentence
def plan(argv: Sequence[str] | None = None) -> int:
    """Estimates and prints the memory that training would need; returns the exit code."""
    parser = build_parser("myxtts plan")
    parser.description = EXAMPLES["about plan"].format(stage=api.PLANNED_STAGE)
    gpus = f"memory of a GPU; can be repeated (default: {', '.join(map(str, api.PLANNED_GPUS_GB))})"
    computed = {"--text-tokens": {"default": DEFAULT_TEXT_TOKENS}, "--gpu-memory": {"help": gpus}}
    add_options(parser, OPTIONS["plan"], computed)
    arguments = parser.parse_args(argv)
    require_output("--json", arguments.json, starts=b'{\n "stage"')
    given = {name: getattr(arguments, name) for name in ("clip_seconds", "text_tokens", "gpu_memory", "time")}
    if arguments.time:
        filter_native_errors()
    report = api.plan(**_given(arguments, all_flags()), **given, show=print)
    if arguments.time:
        print(report.describe_time())
    if arguments.json:
        write_json(arguments.json, report)
    return 0


@exits_with_sentence
def launch(argv: list[str] | None = None) -> int:
    """Starts workers and prints their output; returns 0, a failed worker's exit code, or 75 if a worker was lost."""
    usage = "myxtts launch --workers N [--restarts N] -- train …"
    parser = PlainParser(prog="myxtts launch", usage=usage, description=EXAMPLES["about launch"])
    add_options(parser, OPTIONS["launch"])
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    require(2 <= arguments.workers <= 256, "--workers", "from 2 to 256", arguments.workers)
    require(arguments.restarts >= 0, "--restarts", "0 or more", arguments.restarts)
    example = "train, as in myxtts launch --workers 2 -- train …"
    require(command[:1] == ["train"], "The command after --", example, " ".join(command[:1]) or "nothing")
    given = build_parser().parse_args(command[1:])
    for flag, value in (("--workers", given.workers), ("--worker-index", given.worker_index)):
        require(value is None, flag, "left out after --, because myxtts launch sets it", value)
    starts_over = arguments.restarts and not given.resume and config_from_arguments(given).training.reset_training
    rule = "0 with --reset-training (training.reset_training), which would start over after each lost worker"
    require(not starts_over, "--restarts", rule, arguments.restarts)
    from myxtts.devices.configuration import divide_gpus
    from myxtts.distributed.workers import launch

    return launch(command, divide_gpus(arguments.workers, given.virtual_devices), arguments.restarts)


@exits_with_sentence
def prepare(argv: list[str] | None = None) -> int:
    """Encodes a training set and writes the shards that do not exist yet; returns the exit code."""
    parser = PlainParser(prog="myxtts prepare", description="Encode a training set into shards.")
    add_options(parser, OPTIONS["prepare"], {"--accept-licence": LICENCE})
    arguments = parser.parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True)
    from myxtts.interchange.hub import local_folder

    folder = local_folder(arguments.checkpoint, arguments.accept_licence)
    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.devices.machine import device_named
    from myxtts.runs import preparing
    from myxtts.utils.commons import setup_logging

    setup_logging()
    configure_for_speech(arguments.device)
    device = device_named(arguments.device)
    limits = arguments.min_seconds, arguments.max_seconds
    preparing.prepare(folder, arguments.output, arguments.shards, device, arguments.shard, arguments.train_data, limits)
    return 0

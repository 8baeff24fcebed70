"""`myxtts launch` starts several workers on this machine; `myxtts prepare` encodes clips once for all workers."""

import argparse

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, require

PREPARE_EXAMPLES = """
examples:
  myxtts prepare --train-data DIR --checkpoint RUN --output SHARDS --shards 16
  myxtts prepare --train-data DIR --checkpoint RUN --output SHARDS --shards 16 --shard 3
  myxtts train --train-data DIR --checkpoint-dir RUN --prepared SHARDS

Shards can be made in any order, by up to one process per shard, on any machines. Existing shards are kept, so the same
command continues after a stop. docs/scaling.md explains what training reads from them.
"""


def launch_parser() -> PlainParser:
    """The command line of `myxtts launch`."""
    parser = PlainParser(prog="myxtts launch", usage="myxtts launch --workers N [--restarts N] -- train …")
    parser.description = (
        "Start several workers on this machine that train one model together. Each line of their output begins with "
        "the worker's number. Ctrl-C stops all of them after the current step. On several machines, start each worker "
        "with --workers and --worker-index (docs/scaling.md)."
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="how many, at least 2")
    restarts = "how often all workers are restarted after one was lost; the run resumes exactly"
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help=restarts)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- train, and its arguments")
    return parser


@exits_with_sentence
def launch(argv: list[str] | None = None) -> int:
    """Starts the workers and prints their output; returns their exit code, or 75 if one was lost."""
    arguments = launch_parser().parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    require(2 <= arguments.workers <= 256, "--workers", "from 2 to 256", arguments.workers)
    require(arguments.restarts >= 0, "--restarts", "0 or more", arguments.restarts)
    example = "train, as in myxtts launch --workers 2 -- train …"
    require(command[:1] == ["train"], "The command after --", example, " ".join(command[:1]) or "nothing")
    for flag in ("--workers", "--worker-index"):
        if any(one == flag or one.startswith(f"{flag}=") for one in command):
            raise UserError(f"{flag} is set by myxtts launch itself. Leave it out after --.")
    from myxtts.distributed import launching

    return launching.launch(arguments.workers, command, arguments.restarts)


def prepare_parser() -> PlainParser:
    """The command line of `myxtts prepare`."""
    description = "Encode a training set into shards."
    parser = PlainParser(prog="myxtts prepare", description=description, epilog=PREPARE_EXAMPLES)
    parser.add_argument("--train-data", metavar="DIR", help="root of the training set (default: the run's)")
    parser.add_argument("--checkpoint", metavar="RUN", required=True, help="folder of a run whose DVAE is trained")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder for shards and manifest")
    parser.add_argument("--shards", type=int, metavar="N", default=1, help="number of shards")
    parser.add_argument("--shard", type=int, metavar="I", help="encode only this shard, 0 to N - 1 (default: all)")
    parser.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU if there is one)")
    return parser


@exits_with_sentence
def prepare(argv: list[str] | None = None) -> int:
    """Encodes the missing shards."""
    arguments = prepare_parser().parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True)
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.devices.kinds import default_device, device_named
    from myxtts.runs import preparing
    from myxtts.utils.commons import setup_logging

    setup_logging()
    device = device_named(arguments.device) if arguments.device else default_device()
    asked = arguments.shards, device, arguments.shard, arguments.train_data
    preparing.prepare(arguments.checkpoint, arguments.output, *asked)
    return 0

"""`myxtts launch`: several workers on this machine by one command."""

import argparse

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import UserError, require


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts launch`."""
    parser = PlainParser(prog="myxtts launch", usage="myxtts launch --workers N [--restarts N] -- train …")
    parser.description = (
        "Start several workers on this machine that train one model together, each line of theirs with its number "
        "before it. One Ctrl-C stops all of them after a step. On several machines, start each worker there with "
        "--workers and --worker-index (docs/scaling.md)."
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="how many, at least 2")
    help_text = "times that all are started again after one was lost (default: 0); the run goes on exactly"
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help=help_text)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- train, and its arguments")
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Starts the workers and follows them; returns their exit code, 75 where one was lost."""
    arguments = build_parser().parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    require(2 <= arguments.workers <= 256, "--workers", "from 2 to 256", arguments.workers)
    require(arguments.restarts >= 0, "--restarts", "0 or more", arguments.restarts)
    if command[:1] != ["train"]:
        given = " ".join(command[:1]) or "nothing"
        raise UserError(f"myxtts launch starts workers that train: myxtts launch --workers 2 -- train …. Got: {given}.")
    for flag in ("--workers", "--worker-index"):
        if any(one == flag or one.startswith(f"{flag}=") for one in command):
            raise UserError(f"{flag} of train is given by myxtts launch itself. Leave it out after --.")
    from myxtts.distributed.launching import launch

    return launch(arguments.workers, command, arguments.restarts)

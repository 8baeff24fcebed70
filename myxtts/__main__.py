"""The `myxtts` command and its list of subcommands."""

import importlib
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import NoReturn

import myxtts
import myxtts.cli  # noqa: F401  keeps TensorFlow's start-up messages quiet
from myxtts.devices.tensorflow_start import run_to_exit

TEXTS = tomllib.loads((Path(__file__).parent / "cli/commands.toml").read_text("utf-8"))
COMMANDS = {name: entry for group in TEXTS["groups"].values() for name, entry in group.items()}
"""Maps the name of each subcommand to a list: the function to call (`module:function`) and a one-line summary."""


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand in `argv` and returns its exit code. `--help`, or no argument, lists all subcommands."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: myxtts COMMAND …")
        for title, commands in TEXTS["groups"].items():
            print(f"\n{title}")
            print("\n".join(f"  {name:14} {summary}" for name, (_, summary) in commands.items()))
        print("\n`myxtts COMMAND --help` lists the options of a command, `myxtts --version` prints the version.")
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"myxtts {myxtts.__version__}")
        return 0
    if argv[0] not in COMMANDS:
        from myxtts.config.checks import printable
        from myxtts.config.settings import nearest

        given = argv[0].lower().replace("_", "-")
        meant = next((name for name, others in TEXTS["other names"].items() if given in others.split()), None)
        hint = f" Did you mean {meant}?" if meant else nearest(argv[0], COMMANDS)
        print(f"myxtts: {printable(argv[0])} is not a command.{hint}", file=sys.stderr)
        return 2
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        module, _, function = COMMANDS[argv[0]][0].partition(":")
        return getattr(importlib.import_module(module), function)(argv[1:])
    except KeyboardInterrupt:  # while modules are imported
        print("Stopped immediately.", file=sys.stderr, flush=True)
        return 130
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _end(number, frame):
    """Handles SIGTERM: raises SystemExit, so that cleanup code runs. Repeats this every second until `main` ends."""
    # The exception can be lost where native code calls Python, for example during an import.
    signal.signal(signal.SIGALRM, lambda alarm, frame: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, 1.0)  # repeats SIGTERM if the process has not ended
    if not isinstance(sys.exc_info()[1], SystemExit):  # otherwise the process already ends
        sys.exit(128 + number)


def run() -> NoReturn:
    """Runs the `myxtts` command and ends the process with its exit code."""
    run_to_exit(main)


if __name__ == "__main__":
    run()

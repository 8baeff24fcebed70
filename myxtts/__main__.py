"""The `myxtts` command and its list of subcommands."""

import importlib
import signal
import sys
import threading
from typing import NoReturn

import myxtts
import myxtts.cli  # noqa: F401  keeps TensorFlow's start-up messages quiet
from myxtts.devices.tensorflow_start import run_to_exit

GROUPS = {
    "Train": {
        "train": ("myxtts.cli.train:main", "train or fine-tune a model (same as train_main.py)"),
        "ui": ("myxtts.apps.studio.__main__:main", "train and speak in the browser"),
        "launch": ("myxtts.cli.train:launch", "train one model with several workers on this machine"),
    },
    "Speak": {
        "say": ("myxtts.cli.say:main", "speak a text in the voice of a recording"),
        "serve": ("myxtts.apps.server.__main__:main", "serve a model over HTTP, with OpenAI's speech API"),
    },
    "Prepare data": {
        "make-dataset": ("myxtts.apps.datasets.command:main", "build a training set from long recordings"),
        "prepare": ("myxtts.cli.train:prepare", "preprocess a training set into shards for all workers"),
    },
    "Check and compare": {
        "doctor": ("myxtts.cli.doctor:main", "check the machine or a data set before training"),
        "plan": ("myxtts.cli.train:plan", "predict training memory and the largest batch for a GPU"),
        "evaluate": ("myxtts.apps.evaluation.command:main", "score the speech of models, side by side"),
    },
    "Share and export": {
        "export": ("myxtts.cli.models:export", "export a model to ONNX, to run without MyXTTS"),
        "push": ("myxtts.cli.models:push", "upload a model to the Hugging Face hub, with a model card"),
        "convert": ("myxtts.cli.models:convert", "convert an XTTS v2 checkpoint to a MyXTTS model, or back"),
    },
}
"""Subcommands in the groups of `myxtts --help`: each name with the function to call and a one-line summary."""
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

END_SECONDS = 1.0
"""Seconds after which SIGTERM is repeated if the process has not ended yet."""


def main(argv: list[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code; without one, or with `--help`, lists all subcommands."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: myxtts COMMAND …")
        for title, commands in GROUPS.items():
            print(f"\n{title}")
            print("\n".join(f"  {name:14} {summary}" for name, (_, summary) in commands.items()))
        print("\n`myxtts COMMAND --help` lists the options of a command, `myxtts --version` prints the version.")
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"myxtts {myxtts.__version__}")
        return 0
    if argv[0] not in COMMANDS:
        from myxtts.cli.arguments import EXAMPLES
        from myxtts.config.checks import printable
        from myxtts.config.settings import nearest

        given = argv[0].lower().replace("_", "-")
        meant = next((name for name, others in EXAMPLES["other names"].items() if given in others.split()), None)
        hint = f" Did you mean {meant}?" if meant else nearest(argv[0], COMMANDS)
        print(f"myxtts: {printable(argv[0])} is not a command.{hint}", file=sys.stderr)
        return 2
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        module, _, function = COMMANDS[argv[0]][0].partition(":")
        return getattr(importlib.import_module(module), function)(argv[1:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _end(number, frame):
    """Raises SystemExit on SIGTERM, so that cleanup code runs. A timer repeats the signal until the process ends."""
    # The exception can be lost where native code calls Python, for example during an import.
    signal.signal(signal.SIGALRM, lambda alarm, frame: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, END_SECONDS)
    if not isinstance(sys.exc_info()[1], SystemExit):  # otherwise the process already ends
        sys.exit(128 + number)


def run() -> NoReturn:
    """Runs the `myxtts` command and ends the process with its exit code."""
    run_to_exit(main)


if __name__ == "__main__":
    run()

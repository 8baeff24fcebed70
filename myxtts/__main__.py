"""The `myxtts` command: the subcommands in `cli` and those of the apps."""

import importlib
import signal
import sys
import threading
from typing import NoReturn

import myxtts
import myxtts.cli  # noqa: F401  keeps TensorFlow's start-up messages quiet
from myxtts.devices.process_end import run_to_exit

COMMANDS = {
    "train": ("myxtts.cli.train:main", "train a model (the same as train_main.py)"),
    "launch": ("myxtts.cli.scaling:launch", "start several workers on this machine that train one model"),
    "prepare": ("myxtts.cli.scaling:prepare", "encode the clips of a training set into shards, once for all workers"),
    "convert": ("myxtts.cli.models:convert", "turn a released XTTS v2 checkpoint into a model of ours, and back"),
    "say": ("myxtts.cli.say:main", "speak a text in the voice of a recording"),
    "export": ("myxtts.cli.models:export", "write a trained model as files that speak without this project"),
    "evaluate": ("myxtts.apps.evaluation.command:main", "evaluate and compare the speech of models"),
    "push": ("myxtts.cli.models:push", "upload a model to the Hugging Face hub, with a model card"),
    "serve": ("myxtts.apps.server.__main__:main", "serve a model over HTTP, as OpenAI's clients expect it"),
    "ui": ("myxtts.apps.studio.__main__:main", "train and speak in the browser"),
    "make-dataset": ("myxtts.apps.datasets.command:main", "cut long recordings into a checked training set"),
    "plan": ("myxtts.cli.plan:main", "predict the memory of training, and the largest batch for a GPU"),
    "doctor": ("myxtts.cli.doctor:main", "check the machine, or a data set, before training"),
}

OTHER_NAMES = {
    **dict.fromkeys(("speak", "tts", "synthesize", "synthesise", "infer", "generate"), "say"),
    **dict.fromkeys(("finetune", "fine-tune", "fit", "resume"), "train"),
    **dict.fromkeys(("server", "api"), "serve"),
    **dict.fromkeys(("web", "webui", "gui", "app", "page"), "ui"),
    **dict.fromkeys(("dataset", "prepare-data", "transcribe", "segment"), "make-dataset"),
    **dict.fromkeys(("check", "info", "env"), "doctor"),
    **dict.fromkeys(("eval", "test", "benchmark"), "evaluate"),
    **dict.fromkeys(("import", "download"), "convert"),
}
"""What other programs call them."""

HEARD_SECONDS = 1.0
"""After which an exception that a signal raised should have got through."""


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand named first; prints the list for none or `--help`."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: myxtts COMMAND …\n")
        print("\n".join(f"  {name:14} {help_text}" for name, (_, help_text) in COMMANDS.items()))
        print("\n`myxtts COMMAND --help` lists its options, `myxtts --version` says which this is.")
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"myxtts {myxtts.__version__}")
        return 0
    if argv[0] not in COMMANDS:
        from myxtts.config.checks import printable
        from myxtts.config.settings import nearest

        meant = OTHER_NAMES.get(argv[0].lower().replace("_", "-"))
        hint = f" Did you mean {meant}?" if meant else nearest(argv[0], COMMANDS)
        print(f"myxtts: {printable(argv[0])} is not a command.{hint}", file=sys.stderr)
        return 2
    if threading.current_thread() is threading.main_thread():
        # Commands that can end better have handlers of their own.
        signal.signal(signal.SIGTERM, _end)
    try:
        module, _, function = COMMANDS[argv[0]][0].partition(":")
        return getattr(importlib.import_module(module), function)(argv[1:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _end(number, frame):
    """Raises `SystemExit`, so that what is half written goes away; and again for as long as that does not get through.

    Where native code calls Python, as in the middle of an import, an exception may be lost, and the process would go on
    as if nothing had been.
    """
    signal.signal(signal.SIGALRM, lambda alarm, frame: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, HEARD_SECONDS)
    if not isinstance(sys.exc_info()[1], SystemExit):  # else it is on its way, and clears up
        sys.exit(128 + number)


def run() -> NoReturn:
    """The `myxtts` command as a process."""
    run_to_exit(main)


if __name__ == "__main__":
    run()

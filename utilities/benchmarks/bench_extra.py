"""Shared code of the benchmarks: worker processes, process statistics and tables of results.

Imports only the standard library, because worker processes also run in the reference's environment.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


class Worker(AbstractContextManager):
    """Process that runs a command in a `with` block and answers requests. `environment` adds environment variables."""

    def __init__(self, *command: object, **environment: str):
        pipes, environment = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), os.environ | environment
        self._process = subprocess.Popen(list(map(str, command)), env=environment, **pipes)

    def ask(self, request: object) -> object:
        """Sends a request to the process and returns the response; each is one line of JSON."""
        with suppress(BrokenPipeError):  # it has ended
            print(json.dumps(request), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}; see its message above.")
        return json.loads(answer)

    def __exit__(self, *error):
        self._process.communicate()  # closes its input and waits, even if it has ended


def answer_requests(prepare: Callable[[], Callable[[object], object]]) -> None:
    """Answers the requests of a `Worker` until the input ends. `prepare()` returns the function that answers a request.

    Text that other code prints to standard output, such as a library, is redirected to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    respond = prepare()
    for line in sys.stdin:
        print(json.dumps(respond(json.loads(line))), file=answers, flush=True)


def describe_hardware() -> str:
    """Returns processor, number of usable cores, GPUs and versions in one line."""
    import tensorflow as tf

    from myxtts.devices.machine import read_processor

    cpu, details = read_processor(), tf.config.experimental.get_device_details
    gpus = [details(gpu).get("device_name", gpu.name) for gpu in tf.config.get_visible_devices("GPU")]
    versions = f"Python {platform.python_version()}, TensorFlow {tf.__version__}"
    return f"{cpu.name}, {cpu.cores} cores, {', '.join(gpus) or 'no GPU'}, {versions}"


def append_table(title: str, script: str, header: list[str], rows: list[list], append: bool) -> None:
    """Prints a table of results with date, hardware and command. If `append`, also adds it to docs/benchmarks.md."""
    command = " ".join([f"python utilities/benchmarks/{script}", *sys.argv[1:]])
    lines = [f"## {title}", "", f"{date.today()}, {describe_hardware()}. `{command}`", ""]
    lines += ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    text = "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"
    print(text)
    if append:
        with open(ROOT / "docs" / "benchmarks.md", "a", encoding="utf-8") as page:
            page.write("\n" + text)

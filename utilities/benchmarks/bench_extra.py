"""Shared code of the benchmarks: optional imports, worker processes, process statistics and tables of results."""

import importlib
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from myxtts.devices.machine import read_processor  # noqa: E402  the checkout must be on the path first


def import_extra(module: str) -> ModuleType:
    """Imports a package of the extra `bench`; exits with an installation hint if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        sys.exit(f'This benchmark needs {module}. Install it with: pip install -e ".[bench]"')


class Worker:
    """Context manager that runs a command and sends it requests by `ask`; `environment` adds environment variables."""

    def __init__(self, *command: object, **environment: str):
        pipes, environment = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), os.environ | environment
        self._process = subprocess.Popen(list(map(str, command)), env=environment, **pipes)

    def ask(self, request: object) -> object:
        """Sends a request to the process and returns the response; each is one line of JSON."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}; see its message above.")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()


def process_state() -> tuple[int, int]:
    """Returns the resident bytes and the number of threads of this process."""
    process = import_extra("psutil").Process()
    return process.memory_info().rss, process.num_threads()


def others_seconds() -> float:
    """Returns the CPU seconds that other processes have used since the machine started, to detect a busy machine."""
    total = import_extra("psutil").cpu_times()
    return total.user + total.nice + total.system - sum(os.times()[:2])


def describe_hardware() -> str:
    """Returns processor, number of usable cores, GPUs and versions in one line."""
    import tensorflow as tf

    cpu, details = read_processor(), tf.config.experimental.get_device_details
    gpus = [details(gpu).get("device_name", gpu.name) for gpu in tf.config.get_visible_devices("GPU")]
    versions = f"Python {platform.python_version()}, TensorFlow {tf.__version__}"
    return f"{cpu.name}, {cpu.cores} cores, {', '.join(gpus) or 'no GPU'}, {versions}"


def append_table(title: str, script: str, header: list[str], rows: list[list], append: bool) -> None:
    """Prints a table of results with date, hardware and command; `append` also adds it to docs/benchmarks.md."""
    command = " ".join([f"python utilities/benchmarks/{script}", *sys.argv[1:]])
    lines = [f"## {title}", "", f"{date.today()}, {describe_hardware()}. `{command}`", ""]
    lines += ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    text = "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"
    print(text)
    if append:
        with open(ROOT / "docs" / "benchmarks.md", "a", encoding="utf-8") as page:
            page.write("\n" + text)

"""What machine a figure was measured on, and where tables are kept."""

import importlib
import platform
import sys
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras  # noqa: E402  after myxtts, which settles what TensorFlow reads when it is imported
from bench_extra import import_extra  # noqa: E402

from myxtts.devices.machine import read_processor  # noqa: E402  the checkout must be on the path first

BENCHMARKS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def describe_hardware():
    """One line: processor, cores that this process may use, GPUs, versions."""
    cpu = read_processor()
    return (
        f"{cpu.name}, {cpu.cores} cores, {', '.join(_gpus()) or 'no GPU'}, Python "
        f"{platform.python_version()}, {_framework()}"
    )


def _gpus():
    if keras.backend.backend() == "jax":
        return [device.device_kind for device in import_extra("jax").devices() if device.platform == "gpu"]
    import tensorflow as tf

    return [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.get_visible_devices("GPU")
    ]


def _framework():
    name = keras.backend.backend()
    return f"{'JAX' if name == 'jax' else 'TensorFlow'} {importlib.import_module(name).__version__}"


def append_table(title, command, header, rows, append=True):
    """Prints a table and appends it to docs/benchmarks.md with date, hardware and command.

    Args:
        title: Heading.
        command: What makes the figures.
        header: Column names.
        rows: Lists of cells.
        append: False only prints it.
    """
    lines = [
        f"## {title}",
        "",
        f"{date.today()}, {describe_hardware()}. `{command}`",
        "",
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if append:
        with open(BENCHMARKS_PAGE, "a", encoding="utf-8") as page:
            page.write("\n" + text)

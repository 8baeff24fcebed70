"""Default device, logging, progress bars and line wrapping."""

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, TextIO

from tqdm import std
from tqdm.auto import tqdm

from myxtts.config.checks import console_log
from myxtts.devices.machine import default_device, runs_on_cpu

LOGGER_NAME = "myxtts"
LOG_FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
LINE_WIDTH = 120
"""Maximum number of characters in a printed line."""


def get_device_context(device: str | None = None) -> AbstractContextManager:
    """Returns a `tf.device` scope for `device`; None means the first visible GPU or, without a GPU, the CPU."""
    import tensorflow as tf

    return tf.device(device or default_device())


def ensure_gpu_placement(tensor: Any) -> Any:
    """Copies a CPU tensor to the first GPU. If there is no GPU, or `tensor` is on a GPU, returns `tensor`."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(tensor)
    if not tf.config.get_visible_devices("GPU") or not runs_on_cpu(tensor.device):
        return tensor
    with get_device_context():
        return tf.identity(tensor)


def folded(line: str, width: int = 0) -> str:
    """Wraps a line at `width` characters (0: the terminal's width, at most `LINE_WIDTH`); indents continuation lines.

    Lines such as `a | b | c` are wrapped at the separators, others at spaces. Long words and commands are not broken.
    """
    # Commands in backticks, or in lines of their own (perhaps after a title), stay whole, so that users can paste them.
    whole = r"`[^`]+`|^( *--|([\w ]+: {2,}| *)(myxtts|python|tensorboard) ).*"
    line = re.sub(whole, lambda command: command[0].replace(" ", "\0"), line)
    if not width:
        width = min(LINE_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else LINE_WIDTH
    joint = " | " if " | " in line else " "
    lines = []
    for part in line.split(joint) if len(line) > width else [line]:
        if lines and len(lines[-1]) + len(joint) + len(part) <= width:
            lines[-1] += joint + part
        else:
            lines.append(f"  {part}" if lines else part)
    return "\n".join(lines).replace("\0", " ")


def folded_on_terminal(text: str, stream: TextIO) -> str:
    """Wraps a text if `stream` is a terminal. In color terminals, an initial `Error` or `WARNING` becomes red."""
    if not stream.isatty():
        return text
    text = "\n".join(map(folded, text.split("\n")))
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return text if plain else re.sub(r"^([\d:]{8} )?(Error|ERROR|WARNING)\b", "\\1\x1b[1;31m\\2\x1b[0m", text)


def shows_bars() -> bool:
    """Returns whether progress bars are shown: on a terminal, and in notebooks with ipywidgets."""
    return sys.stdout.isatty() or tqdm.display is not std.tqdm.display


@contextmanager
def progress_bar(title: str, unit: str = "clip") -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar if `shows_bars()`, and yields the function `progress(done, total)` that updates it."""
    with tqdm(desc=title, unit=unit, disable=not shows_bars(), leave=False, dynamic_ncols=True) as bar:

        def progress(done, total):
            if total != bar.total:
                bar.reset(total)
            bar.update(done - bar.n)

        yield progress


class _AboveProgressBars:
    """Text stream for logging that prints to standard output without breaking progress bars."""

    def write(self, text):
        tqdm.write(folded_on_terminal(text, sys.stdout), file=sys.stdout, end="")

    def flush(self):
        sys.stdout.flush()


def setup_logging() -> logging.Logger:
    """Makes the logger `myxtts` print messages of level INFO and above to standard output, and returns the logger."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers = [handler for handler in logger.handlers if handler.get_name() != LOGGER_NAME]
    handler = logging.StreamHandler(_AboveProgressBars())
    handler.set_name(LOGGER_NAME)
    handler.addFilter(lambda record: record.name != console_log.name)
    handler.setFormatter(LOG_FORMATTER)
    logger.addHandler(handler)
    logger.setLevel("INFO")
    # TensorFlow's absl adds a handler to the root logger, which would print every line again.
    logger.propagate = False
    return logger


@contextmanager
def standard_output_for_sound() -> Iterator[BinaryIO]:
    """Yields standard output as a binary stream; in the block, all other output goes to standard error."""
    sys.stdout.flush()
    number = sys.stdout.fileno()
    with os.fdopen(os.dup(number), "wb", buffering=0) as sound:
        os.dup2(2, number)
        try:
            yield sound
        finally:
            sys.stdout.flush()
            os.dup2(sound.fileno(), number)

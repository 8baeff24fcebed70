"""Small things every part of the package needs: the default device, the log."""

import logging
import shutil
import sys
from contextlib import AbstractContextManager
from typing import Any, TextIO

from tqdm import tqdm

from myxtts.config.checks import console_log
from myxtts.devices.kinds import default_device, runs_on_cpu

LOGGER_NAME = "myxtts"
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
LOG_TIME_FORMAT = "%H:%M:%S"
LINE_WIDTH = 120
"""Characters of a line, at most, where it can be broken."""


def get_device_context(device: str | None = None) -> AbstractContextManager:
    """A `tf.device` scope for `device`, or else for the first visible GPU, or the CPU where there is none."""
    import tensorflow as tf

    return tf.device(device or default_device())


def ensure_gpu_placement(tensor: Any) -> Any:
    """A tensor or what converts to one, on a GPU: itself if it is on one or there is none, else a copy on the first."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(tensor)
    if not tf.config.get_visible_devices("GPU") or not runs_on_cpu(tensor.device):
        return tensor
    with get_device_context():
        return tf.identity(tensor)


def line_width() -> int:
    """`LINE_WIDTH`, or the columns of standard output where that is a terminal with fewer."""
    columns = shutil.get_terminal_size((LINE_WIDTH, 24)).columns if sys.stdout.isatty() else LINE_WIDTH
    return min(LINE_WIDTH, columns)


def folded(line: str, width: int = 0) -> str:
    """A line as lines of at most `width` characters, by default `line_width`; later ones are indented by two spaces.

    One of parts, `a | b | c`, is broken between these, any other at spaces; a word that is longer stays whole.
    """
    lines, joint, width = [], " | " if " | " in line else " ", width or line_width()
    for part in line.split(joint) if len(line) > width else [line]:
        if lines and len(lines[-1]) + len(joint) + len(part) <= width:
            lines[-1] += joint + part
        else:
            lines.append(f"  {part}" if lines else part)
    return "\n".join(lines)


def folded_on_terminal(text: str, stream: TextIO) -> str:
    """A text, each line of it folded, where `stream` is a terminal; files and pipes get whole lines to search in."""
    return "\n".join(map(folded, text.split("\n"))) if stream.isatty() else text


class _AboveProgressBars:
    """A text stream to standard output that writes above a progress bar, instead of through it."""

    def write(self, text):
        tqdm.write(folded_on_terminal(text, sys.stdout), file=sys.stdout, end="")

    def flush(self):
        sys.stdout.flush()


def setup_logging(level: str | int = "INFO") -> logging.Logger:
    """Sends the package's log to standard output; calling it again changes the level.

    Returns:
        The logger `myxtts`, parent of every `logging.getLogger("myxtts.…")`.
    """
    logger = logging.getLogger(LOGGER_NAME)
    for handler in [handler for handler in logger.handlers if handler.get_name() == LOGGER_NAME]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(_AboveProgressBars())
    handler.set_name(LOGGER_NAME)
    handler.addFilter(lambda record: record.name != console_log.name)
    handler.setFormatter(logging.Formatter(LOG_FORMAT, LOG_TIME_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(level)
    # TensorFlow imports absl, which puts its own handler on the root logger: every line would come twice.
    logger.propagate = False
    return logger

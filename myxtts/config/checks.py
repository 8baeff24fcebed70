"""What a setting must hold, the sentence for one that does not, and files and texts from elsewhere read with care."""

import logging
import re
import stat
from pathlib import Path
from typing import BinaryIO

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal might obey or cannot show: controls, lone surrogates, line separators and marks of direction."""
console_log = logging.getLogger("myxtts.console")
"""Takes what a command has printed itself: for a run's log file, and not once more for the terminal."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the thing, the rule and what to do.

    A command prints the message alone and ends with exit code 2.
    """


class ConfigError(UserError):
    """A setting that breaks a rule; the message names the setting, the rule, the value and what to do."""


def say(text: str) -> None:
    """Prints a text, and hands it to the log of the run."""
    print(text, flush=True)
    console_log.info("%s", text)


def printable(text: str) -> str:
    """`text` with what is `UNPRINTABLE` spelled out, so that a hostile name cannot steer the terminal that shows it."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(count: int, noun: str) -> str:
    """A number of things: `1 clip`, `2 clips`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def require(holds: bool, setting: str, rule: str, value: object, way_out: str = "") -> None:
    """Raises `ConfigError` naming the setting, its rule and the value unless the rule holds."""
    if not holds:
        raise ConfigError(f"{setting} must be {rule}. Received: {value}. {way_out}".rstrip())


def brief(value: object) -> str:
    """A foreign value for a message: plain ones cut short, of others the type alone, as their `repr` may never end."""
    if type(value) is int and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if type(value) in (str, bytes):
        return repr(value[:80])
    if type(value) in (list, tuple) and len(value) <= 8 and all(type(one) in (bool, int, float) for one in value):
        return f"({', '.join(map(brief, value))})"
    return f"a {type(value).__name__:.40}"


def read_bounded(path: Path, max_bytes: int) -> str:
    """Text of a regular file of at most `max_bytes`, without a byte-order mark.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too large or no text; with what to say after its name.
    """
    # Checked before it is opened: opening a pipe would wait forever for a writer.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is a folder" if path.is_dir() else "is not a regular file")
    with open(path, "rb") as file:
        return bounded_text(file, max_bytes)


def bounded_text(file: BinaryIO, max_bytes: int) -> str:
    """All that is left of a file, as `read_bounded` gives it."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is too large; at most {max_bytes} bytes are read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text: {error}") from None

"""Errors for invalid input, and safe reading and printing of untrusted files and texts."""

import logging
import re
import stat
import tomllib
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Pattern of control characters, lone surrogates, line separators and bidirectional marks."""
console_log = logging.getLogger("myxtts.console")
"""Logger for lines that were already printed on the screen. They are only added to the run's log file."""


class UserError(ValueError):
    """Error in the user's input. The command line prints only the message and exits with code 2."""

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython and notebooks show instead of a traceback: the message and its notes."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class ConfigError(UserError):
    """Error for a setting with an invalid value; the message names the setting, the rule, the value and the fix."""


def say(text: str) -> None:
    """Prints a text and adds it to the run's log file."""
    print(text, flush=True)
    console_log.info("%s", text)


def without_marks(text: str) -> str:
    """Removes combining marks and zero-width joiners after the first character, because `\\w` does not match them."""
    is_part = lambda one: one in "\u200c\u200d" or unicodedata.category(one).startswith("M")
    return text[:1] + "".join(one for one in text[1:] if not is_part(one))


def printable(text: str) -> str:
    """Escapes `UNPRINTABLE` characters, because a hostile file name could use them to control the terminal."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, in the plural if needed: `1 clip`, `2 clips`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def require(
    holds: bool, setting: str, rule: str, value: object, hint: str = "", error: type[Exception] = ConfigError
) -> None:
    """Raises `error` unless `holds`. The message is "SETTING must be RULE. Received: VALUE. HINT"."""
    if not holds:
        raise error(f"{setting} must be {rule}. Received: {value}. {hint}".rstrip())


@contextmanager
def needing(hint: str, error: type[Exception] = UserError) -> Iterator[None]:
    """Converts an `ImportError` in a `with` block to `error`. If a package is missing, and `hint` contains its name or
    `{}` (replaced by the name), the message is `hint`. Otherwise, the message quotes the `ImportError`."""
    try:
        yield
    except ImportError as fault:
        name, words = str(fault.name), re.findall(r"[\w{}]+", hint.replace("-", "_"))
        missing = isinstance(fault, ModuleNotFoundError) and {"{}", name.partition(".")[0]}.intersection(words)
        raise error(hint.replace("{}", name) if missing else f"A package cannot be imported: {fault}") from fault


def brief(value: object) -> str:
    """Formats an untrusted value for a message: shortens it, or names only its type if `repr` might hang."""
    if type(value) is int and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value[:80] if isinstance(value, (str, bytes)) else value)
    if type(value) in (list, tuple) and len(value) <= 8 and all(type(one) in (bool, int, float, str) for one in value):
        return f"({', '.join(map(brief, value))})"
    return f"a {type(value).__name__:.40}"


def is_new_or_empty(folder: Path) -> bool:
    """Returns True if nothing exists at `folder`, or if the folder is empty or contains only macOS's `.DS_Store`."""
    return not folder.exists() or folder.is_dir() and {path.name for path in folder.iterdir()} <= {".DS_Store"}


def read_toml(module: str, name: str) -> dict[str, Any]:
    """Reads the TOML file `name` in the same folder as the Python file `module` (the caller's `__file__`)."""
    return tomllib.loads(Path(module).with_name(name).read_text("utf-8"))


def read_bounded(path: Path, max_bytes: int) -> str:
    """Reads a text file in UTF-8, or in UTF-16 with a byte-order mark. The returned text does not contain the mark.

    Raises `OSError` if the file cannot be read, `UnicodeError` if it is not text, and `ValueError` if it is larger than
    `max_bytes` or not a regular file. Messages such as "is a folder" lack the file's name, which the caller must add.
    """
    # Checked before opening, because opening a pipe waits for a writer.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is a folder" if path.is_dir() else "is not a regular file")
    with open(path, "rb") as file:
        return bounded_text(file, max_bytes)


def bounded_text(file: BinaryIO, max_bytes: int) -> str:
    """Reads the rest of an open binary file as text. Encodings and exceptions are the same as in `read_bounded`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is too large; at most {max_bytes} bytes are read")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        content, start = error.object, error.start  # without the byte-order mark of UTF-8
        line = content[:start].decode(encoding, "replace").count("\n") + 1
        found = f"line {line} holds the byte 0x{content[start]:02X}"
        if encoding != "utf-16":
            # Text in another encoding is usually in a Windows code page, Arabic or Western.
            page = 1256 if re.search("[\u0600-\u06ff]{3}", content.decode("cp1256", "replace")) else 1252
            around = content[max(start - 8, 0) : start + 8].decode(f"cp{page}", "replace")
            found += f" (in Windows-{page}: {' '.join(around.split())!r}; iconv -f cp{page} -t utf-8 converts it)"
        raise UnicodeError(f"is not {encoding.removesuffix('-sig').upper()}: {found}") from None

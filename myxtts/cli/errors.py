"""Error handling of commands: errors that a user can fix are printed without a traceback."""

import errno
import functools
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from myxtts.config.checks import UserError, printable, read_bounded, require

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exceeded quota and a file above the size limit."""


def exits_with_sentence(main: Callable) -> Callable:
    """Decorates the `main` function of a command. The new function prints errors that a user can fix, without a
    traceback, and returns `error.exit_code` (default: 2). It returns 130 after Ctrl-C. If there are several workers,
    it does not return, but ends the process with the exit code."""

    @functools.wraps(main)
    def wrapped(argv=None):
        try:
            code = main(argv)
        except KeyboardInterrupt:
            print("Stopped immediately.", file=sys.stderr, flush=True)
            code = 130
        except BrokenPipeError:  # the reader of the output has ended, such as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 128 + 13  # that of programs which SIGPIPE ends
        except (UserError, OSError) as error:  # OSError: for example, a full or read-only disk
            from myxtts.utils.commons import folded_on_terminal, tqdm

            code, message = getattr(error, "exit_code", 2), str(error)
            if isinstance(error, OSError) and error.errno in FULL:
                hint = "Free disk space or choose another place, and run the same command again."
                message = f"{error.filename or 'A file'} cannot be written: {error.strerror}. {hint}"
            elif isinstance(error, OSError) and error.filename:
                message = f"{error.filename} cannot be used: {error.strerror}. Check its name and permissions."
            message = re.sub(r"\S{400,}", lambda word: f"{word[0][:200]}…", f"Error: {message}")
            message = "\n".join(map(printable, message.split("\n")))
            tqdm.write(folded_on_terminal(message, sys.stderr), file=sys.stderr)
        if (joined := sys.modules.get("myxtts.distributed.workers")) and joined.current_workers().count > 1:
            joined.end_process(code)
        return code

    return wrapped


def require_output(flag: str, path: str | None, makes_folders=False, starts: bytes = b"", replaces=False) -> None:
    """Raises `UserError` if `path`, the value of `flag`, cannot be written, or is a file that is not empty and does not
    begin with `starts`. Does nothing if `path` is None. If `makes_folders` is true, `path` may be a folder, and its
    parent folders need not exist. `replaces` means that an existing folder will be replaced as a whole."""
    if path is None:
        return
    require("://" not in path, flag, "a path on this machine", printable(path))
    target = os.path.realpath(path)
    if not path or os.path.isdir(target) and not makes_folders:
        raise UserError(f"{flag} must name a {'file or folder' if makes_folders else 'file'}. Received: {path!r}.")
    require(len(os.path.basename(os.fsencode(target))) <= 255, flag, "a name of at most 255 bytes", repr(path[:80]))
    if starts and os.path.isfile(target):
        with open(target, "rb") as file:
            require(file.read(len(starts)) in (b"", starts), flag, "a new file or an earlier report", printable(path))
    place = target if makes_folders and os.path.isdir(target) and not replaces else os.path.dirname(target)
    while makes_folders and not os.path.exists(place):
        place = os.path.dirname(place)
    is_device = os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target))
    try:
        if not os.access(target if is_device else place, os.W_OK):
            raise PermissionError
        if not is_device:
            tempfile.TemporaryFile(dir=place).close()  # permissions are not enough, for example in `/proc`
    except OSError:
        fix = "Name another" if os.path.isdir(place) else f"Create the folder {os.path.dirname(path)}, or name another"
        raise UserError(f"{flag} must be in an existing, writable folder. {path} is not. {fix}.") from None


def read_input(flag: str, path: str, max_bytes: int) -> str:
    """Returns the text of the file `path`. Raises `UserError` if the file is missing, empty, too large or not UTF-8."""
    try:
        if (text := read_bounded(Path(path), max_bytes)).strip():
            return text
    except FileNotFoundError:
        raise UserError(f"{flag} must be an existing file. Received: {path}.") from None
    except ValueError as error:
        raise UserError(f"{flag} {path} {error}.") from error
    raise UserError(f"{flag} {path} is empty.")


def language_code(name: str | None, among: Collection[str] | None = None) -> str | None:
    """Returns the code of the language `name`, or None if `name` is None. Raises `UserError` if the language is not
    supported or not in `among`."""
    from myxtts.text.languages import get_language  # takes long to import

    try:
        return None if name is None else get_language(name, among).code
    except ValueError as error:
        raise UserError(f"--language: {error}") from None


def open_port(flag: str, host: str, port: int) -> socket.socket:
    """Returns a socket that listens on `port` (0: any free port). Raises `UserError` if the port cannot be used."""
    require(0 <= port <= 65535, flag, "0 to 65535", port)
    try:
        return socket.create_server((host.strip("[]"), port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (TypeError, UnicodeError):
        raise UserError(f"{flag.replace('port', 'host')} must be an address or host name. Received: {host}.") from None
    except OSError as error:
        reason = error.strerror.partition(" (while")[0]  # the rest names the address
        raise UserError(f"{flag} {port} on {host} cannot be used: {reason}. Try another port or host.") from None

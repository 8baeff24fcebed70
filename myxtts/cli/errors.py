"""Errors that a user can mend end a command with one sentence and exit code 2, not with a traceback."""

import errno
import functools
import os
import socket
import sys
import tempfile
from collections.abc import Callable

from myxtts.config.checks import UserError, printable, require

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system for a disk without room, for all or for this user or file."""


def exits_with_sentence(main: Callable) -> Callable:
    """Decorates a command's `main`: errors that a user can mend are printed, and the exit code is 2, or the error's
    own; 130 on Ctrl-C."""

    @functools.wraps(main)
    def wrapped(argv=None):
        try:
            return main(argv)
        except KeyboardInterrupt:
            print("Stopped at once.", file=sys.stderr, flush=True)
            return 130
        except (UserError, OSError) as error:  # OSError: a disk that is full, gone or read-only
            from myxtts.utils.commons import folded_on_terminal

            told = "\n".join(map(printable, f"Error: {_told(error)}".split("\n")))
            print(folded_on_terminal(told, sys.stderr), file=sys.stderr, flush=True)
            return getattr(error, "exit_code", 2)

    return wrapped


def _told(error):
    """An error in words; of a disk that is full also what to do."""
    if not isinstance(error, OSError) or error.errno not in FULL:
        return str(error)
    what = "It" if error.filename is None else error.filename
    way_out = "Free the disk, or name another place, and run the same command again."
    return f"{what} cannot be written: {error.strerror}. {way_out}"


def require_output(flag: str, path: str | None, makes_folders: bool = False) -> None:
    """Raises `UserError` unless a file can be written at `path`, before the work that would be lost; None passes.

    With `makes_folders` the output may be a folder, and those above it need not be there.
    """
    if path is None:
        return
    target = os.path.realpath(path)
    if not path or os.path.isdir(target) and not makes_folders:
        raise UserError(f"{flag} must name a file. Received: {path!r}.")
    require(len(os.path.basename(target).encode()) <= 255, flag, "a name of at most 255 bytes", repr(path[:80]))
    place = os.path.dirname(target)
    while makes_folders and not os.path.exists(place):
        place = os.path.dirname(place)
    is_device = os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target))
    if not (os.access(target, os.W_OK) if is_device else _takes_files(place)):
        rule = f"{flag} must be in a folder that is there and can be written to. {path} is not."
        raise UserError(f"{rule} Name {'another' if makes_folders else 'a file in another'} folder.")


def require_port(flag: str, host: str, port: int | None) -> None:
    """Raises `UserError` unless this process can listen at a port; None and 0, which takes a free one, pass."""
    require(port is None or 0 <= port <= 65535, flag, "0 to 65535", port)
    try:
        if port:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((host.strip("[]"), port))
    except OSError as error:
        raise UserError(f"{flag} {port} of {host} cannot be used: {error.strerror}. Try {flag} {port + 1}.") from None


def _takes_files(folder):
    """Whether a file can be made in a folder, which permissions alone do not say: `/proc` takes none from anybody."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

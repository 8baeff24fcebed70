"""Errors that a user can mend end a command with one sentence and exit code 2, not with a traceback."""

import functools
import sys
from collections.abc import Callable

from myxtts.config.checks import UserError


def exits_with_sentence(main: Callable) -> Callable:
    """Decorates a command's `main`: errors that a user can mend are printed, and the exit code is 2; 130 on Ctrl-C."""

    @functools.wraps(main)
    def wrapped(argv=None):
        try:
            return main(argv)
        except KeyboardInterrupt:
            print("Stopped at once.", file=sys.stderr, flush=True)
            return 130
        except (UserError, OSError) as error:  # OSError: a disk that is full, gone or read-only
            print(f"Error: {error}", file=sys.stderr, flush=True)
            return 2

    return wrapped

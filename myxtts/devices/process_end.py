"""End of a process that may have threads in native code."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


class AbandonedThread(threading.Thread):
    """Thread for a slow native call, which `run_to_exit` does not wait for.

    Not a daemon: if one returns from native code while Python shuts down, C++ aborts the process with SIGABRT. So plain
    Python waits for this thread.
    """

    def __init__(self, target: Callable[[], object], name: str):
        super().__init__(target=target, name=name, daemon=False)


def run_to_exit(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process with the exit code that it returns."""
    try:
        code = command()
    except SystemExit as error:
        code = error.code
    if not any(isinstance(thread, AbandonedThread) for thread in threading.enumerate()):
        sys.exit(code)
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code or 0)

"""Commands that take long: each is followed while it runs, can be cancelled, and outlives its page."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

from myxtts.apps.studio.processes import MOST_SHOWN_CHARACTERS, command, sentence_of
from myxtts.config.checks import UserError

POLL_SECONDS = 0.5


class Tasks:
    """At most one command at a time under each name."""

    def __init__(self):
        self._running: dict[str, subprocess.Popen] = {}
        self._cancelled: set[int] = set()
        self._lock = threading.Lock()

    def follow(self, name: str, *arguments: str) -> Iterator[str]:
        """Runs a command of `myxtts`; yields what it has printed so far, and at last all of it.

        Raises:
            UserError: Another one of that name runs, it failed, or it was cancelled.
        """
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "110", "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if name in self._running and self._running[name].poll() is None:
                    raise UserError("The same is being done already. Wait for it, or cancel it.")
                options = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
                # A group of its own: what stops the page's server does not reach it.
                process = subprocess.Popen(command(*arguments), env=environment, start_new_session=True, **options)
                self._running[name] = process
            told = ""
            while (code := process.poll()) is None:
                time.sleep(POLL_SECONDS)
                if (now := _printed(output)) != told:
                    yield (told := now)
            if process.pid in self._cancelled:
                self._cancelled.discard(process.pid)
                raise UserError(f"myxtts {arguments[0]} was cancelled.")
            told = _printed(output)
            if code not in (0, 1):
                raise UserError(sentence_of(told))
            yield told

    def cancel(self, name: str) -> None:
        """Ends a command as Ctrl-C does.

        Raises:
            UserError: None of that name runs.
        """
        with self._lock:
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                raise UserError("There is nothing to cancel.")
            self._cancelled.add(process.pid)
            os.killpg(process.pid, signal.SIGINT)


def _printed(output) -> str:
    """The end of what was printed; of a line that was written over, what it says now."""
    end = output.seek(0, os.SEEK_END)
    text = os.pread(output.fileno(), MOST_SHOWN_CHARACTERS, max(0, end - MOST_SHOWN_CHARACTERS)).decode(
        errors="replace"
    )
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")).strip()

"""Writes checkpoints in a background thread while training continues."""

import logging
import os
import threading
import time

from myxtts.storage.checkpoint import CheckpointError, CheckpointStore

logger = logging.getLogger(__name__)

SAVE_TRIES = 3
"""A run ends after this number of consecutive failed writes. The last checkpoint also gets as many attempts."""
LAST_TRY_PAUSE_SECONDS = 5.0
"""Pause between attempts to write the last checkpoint. A lost network mount often comes back by itself."""


class CheckpointWriter:
    """Writes the checkpoints of a `CheckpointStore` in a background thread, one at a time.

    If a write fails with an `OSError`, the next method call logs the error or, after `SAVE_TRIES` consecutive failures,
    raises a `CheckpointError`. If a write fails with another error, the next method call raises that error.
    No other object may write to the store. The end of a `with` block waits for the current write, except after Ctrl-C.
    """

    def __init__(self, store: CheckpointStore):
        self.store = store
        home = store.folder.parent
        self._home = home.stat() if home.exists() else None
        self._thread = self._step = self._error = None
        self._last_good, self._failures = store.steps()[-1:], 0

    def start(self, step: int, tensors: dict[str, dict], state: dict, best: bool = False, copies=None) -> None:
        """Waits for the current write, then starts a new one with the arguments of `CheckpointStore.write`.

        The arrays and the state must not change until the write ends. Raises the same exceptions as `wait`.
        """
        self.wait()
        self._step = step
        # Python does not wait for a daemon thread at exit, so a second Ctrl-C ends the process at once.
        content = tensors, state, best, copies
        self._thread = threading.Thread(target=self._run, args=content, name="myxtts-checkpoint", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """If the current write has finished, calls `wait` to log or raise its error. Otherwise does nothing."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Waits for the current write, if any. Logs or raises the error of the write, see `CheckpointWriter`."""
        self._join()
        error, self._error = self._error, None
        if error is None:
            return
        if not isinstance(error, OSError):
            raise error
        self._failures += 1
        tried = f"attempt {self._failures} of {SAVE_TRIES}."
        if self._failures >= SAVE_TRIES:
            raise CheckpointError(f"{self._describe(error)} This was {tried} Free disk space and resume.") from error
        logger.error("%s Training continues; %s", self._describe(error), tried)

    def write_last(self, step: int, tensors: dict[str, dict], state: dict, best: bool = False, copies=None) -> None:
        """Writes a run's last checkpoint, in up to `SAVE_TRIES` attempts. If all fail, raises `CheckpointError`."""
        self.start(step, tensors, state, best, copies)
        self._join()
        for number in range(1, SAVE_TRIES):
            if not isinstance(self._error, OSError):
                break
            logger.error("%s This was attempt %d of %d.", self._describe(self._error), number, SAVE_TRIES)
            time.sleep(LAST_TRY_PAUSE_SECONDS)
            self._run(tensors, state, best, copies)
        self._failures = SAVE_TRIES - 1 if self._error else 0
        self.wait()

    def _run(self, tensors, state, best, copies):
        try:
            home = self.store.folder.parent
            # If the run's folder was moved, writing would create an incomplete run or change another one.
            if self._home and not (home.exists() and os.path.samestat(home.stat(), self._home)):
                raise FileNotFoundError(f"the run's folder {home} was moved or replaced; move it back")
            self.store.write(self._step, tensors, state, best, copies)
            self._failures, self._last_good, self._error = 0, [self._step], None
        except BaseException as error:  # `wait` raises it in the training loop
            self._error = error

    def _join(self):
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _describe(self, error):
        last = f"The last good one is of step {self._last_good[0]}." if self._last_good else "There is none yet."
        return f"The checkpoint of step {self._step} could not be written to {self.store.folder}: {error}. {last}"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.wait()
        elif issubclass(kind, Exception):
            self._join()
            if self._error is not None:
                logger.error("%s", self._describe(self._error))

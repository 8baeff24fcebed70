"""Writes checkpoints in a thread of its own, one at a time, while training continues."""

import logging
import threading
import time

from myxtts.storage.checkpoint import CheckpointError, CheckpointStore

logger = logging.getLogger(__name__)

SAVE_TRIES = 3
"""Checkpoints in a row that may fail to be written before the run ends, and tries to write the last one of a run."""
LAST_TRY_PAUSE_SECONDS = 5.0
"""Between the tries to write the last checkpoint: a network mount often comes back."""


class CheckpointWriter:
    """Hands checkpoints to a thread that writes them with a `CheckpointStore`, to which nobody else writes meanwhile.

    At most one write is in flight: the next one waits for it. A write that the disk fails (`OSError`) is logged by the
    next call, and the next checkpoint is another try; after `SAVE_TRIES` failures in a row the call raises. What else
    goes wrong in the thread, the next call raises as it is.

    As a context manager it waits for the write in flight when the block ends, except on Ctrl-C: a write that is cut off
    leaves no checkpoint, and the one before stays whole.
    """

    def __init__(self, store: CheckpointStore):
        self.store = store
        self._home = _identity(store.folder.parent)
        self._thread = self._job = self._step = self._error = None
        self._last_good = store.steps()[-1:]
        self._failures = 0

    def start(self, step: int, tensors: dict[str, dict], state: dict, best: bool = False, copies=None) -> None:
        """Begins to write a checkpoint, as `CheckpointStore.write` does; waits first for the one before.

        Neither arrays nor state may change afterwards.

        Raises:
            CheckpointError: The one before was the last of too many that failed.
        """
        self.wait()
        self._step, self._job = step, (step, tensors, state, best, copies)
        # A second Ctrl-C ends the process at once, so the thread must not keep it alive.
        self._thread = threading.Thread(target=self._run, name="myxtts-checkpoint", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Takes note of a write that has ended, without waiting. Raises as `start` does."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Waits for the write in flight, if there is one. Raises as `start` does."""
        self._join()
        error, self._error, self._job = self._error, None, None
        if error is None:
            return
        if not isinstance(error, OSError):
            raise error
        self._failures += 1
        tried = f"try {self._failures} of {SAVE_TRIES}."
        if self._failures >= SAVE_TRIES:
            way_out = "Free the disk or mend the folder, and run the same command to resume."
            raise CheckpointError(f"{self._describe(error)} That was {tried} {way_out}") from error
        logger.error("%s Training continues; %s", self._describe(error), tried)

    def write_last(self, step: int, tensors: dict[str, dict], state: dict, best: bool = False, copies=None) -> None:
        """Writes a run's last checkpoint, with up to `SAVE_TRIES` tries, before it returns.

        Raises:
            CheckpointError: None of them succeeded.
        """
        self.start(step, tensors, state, best, copies)
        self._join()
        for number in range(1, SAVE_TRIES):
            if not isinstance(self._error, OSError):
                break
            logger.error("%s That was try %d of %d.", self._describe(self._error), number, SAVE_TRIES)
            time.sleep(LAST_TRY_PAUSE_SECONDS)
            self._error = None
            self._run()
        self._failures = SAVE_TRIES - 1  # there is no next time
        self.wait()

    def _run(self):
        try:
            self._check_home()
            self.store.write(*self._job)
            self._failures, self._last_good = 0, [self._step]
        except BaseException as error:  # handed to the training loop, whatever it is
            self._error = error

    def _check_home(self):
        """A write to a folder that was moved would create half of a run there, or touch another run."""
        home = self.store.folder.parent
        if self._home is not None and _identity(home) != self._home:
            raise FileNotFoundError(f"the run's folder {home} was moved or replaced; move it back")

    def _join(self):
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _describe(self, error):
        last = f"The last good one is that of step {self._last_good[0]}." if self._last_good else "There is none yet."
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


def _identity(folder):
    """What tells a folder from any other that has its name later; None where there is none."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino

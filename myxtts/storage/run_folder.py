"""The folder of a run: fit to be written to, and written to by one run at a time."""

import fcntl
import logging
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from myxtts.storage.tensor_file import CheckpointError

logger = logging.getLogger(__name__)


@contextmanager
def own_run_folder(folder):
    """Makes a run's folder if need be, keeps other runs out of it, and clears what a killed run left half written.

    The lock is the kernel's, on the folder itself: it ends with the process however that ends, and leaves no file.

    Args:
        folder: Of the run.

    Raises:
        CheckpointError: It cannot be written to, or another run writes to it.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(
            f"--checkpoint-dir must be a folder that can be written to. {folder}: {error.strerror}. Free "
            "or mend it, or name another."
        ) from error
    try:
        _lock(descriptor, folder)
        for place in (folder, folder / "samples"):
            for leftover in place.glob(".*.tmp"):
                leftover.unlink()
        yield folder
    finally:
        os.close(descriptor)


def _lock(descriptor, folder):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"Another run is writing to {folder}. Wait for it, stop it, or name another --checkpoint-dir."
        ) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s): take care that no second run writes to it.", folder, error.strerror)

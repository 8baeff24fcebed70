"""Kernel locks, which end with the process: on folders that one process may write to, and on parts of shared work."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks a folder, without leaving a file in it; warns where the file system has no locks.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor)
        except BlockingIOError:
            raise
        except OSError as error:
            message = "%s cannot be locked (%s): make sure that no second run writes to it."
            logger.warning(message, folder, error.strerror)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Locks an open file or folder until it is closed. Raises `BlockingIOError` if another process has locked it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def claimed(path: Path, number: int, waits: bool) -> Iterator[bool]:
    """Claims part `number` of work that processes on several machines divide; yields whether it succeeded.

    Locks a byte of the file `path`, which is created and stays. Without locks in the file system, all claims succeed.

    Args:
        waits: Whether to wait for another process that has claimed the part.
    """
    descriptor, is_ours = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
        except (BlockingIOError, PermissionError):  # POSIX permits either
            is_ours = False
        except OSError as error:
            logger.warning("%s cannot be locked (%s): let one process at a time make one part.", path, error.strerror)
        yield is_ours
    finally:
        os.close(descriptor)

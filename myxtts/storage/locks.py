"""Locks of the kernel's, which end with the process however that ends: one writer to a folder, one maker of a part."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Claims a folder, without leaving a file in it; says in the log where that cannot be.

    Raises:
        BlockingIOError: Another process has claimed it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor)
        except BlockingIOError:
            raise
        except OSError as error:
            told = "%s cannot be locked (%s): make sure that no second run writes to it."
            logger.warning(told, folder, error.strerror)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Claims an open file or folder until it is closed. Raises `BlockingIOError` where another process has it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def claimed(path: Path, number: int, waits: bool) -> Iterator[bool]:
    """Claims part `number` of what processes on machines that share a folder divide up; gives whether it could.

    The lock is on a byte of the file `path`, which is made and stays. Where nothing can be locked, every claim holds.

    Args:
        waits: Until the process that has the part ends its claim.
    """
    descriptor, is_ours = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
        except (BlockingIOError, PermissionError):  # POSIX lets systems choose
            is_ours = False
        except OSError as error:
            logger.warning("%s cannot be locked (%s): let one process at a time make one part.", path, error.strerror)
        yield is_ours
    finally:
        os.close(descriptor)

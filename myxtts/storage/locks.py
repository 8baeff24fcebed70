"""Who makes which of many parts that several processes could make."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

logger = logging.getLogger(__name__)


@contextmanager
def claimed(path: Path, number: int, waits: bool) -> Iterator[bool]:
    """Claims part `number` of what processes on machines that share a folder divide up; gives whether it could.

    The lock is the kernel's, on a byte of the file `path`, which is made and stays: it ends with the process however
    that ends. Where nothing can be locked, every claim holds.

    Args:
        waits: Until the process that has the part ends its claim.
    """
    if fcntl is None:
        yield True
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _lock(descriptor, path, number, waits)
    finally:
        os.close(descriptor)


def _lock(descriptor, path, number, waits):
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
    except (BlockingIOError, PermissionError):  # POSIX lets systems choose
        return False
    except OSError as error:
        logger.warning("%s cannot be locked (%s): let one process at a time make one part.", path, error.strerror)
    return True

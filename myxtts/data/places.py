"""Files here, or at addresses that TensorFlow's file systems know, such as `gs://bucket/folder`, to be read."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts.config.checks import UserError


def file_size(path: str) -> int | None:
    """Bytes of a file; None where there is no plain file.

    Raises:
        UserError: The kind of address is not known here.
        OSError: It cannot be asked for.
    """
    try:
        with _explained(path):
            found = tf.io.gfile.stat(path)
            return None if found.is_directory else found.length
    except FileNotFoundError:
        return None


def read_bytes(path: str, offset: int = 0, length: int = -1) -> bytes:
    """`length` bytes of a file from `offset` on; all there are for -1. Raises as `file_size`, also where it is gone."""
    with _explained(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


@contextmanager
def _explained(path) -> Iterator[None]:
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "is not there", path) from error
    except tf.errors.UnimplementedError as error:
        way_out = "Mount it as a folder (rclone mount, mountpoint-s3), or copy it here"
        raise UserError(f"{path} is on storage that this TensorFlow cannot read. {way_out}.") from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message.splitlines()[0], path) from error

"""Reads and writes PyTorch checkpoint files without PyTorch, and without running code from a file."""

import itertools
import math
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.config.checks import brief
from myxtts.interchange.coqui.unpickling import (
    DTYPES,
    MAX_PICKLE_BYTES,
    DamagedCheckpointError,
    HostileCheckpointError,
    TorchCheckpointError,
    unpickle,
)
from myxtts.storage.files import write_whole

_STORAGE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_SIGNS_OF_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError)
_SIGNS_OF_DAMAGE += (struct.error, zipfile.BadZipFile)
"""Errors of unpickling and unzipping for bytes that make no sense."""


def read_torch_checkpoint(path: str | os.PathLike) -> Any:
    """Reads a file of `torch.save`, with tensors as NumPy arrays; checksums are verified.

    Reads the zip format and the format before PyTorch 1.6. Arrays are read-only views of the memory-mapped file, so
    they take little memory until they are copied. bfloat16 arrays have the dtype `ml_dtypes.bfloat16`.

    Returns:
        The saved object: usually a dictionary of arrays by name, or one that has it under `"model"`.
        Objects of unknown classes become `StubObject`s.

    Raises:
        HostileCheckpointError: The file would call a function, or declares larger sizes than it has.
        DamagedCheckpointError: The file is cut short, altered, or not a PyTorch checkpoint.
    """
    path = Path(path)
    if not path.stat().st_size:
        raise DamagedCheckpointError(f"{path} is empty.")
    data = np.memmap(path, dtype="uint8", mode="r")
    try:
        return _read_zip(path, data) if bytes(data[:4]) == b"PK\x03\x04" else _read_legacy(path, data)
    except TorchCheckpointError:  # a ValueError, but with a better message
        raise
    except _SIGNS_OF_DAMAGE as error:
        raise DamagedCheckpointError(f"{path} is damaged or not a PyTorch checkpoint: {error!s:.200}.") from error


def write_torch_checkpoint(path: str | os.PathLike, checkpoint: Any) -> None:
    """Writes a file that `torch.load(path, weights_only=True)` can read, completely or not at all.

    `checkpoint` is an array, or a dictionary of arrays, plain values and further dictionaries.
    """
    arrays = []
    pickled = b"\x80\x02" + _pickle(checkpoint, arrays) + b"."
    with write_whole(path) as temporary, open(temporary, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(_aligned_entry(file, name), content)
        for index, array in enumerate(arrays):
            with archive.open(_aligned_entry(file, f"data/{index}", array.nbytes), "w") as entry:
                entry.write(np.ascontiguousarray(array).reshape(-1).view("uint8").data)


def _read_zip(path, data):
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        for entry in archive.infolist():
            if entries[entry.filename] is not entry:
                raise HostileCheckpointError(f"{path} has two entries named {brief(entry.filename)}.")
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise HostileCheckpointError(
                    f"{path} has a compressed entry, {brief(entry.filename)}. Write it with torch.save, which has none."
                )
        if sum(entry.file_size for entry in entries.values()) > data.size:
            raise HostileCheckpointError(f"{path} claims entries of more bytes than the file has.")
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise DamagedCheckpointError(f"{path} is a zip file with {len(pickles)} data.pkl entries, not one.")
        root, storages = pickles[0].removesuffix("data.pkl"), {}

        def content(name):
            """Returns the bytes of an entry, as a view of the mapped file."""
            if (entry := entries.get(name)) is None or entry.header_offset < 0:
                raise DamagedCheckpointError(f"{path} has no entry {brief(name)}.")
            # Verifies header and checksum by plain reads, because pages of a memory map would count as used memory.
            with archive.open(entry) as file:
                while file.read(2**20):
                    pass
            lengths = struct.unpack("<26xHH", data[entry.header_offset :][:30].tobytes())
            start = entry.header_offset + 30 + sum(lengths)
            return data[start : start + entry.file_size]

        def load_storage(dtype, key, num_values):
            if key not in storages:
                storages[key] = content(f"{root}data/{key}")
            claimed = num_values * dtype.itemsize
            if claimed > storages[key].size:
                held = f"for storage {key:.40}, of {storages[key].size}"
                raise HostileCheckpointError(f"{path} claims {claimed} bytes {held}.")
            return storages[key][:claimed].view(dtype)

        if root + "byteorder" in entries and content(root + "byteorder").tobytes() != b"little":
            raise DamagedCheckpointError(f"{path} was written on a big-endian machine, which is not supported.")
        return unpickle(content(pickles[0]).tobytes(), str(path), load_storage)[0]


def _read_legacy(path, data):
    """Reads files from before PyTorch 1.6, such as Resemblyzer's encoder: five pickles, then the storages."""
    start, claims = 0, {}

    def note_claim(dtype, key, num_values):
        if num_values * dtype.itemsize > data.size:
            raise HostileCheckpointError(f"{path} claims {num_values} values for storage {key:.40}, more than it has.")
        claims[key] = (dtype, num_values)
        return data[: num_values * dtype.itemsize].view(dtype)  # a placeholder of the right size

    for number in range(5):
        pickled = data[start : start + MAX_PICKLE_BYTES].tobytes()
        value, length = unpickle(pickled, str(path), note_claim if number == 3 else None)
        if number == 0 and value != _LEGACY_MAGIC:
            raise DamagedCheckpointError(f"{path} is not a PyTorch checkpoint: it does not start like one.")
        if number == 3:
            checkpoint = pickled
        start += length
    storages = {}
    for key in value:
        dtype, num_values = claims[key]
        (stored,) = struct.unpack("<q", data[start : start + 8].tobytes())
        begin, start = start + 8, start + 8 + num_values * dtype.itemsize
        if stored != num_values or start > data.size:
            raise DamagedCheckpointError(f"{path} is cut short or altered at storage {key:.40}.")
        storages[key] = data[begin:start].view(dtype)
    return unpickle(checkpoint, str(path), lambda dtype, key, num_values: storages[key])[0]


def _pickle(value, arrays):
    """Returns the pickle opcodes that build `value`; appends its arrays to `arrays`, with the index as storage key."""
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickle(one, arrays) for one in itertools.chain.from_iterable(value.items())) + b"u"
    if not isinstance(value, np.ndarray):
        return pickle.dumps(value, 2)[2:-1]  # without the protocol in front and the stop after it
    arrays.append(value)
    strides = tuple(math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
    storage_class = b"ctorch\n" + _STORAGE_NAMES[value.dtype].encode() + b"\n"
    place = [_pickle(one, arrays) for one in (str(len(arrays) - 1), "cpu", value.size)]
    storage = b"(" + _pickle("storage", arrays) + storage_class + b"".join(place) + b"tQ"
    view = b"".join(_pickle(one, arrays) for one in (0, value.shape, strides, False))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"ccollections\nOrderedDict\n)RtR"


def _aligned_entry(file, name, num_bytes=0):
    """Makes a zip entry whose content starts at a multiple of 64 bytes, like PyTorch's, so that it can be mapped."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    entry.file_size = num_bytes
    padding = -(file.tell() + 34 + len(entry.filename)) % 64  # the header has 30 bytes, the start of the padding 4
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return entry

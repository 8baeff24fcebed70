"""Reads and writes PyTorch checkpoint files without PyTorch, and without running what a file asks to run.

A `.pth` file is a pickle, that is, a program for a small machine whose instructions can call any function by name. The
reader here lets it build containers and tensors and nothing else: a class it does not know becomes an empty stub that
only keeps its attributes, and a call of anything but the few functions below is refused with its name.
"""

import io
import itertools
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives NumPy the dtype bfloat16
import numpy as np

from myxtts.config.checks import brief
from myxtts.interchange.coqui.pickle_scan import (
    MAX_PICKLE_BYTES,
    HostileCheckpointError,
    TorchCheckpointError,
    scan_pickle,
)
from myxtts.storage.files import write_whole

_CODES = "Float:f4 Double:f8 Half:f2 BFloat16:bfloat16 Long:i8 Int:i4 Short:i2 Char:i1 Byte:u1 Bool:?"
_DTYPES = {f"{name}Storage": np.dtype(code) for name, code in (pair.split(":") for pair in _CODES.split())}
"""Dtype of each class of tensor storages."""
_NUMPY_NUMBERS = {code: np.dtype(code) for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()}
_STORAGE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_AXES = 64
_CHUNK_BYTES = 2**20
_ALIGNMENT = 64

_SENSELESS = (ArithmeticError, AttributeError, EOFError, LookupError, NotImplementedError, TypeError, ValueError)
_SIGNS_OF_DAMAGE = (*_SENSELESS, pickle.UnpicklingError, struct.error, zipfile.BadZipFile)
"""What unpickling and unzipping raise over bytes that make no sense."""


class DamagedCheckpointError(TorchCheckpointError):
    """The file is cut short, altered, or not a PyTorch checkpoint at all."""


class StubObject:
    """An object of a class that is not known here; its attributes are kept, its code is never needed."""

    class_name: str | None = None
    """Full name of the class, as the file has it."""
    state: Any
    """What the file wanted to restore, usually a dictionary of attributes."""

    def __new__(cls, *_):
        return object.__new__(cls)

    def __setstate__(self, state):
        self.state = state

    def __repr__(self):
        return f"<stub of {self.class_name}>"


def read_torch_checkpoint(path: str | os.PathLike) -> Any:
    """Reads what `torch.save` wrote, with each tensor as a NumPy array.

    Both formats are read, the zip format and the one before PyTorch 1.6. Arrays are read-only views of the
    memory-mapped file, so reading costs little memory until they are copied. Checksums are verified. bfloat16 arrays
    have the dtype `ml_dtypes.bfloat16`.

    Returns:
        The saved object: usually a dictionary of names to arrays, or one that holds such a dictionary under `"model"`.
        Objects of unknown classes are `StubObject`s.

    Raises:
        HostileCheckpointError: The file asks to call something, or its claims and its size do not agree.
        DamagedCheckpointError: The file is cut short, altered, or not a PyTorch checkpoint.
    """
    path = Path(path)
    if not path.stat().st_size:
        raise DamagedCheckpointError(f"{path} is empty.")
    data = np.memmap(path, dtype="uint8", mode="r")
    try:
        return _read_zip(path, data) if bytes(data[:4]) == b"PK\x03\x04" else _read_legacy(path, data)
    except TorchCheckpointError:  # it says more than the signs of damage, of which it is one
        raise
    except _SIGNS_OF_DAMAGE as error:
        raise DamagedCheckpointError(f"{path} is damaged or not a PyTorch checkpoint: {error!s:.200}.") from error


def write_torch_checkpoint(path: str | os.PathLike, checkpoint: Any) -> None:
    """Writes a file that `torch.load(path, weights_only=True)` accepts, whole or not at all.

    `checkpoint` is an array, or dictionaries, lists and tuples of arrays, strings, numbers, booleans and None.
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
        entries = {}
        for entry in archive.infolist():
            if entry.filename in entries:
                raise HostileCheckpointError(f"{path} has two entries named {brief(entry.filename)}.")
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                problem = f"{path} has a compressed entry, {brief(entry.filename)}, which PyTorch never writes"
                raise HostileCheckpointError(f"{problem}. Save it anew.")
            entries[entry.filename] = entry
    if sum(entry.file_size for entry in entries.values()) > data.size:
        raise HostileCheckpointError(f"{path} claims entries of more bytes than the file has.")
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise DamagedCheckpointError(f"{path} is a zip file with {len(pickles)} data.pkl entries, not one.")
    root = pickles[0].removesuffix("data.pkl")

    def content(name):
        if (entry := entries.get(root + name)) is None:
            raise DamagedCheckpointError(f"{path} has no entry {brief(root + name)}.")
        header = data[entry.header_offset :][:30].tobytes()
        signature, name_length, extra_length = struct.unpack("<4s22xHH", header)
        start = entry.header_offset + 30 + name_length + extra_length
        in_file = 0 <= entry.header_offset and start + entry.file_size <= data.size
        if signature != b"PK\x03\x04" or not in_file:
            raise DamagedCheckpointError(f"{path} is cut short or altered at entry {entry.filename!r}.")
        if _checksum(path, start, entry.file_size) != entry.CRC:
            raise DamagedCheckpointError(f"{path} is altered: the checksum of entry {entry.filename!r} is wrong.")
        return data[start : start + entry.file_size]

    if root + "byteorder" in entries and content("byteorder").tobytes() != b"little":
        raise DamagedCheckpointError(f"{path} was written on a big-endian machine, which is not supported.")
    pickled = content("data.pkl").tobytes()
    scan_pickle(pickled, str(path))
    storages = {}

    def load_storage(dtype, key, num_values):
        if key not in storages:
            storages[key] = content(f"data/{key}")
        claimed = num_values * dtype.itemsize
        if claimed > storages[key].size:
            held = f"for storage {key:.40}, of {storages[key].size}"
            raise HostileCheckpointError(f"{path} claims {claimed} bytes {held}.")
        return storages[key][:claimed].view(dtype)

    return _Unpickler(path, pickled, load_storage).load()


def _read_legacy(path, data):
    """Reads files from before PyTorch 1.6, such as Resemblyzer's encoder: five pickles, then the storages."""
    pickles, start = [], 0
    for _ in range(5):
        pickled = data[start : start + MAX_PICKLE_BYTES].tobytes()
        length = scan_pickle(pickled, str(path))
        pickles.append(pickled[:length])
        start += length
        if len(pickles) == 1 and _Unpickler(path, pickles[0]).load() != _LEGACY_MAGIC:
            raise DamagedCheckpointError(f"{path} is not a PyTorch checkpoint: it does not start like one.")

    claims = {}

    def note_claim(dtype, key, num_values):
        if num_values * dtype.itemsize > data.size:
            raise HostileCheckpointError(f"{path} claims {num_values} values for storage {key:.40}, more than it has.")
        claims[key] = (dtype, num_values)
        return data[: num_values * dtype.itemsize].view(dtype)  # of the right size, which is all that counts yet

    _Unpickler(path, pickles[3], note_claim).load()
    storages = {}
    for key in _Unpickler(path, pickles[4]).load():
        dtype, num_values = claims[key]
        (stored,) = struct.unpack("<q", data[start : start + 8].tobytes())
        begin, start = start + 8, start + 8 + num_values * dtype.itemsize
        if stored != num_values or start > data.size:
            raise DamagedCheckpointError(f"{path} is cut short or altered at storage {key:.40}.")
        storages[key] = data[begin:start].view(dtype)
    return _Unpickler(path, pickles[3], lambda dtype, key, num_values: storages[key]).load()


def _checksum(path, start, num_bytes):
    """CRC-32 of a part of the file, by plain reads: pages of a memory map would count as used memory."""
    checksum = 0
    with open(path, "rb") as file:
        file.seek(start)
        while chunk := file.read(min(num_bytes, _CHUNK_BYTES)):
            checksum = zlib.crc32(chunk, checksum)
            num_bytes -= len(chunk)
    return checksum


class _Unpickler(pickle.Unpickler):
    """Unpickles containers and tensors; `load_storage(dtype, key, num_values)` gives the values of a storage, 1-D."""

    def __init__(self, path, pickled, load_storage=None):
        super().__init__(io.BytesIO(pickled), encoding="utf-8")
        self._path, self._load_storage = path, load_storage
        functions = {
            "torch._utils._rebuild_tensor_v2": self._rebuild_tensor,
            "torch._utils._rebuild_tensor": self._rebuild_tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: _of_kind(np.ndarray, tensor),
            "collections.OrderedDict": lambda pairs=(): OrderedDict((_of_kind(str, name), one) for name, one in pairs),
            "numpy.dtype": _NumpyScalarType,
            "numpy.core.multiarray.scalar": _NumpyScalarType.read,
            "numpy._core.multiarray.scalar": _NumpyScalarType.read,
            # How protocol 2 spells a byte string.
            "_codecs.encode": lambda text, _encoding: _of_kind(str, text).encode("latin1"),
        }
        self._globals = {name: _Function(function) for name, function in functions.items()}

    def find_class(self, module, name):
        full_name = f"{module}.{name}"
        if full_name not in self._globals:
            self._globals[full_name] = _StubClass(name, (StubObject,), {"class_name": full_name, "_path": self._path})
        return self._globals[full_name]

    def persistent_load(self, pid):
        kind, storage_class, key, _location, num_values, *_view = pid
        dtype = _DTYPES.get(getattr(storage_class, "class_name", "").removeprefix("torch."))
        if kind != "storage" or dtype is None or self._load_storage is None:
            name = brief(getattr(storage_class, "class_name", storage_class))
            raise DamagedCheckpointError(f"{self._path} refers to {name}, which is no known tensor storage.")
        if type(key) is not str or type(num_values) is not int or not 0 <= num_values < 2**62:
            claim = f"a storage {brief(key)} of {brief(num_values)} values"
            raise HostileCheckpointError(f"{self._path} claims {claim}.")
        return self._load_storage(dtype, key, num_values)

    def _rebuild_tensor(self, storage, offset, size, stride, *_):
        """A view of `storage`; NumPy itself refuses one that leaves it."""
        size, stride = tuple(size), tuple(stride)
        integers = (offset, *size, *stride)
        valid = len(size) <= _MAX_AXES and all(type(value) is int and 0 <= value < 2**62 for value in integers)
        if not isinstance(storage, np.ndarray) or not valid:
            view = f"offset {brief(offset)}, size {brief(size)}, stride {brief(stride)}"
            raise HostileCheckpointError(f"{self._path} has a tensor of {view}.")
        if math.prod(size) > storage.size:
            claim = f"claims a tensor of size {brief(size)} in a storage of {storage.size} values"
            raise HostileCheckpointError(f"{self._path} {claim}.")
        itemsize = storage.dtype.itemsize
        byte_strides = tuple(itemsize * step for step in stride)
        return np.ndarray(size, storage.dtype, buffer=storage, offset=itemsize * offset, strides=byte_strides)


class _StubClass(type):
    """Class of the stubs' classes: they can be made by the opcode for plain objects, but not called."""

    def __call__(cls, *_args, **_kwargs):
        way_out = "if you trust its origin, save its weights alone, as a state dict, and convert that"
        problem = f"{cls._path} asks to call {cls.class_name:.200}. Nothing was run"
        raise HostileCheckpointError(f"{problem}. Do not use this file; {way_out}.")


def _of_kind(kind, value):
    """`value`, which must be of a class: others could be costly to hash, or shared behind the scan's back."""
    if not isinstance(value, kind):
        raise TypeError(f"{brief(value)} where a {kind.__name__} belongs")
    return value


class _Function(partial):
    """A function that a pickle may call but not alter."""

    def __setstate__(self, state):
        raise HostileCheckpointError(f"The checkpoint asks to change a function by {brief(state)}.")


class _NumpyScalarType:
    """Type of a NumPy number, such as a loss that a trainer stored beside the weights."""

    def __init__(self, code, *_):
        self.dtype = _NUMPY_NUMBERS[_of_kind(str, code)]

    def __setstate__(self, state):
        self.dtype = self.dtype.newbyteorder(state[1])

    def read(self, content):
        return np.frombuffer(content, self.dtype)[0]


def _pickle(value, arrays):
    """The opcodes that build `value`; arrays are appended to `arrays`, whose index is their storage key."""

    def pickle_all(values):
        return b"".join(_pickle(item, arrays) for item in values)

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float):
        return pickle.dumps(value, 2)[2:-1]  # without the protocol in front and the stop after it
    if isinstance(value, str):
        encoded = value.encode("utf-8")
        return b"X" + struct.pack("<I", len(encoded)) + encoded
    if isinstance(value, dict):
        return b"}(" + pickle_all(itertools.chain.from_iterable(value.items())) + b"u"
    if isinstance(value, list):
        return b"](" + pickle_all(value) + b"e"
    if isinstance(value, tuple):
        return b"(" + pickle_all(value) + b"t"
    if not isinstance(value, np.ndarray):
        raise TypeError(f"A PyTorch checkpoint of weights cannot hold a {type(value).__name__}.")
    if value.dtype not in _STORAGE_NAMES:
        raise TypeError(f"A PyTorch checkpoint cannot hold an array of dtype {value.dtype}. Cast it first.")
    arrays.append(value)
    strides = tuple(math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
    dtype = b"ctorch\n" + _STORAGE_NAMES[value.dtype].encode() + b"\n"
    storage = pickle_all(["storage"]) + dtype + pickle_all((str(len(arrays) - 1), "cpu", value.size))
    view = pickle_all((0, value.shape, strides, False)) + b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQ" + view + b"tR"


def _aligned_entry(file, name, num_bytes=0):
    """A zip entry whose content starts at a multiple of 64 bytes, as in files by PyTorch, so that it can be mapped."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    entry.file_size = num_bytes
    header_bytes = 30 + len(entry.filename) + 4
    padding = -(file.tell() + header_bytes) % _ALIGNMENT
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return entry

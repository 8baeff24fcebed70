"""Reads and writes PyTorch checkpoint files without PyTorch, and without running what a file asks to run.

A pickle is a program that can call any function by name. Python's own unpickler runs it here with all of its calls
replaced: objects become stubs that only keep their attributes, and functions other than those in `_Unpickler.call` are
refused. Values may recur and nest without limit, so the sizes of all arguments are added up, only numbers and texts are
hashed, and nobody may walk a whole value recursively.
"""

import io
import itertools
import math
import os
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives NumPy the dtype bfloat16
import numpy as np

from myxtts.config.checks import UserError, brief
from myxtts.storage.files import write_whole

_CODES = "Float:f4 Double:f8 Half:f2 BFloat16:bfloat16 Long:i8 Int:i4 Short:i2 Char:i1 Byte:u1 Bool:?"
DTYPES = {f"{name}Storage": np.dtype(code) for name, code in (pair.split(":") for pair in _CODES.split())}
"""NumPy dtype of each PyTorch storage class."""
MAX_PICKLE_BYTES = 64 * 2**20
_MAX_OPCODES, _MAX_WORK, _MAX_ODD_KEYS, _MAX_AXES = 10**6, 4 * 10**6, 5000, 64
"""Limits on a pickle, whose tensors do not count; the released XTTS v2 model needs a hundredth of most of them."""
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET "
    "ADDITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD "
    "BINPERSID".split()
)
"""Opcodes that `torch.save` writes, and those of a plain object's state."""
_STORAGE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_SIGNS_OF_DAMAGE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(struct.error, pickle.UnpicklingError, zipfile.BadZipFile),
)
"""Errors that unpickling and unzipping raise on damaged bytes."""


class TorchCheckpointError(UserError):
    """A PyTorch checkpoint that cannot be read."""


class HostileCheckpointError(TorchCheckpointError):
    """A file that calls a function which no checkpoint needs, or claims sizes that it does not have."""


class DamagedCheckpointError(TorchCheckpointError):
    """A file that is cut short, altered, or not a PyTorch checkpoint."""


class _Global(str):
    """Full name of a class or function, which is never imported."""


@dataclass(eq=False, repr=False)
class StubObject:
    """An object of any class, without the class."""

    class_name: str
    """Full name of the class."""
    state: Any = None
    """Its state in the file, usually a dictionary of attributes."""


def read_torch_checkpoint(path: str | os.PathLike) -> Any:
    """Reads a file of `torch.save`, with tensors as NumPy arrays.

    Reads the zip format, with its checksums, and the format before PyTorch 1.6. Arrays are read-only views of the
    memory-mapped file and take no memory until they are copied. bfloat16 is `ml_dtypes.bfloat16`.

    Returns:
        The saved object: usually a dictionary of arrays, or one that has such a dictionary under `"model"`. Objects of
        classes become `StubObject`s.

    Raises:
        HostileCheckpointError: The file calls a function, or claims more than its size.
        DamagedCheckpointError: The file is cut short, altered, or not a PyTorch checkpoint.
    """
    path = Path(path)
    if not path.stat().st_size:
        raise DamagedCheckpointError(f"{path} is empty.")
    data = np.memmap(path, dtype="uint8", mode="r")
    try:
        return _read_zip(path, data) if bytes(data[:4]) == b"PK\x03\x04" else _read_legacy(path, data)
    except TorchCheckpointError:  # a ValueError, with a better message
        raise
    except _SIGNS_OF_DAMAGE as error:
        raise DamagedCheckpointError(f"{path} is damaged or not a PyTorch checkpoint: {error!s:.200}.") from error


def write_torch_checkpoint(path: str | os.PathLike, checkpoint: Any) -> None:
    """Writes an array, or nested dictionaries of arrays and plain values, for `torch.load(path, weights_only=True)`."""
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
        entries = archive.infolist()
        for entry in entries:
            if archive.getinfo(entry.filename) is not entry:
                raise HostileCheckpointError(f"{path} has two entries named {brief(entry.filename)}.")
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise HostileCheckpointError(
                    f"{path} has a compressed entry, {brief(entry.filename)}. Write it with torch.save, which has none."
                )
            if entry.header_offset < 0:
                raise DamagedCheckpointError(f"{path} is cut short or altered at entry {brief(entry.filename)}.")
        if sum(entry.file_size for entry in entries) > data.size:
            raise HostileCheckpointError(f"{path} claims entries of more bytes than the file has.")
        names = [entry.filename for entry in entries]
        pickles = [name for name in names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise DamagedCheckpointError(f"{path} is a zip file with {len(pickles)} data.pkl entries, not one.")
        root, storages = pickles[0].removesuffix("data.pkl"), {}

        def load_storage(dtype, key, num_values):
            if key not in storages:
                storages[key] = _content(archive, data, f"{root}data/{key}")
            claimed, size = num_values * dtype.itemsize, storages[key].size
            if claimed > size:
                raise HostileCheckpointError(f"{path} claims {claimed} bytes for storage {key:.40}, of {size}.")
            return storages[key][:claimed].view(dtype)

        if root + "byteorder" in names and _content(archive, data, root + "byteorder").tobytes() != b"little":
            raise DamagedCheckpointError(f"{path} was written on a big-endian machine, which is not supported.")
        return unpickle(_content(archive, data, pickles[0]).tobytes(), str(path), load_storage)[0]


def _content(archive, data, name):
    """Returns an entry as a view of the mapped file, after reading it once for its checksum."""
    with archive.open(name) as entry:
        while entry.read(2**20):
            pass
    entry = archive.getinfo(name)
    name_length, extra_length = struct.unpack("<26xHH", data[entry.header_offset :][:30].tobytes())
    start = entry.header_offset + 30 + name_length + extra_length
    return data[start : start + entry.file_size]


def _read_legacy(path, data):
    """Reads the format before PyTorch 1.6, such as Resemblyzer's encoder: five pickles, then the storages."""
    start, claims = 0, {}

    def note_claim(dtype, key, num_values):
        if num_values * dtype.itemsize > data.size:
            raise HostileCheckpointError(f"{path} claims {num_values} values for storage {key:.40}, more than it has.")
        claims[key] = (dtype, num_values)
        return data[: num_values * dtype.itemsize].view(dtype)  # only its size matters here

    for number in range(5):
        pickled = data[start : start + MAX_PICKLE_BYTES].tobytes()
        value, length = unpickle(pickled, str(path), note_claim if number == 3 else None)
        if number == 0 and value != _LEGACY_MAGIC:
            raise DamagedCheckpointError(f"{path} is not a PyTorch checkpoint.")
        if number == 3:
            checkpoint = pickled
        start += length
    storages = {}
    for key in value:
        dtype, num_values = claims[_of_kind(str, key)]
        (stored,) = struct.unpack("<q", data[start : start + 8].tobytes())
        begin, start = start + 8, start + 8 + num_values * dtype.itemsize
        if stored != num_values or start > data.size:
            raise DamagedCheckpointError(f"{path} is cut short or altered at storage {key:.40}.")
        storages[key] = data[begin:start].view(dtype)
    return unpickle(checkpoint, str(path), lambda dtype, key, num_values: storages[key])[0]


def _pickle(value, arrays):
    """Returns the opcodes that build `value`; its arrays are appended to `arrays`, their index is the storage key."""
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickle(one, arrays) for one in itertools.chain.from_iterable(value.items())) + b"u"
    if not isinstance(value, np.ndarray):
        if not isinstance(value, (bool, int, float, str, list, tuple, type(None))):
            raise TypeError(f"A PyTorch checkpoint of weights cannot hold a {type(value).__name__}.")
        return pickle.dumps(value, 2)[2:-1]  # without PROTO and STOP
    if value.dtype not in _STORAGE_NAMES:
        raise TypeError(f"A PyTorch checkpoint cannot hold an array of dtype {value.dtype}. Cast it first.")
    arrays.append(value)
    strides = tuple(math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
    storage_class = b"ctorch\n" + _STORAGE_NAMES[value.dtype].encode() + b"\n"
    place = [_pickle(one, arrays) for one in (str(len(arrays) - 1), "cpu", value.size)]
    storage = b"(" + _pickle("storage", arrays) + storage_class + b"".join(place) + b"tQ"
    view = b"".join(_pickle(one, arrays) for one in (0, value.shape, strides, False))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"ccollections\nOrderedDict\n)RtR"


def _aligned_entry(file, name, num_bytes=0):
    """Makes a zip entry whose content starts at a multiple of 64 bytes, as in PyTorch's files."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    entry.file_size = num_bytes
    padding = -(file.tell() + 34 + len(entry.filename)) % 64  # 30 bytes of header, 4 of the padding's own
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return entry


def unpickle(
    pickled: bytes, source: str, load_storage: Callable[[np.dtype, str, int], np.ndarray] | None = None
) -> tuple[Any, int]:
    """Returns the value of the first pickle in `pickled`, and the length of that pickle.

    Args:
        source: Name of the file for messages.
        load_storage: Called with dtype, key and number of values; returns the values of a storage, 1-D.

    Raises:
        HostileCheckpointError: It has an opcode, a call, or a number or size of values that no checkpoint needs.
        DamagedCheckpointError or one of `_SIGNS_OF_DAMAGE`: It is no pickle.
    """
    unpickler = _Unpickler(file := io.BytesIO(pickled), source, load_storage)
    unpickler.require(len(pickled) <= MAX_PICKLE_BYTES, f"has a pickle of more than {MAX_PICKLE_BYTES} bytes")
    for count, (opcode, *_) in enumerate(pickletools.genops(pickled)):
        unpickler.require(opcode.name in _OPCODES, f"uses the pickle opcode {opcode.name}, which no checkpoint needs")
        unpickler.require(count < _MAX_OPCODES, f"has a pickle of more than {_MAX_OPCODES} opcodes")
    return unpickler.load(), file.tell()


def _with_plain_keys(load, keys):
    """Returns an opcode's handler that first checks the keys among the stack's values, which it hashes."""

    def checked(self):
        for key in self.stack[keys]:
            _of_kind((str, bytes, int, float, type(None)), key)
            self.num_odd_keys += not isinstance(key, (str, bytes))
        # Numbers, unlike text, can be chosen to collide.
        self.require(self.num_odd_keys <= _MAX_ODD_KEYS, f"has more than {_MAX_ODD_KEYS} keys that are not text")
        load(self)

    return checked


class _Unpickler(pickle._Unpickler):
    """Builds containers, tensors and `StubObject`s, and refuses all calls but those in `call`."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, file, source, load_storage):
        super().__init__(file, encoding="utf-8")
        self.source, self.load_storage, self.num_odd_keys, self.work = source, load_storage, 0, 0

    def require(self, holds, problem):
        if not holds:
            raise HostileCheckpointError(f"{self.source} {problem}.")

    def counted(self, arguments):
        """Returns `arguments` after adding up their sizes: a small file can pass the same large values many times."""
        sizes = (len(one) for one in arguments if isinstance(one, (str, bytes, list, tuple, dict, set)))
        self.work += len(_of_kind(tuple, arguments)) + sum(sizes)
        self.require(self.work <= _MAX_WORK, f"repeats its values until they are more than {_MAX_WORK}")
        return arguments

    def find_class(self, module, name):
        return _Global(".".join(self.counted((module, name))))

    def persistent_load(self, place):
        return self.storage(*self.counted(place))

    def load_reduce(self):
        arguments = self.counted(self.stack.pop())
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def load_newobj(self):
        self.stack.pop()
        self.stack[-1] = StubObject(_of_kind(_Global, self.stack[-1]))

    def load_build(self):
        state, whole = self.stack.pop(), self.stack[-1]
        if isinstance(whole, np.dtype):
            self.stack[-1] = whole.newbyteorder(state[1])
        elif not isinstance(whole, dict):  # the attributes of a module's state dict are not needed
            _of_kind(StubObject, whole).state = state

    dispatch[pickle.REDUCE[0]], dispatch[pickle.NEWOBJ[0]] = load_reduce, load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = _with_plain_keys(pickle._Unpickler.load_setitem, slice(-2, -1))
    dispatch[pickle.SETITEMS[0]] = _with_plain_keys(pickle._Unpickler.load_setitems, slice(0, None, 2))
    dispatch[pickle.DICT[0]] = _with_plain_keys(pickle._Unpickler.load_dict, slice(0, None, 2))
    dispatch[pickle.ADDITEMS[0]] = _with_plain_keys(pickle._Unpickler.load_additems, slice(None))

    def call(self, function, arguments):
        """Calls one of the functions that checkpoints need."""
        functions = {
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: _of_kind(np.ndarray, tensor),
            "collections.OrderedDict": lambda pairs=(): {_of_kind(str, name): one for name, one in pairs},
            # A NumPy number, such as a loss in a trainer's checkpoint.
            "numpy.dtype": lambda code, *_: np.dtype(re.fullmatch("[biuf][1248]", code)[0]),
            "numpy.core.multiarray.scalar": _number,
            "numpy._core.multiarray.scalar": _number,
            # Protocol 2 stores byte strings in this way.
            "_codecs.encode": lambda text, _encoding: _of_kind(str, text).encode("latin1"),
        }
        if (known := functions.get(_of_kind(_Global, function))) is None:
            raise HostileCheckpointError(
                f"{self.source} asks to call {function:.200}. Nothing was run. Do not use this file; if you trust it, "
                "save its weights alone as a state dict and convert that."
            )
        return known(*arguments)

    def storage(self, kind, storage_class, key, _location, num_values, *_view):
        dtype = DTYPES.get(storage_class.removeprefix("torch.")) if isinstance(storage_class, _Global) else None
        if kind != "storage" or dtype is None or self.load_storage is None:
            name = brief(str(storage_class) if isinstance(storage_class, str) else storage_class)
            raise DamagedCheckpointError(f"{self.source} refers to {name}, which is not a tensor storage.")
        valid = type(key) is str and type(num_values) is int and 0 <= num_values < 2**62
        self.require(valid, f"claims a storage {brief(key)} of {brief(num_values)} values")
        return self.load_storage(dtype, key, num_values)

    def tensor(self, storage, offset, size, stride, *_):
        """Returns a view of `storage`; NumPy raises an error for one that leaves it."""
        size, stride = tuple(_of_kind((tuple, list), size)), tuple(_of_kind((tuple, list), stride))
        valid = len(size) <= _MAX_AXES and all(
            type(one) is int and 0 <= one < 2**62 for one in (offset, *size, *stride)
        )
        view = f"offset {brief(offset)}, size {brief(size)}, stride {brief(stride)}"
        self.require(isinstance(storage, np.ndarray) and valid, f"has a tensor of {view}")
        claim = f"claims a tensor of size {brief(size)} in a storage of {storage.size} values"
        self.require(math.prod(size) <= storage.size, claim)
        itemsize = storage.dtype.itemsize
        byte_strides = tuple(itemsize * step for step in stride)
        return np.ndarray(size, storage.dtype, buffer=storage, offset=itemsize * offset, strides=byte_strides)


def _of_kind(kind, value):
    """Returns `value`, which must be a `kind`: hashing another value could take forever."""
    if not isinstance(value, kind):
        raise TypeError(f"{brief(value)} is out of place")
    return value


def _number(dtype, content):
    return np.frombuffer(content, _of_kind(np.dtype, dtype))[0]

"""Reads and writes PyTorch checkpoint files without PyTorch, and without running code from a file.

A pickle is a program that can call any function by name. The interpreter here builds only containers and tensors. It
replaces other objects by `StubObject`s with the same attributes, and rejects calls of any function that is not listed
in `Unpickler.call`. It also restricts dictionary keys, because hashing nested tuples could take forever or overflow the
stack. Memory is limited by the length of the pickle: values that a pickle repeats are stored once.
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

_FLOATS = dict(Float="f4", Double="f8", Half="f2", BFloat16="bfloat16")
_WHOLE = dict(Long="i8", Int="i4", Short="i2", Char="i1", Byte="u1", Bool="?")
DTYPES = {f"{name}Storage": np.dtype(code) for name, code in (_FLOATS | _WHOLE).items()}
"""NumPy dtype by PyTorch storage class, such as `FloatStorage`."""
MAX_PICKLE_BYTES = 64 * 2**20
_MAX_OPCODES, _MAX_WORK, _MAX_ODD_KEYS, _MAX_AXES = 10**6, 4 * 10**6, 5000, 64
"""Limits of one pickle: number of opcodes, total length of the arguments of calls, number of dictionary keys and set
items that are not text, and number of axes of a tensor. The pickle of XTTS v2 uses about a hundredth of most limits."""
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET "
    "ADDITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD "
    "BINPERSID".split()
)
"""Pickle opcodes that are allowed: those that `torch.save` writes, and those for plain objects with attributes."""
_STORAGE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_SIGNS_OF_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError)
_SIGNS_OF_DAMAGE += (struct.error, zipfile.BadZipFile, pickle.UnpicklingError)
"""Errors that unpickling or unzipping raises for damaged files."""


class TorchCheckpointError(UserError):
    """A file is damaged, is not a PyTorch checkpoint, calls a forbidden function, or claims more data than it has."""


def _require(holds, source, problem):
    """Raises `TorchCheckpointError` with the file's name `source` and the text `problem` if `holds` is false."""
    if not holds:
        raise TorchCheckpointError(f"{source} {problem}.")


class _Global(str):
    """Dotted name of a class or function in a pickle. It is never imported."""


@dataclass(eq=False, repr=False)
class StubObject:
    """Placeholder for an unpickled object, because its class is not imported."""

    state: Any = None
    """Pickled state of the object, usually a dictionary of attributes; None if the pickle has none."""


class Unpickler(pickle._Unpickler):  # in Python, so that opcodes can be redefined
    """Restricted interpreter of one pickle.

    `source` names the file in error messages. `load_storage(dtype, key, num_values)` returns a tensor storage, 1-D;
    None allows no tensors.
    """

    def __init__(self, source: str, load_storage: Callable[[np.dtype, str, int], np.ndarray] | None = None):
        self.source, self.load_storage, self.num_odd_keys, self.work = source, load_storage, 0, 0
        self.require = lambda holds, problem: _require(holds, source, problem)

    def run(self, pickled: bytes) -> tuple[Any, int]:
        """Reads the first pickle in `pickled`; returns its value and its length in bytes.

        Raises:
            TorchCheckpointError: The pickle uses an opcode or a function that no checkpoint needs, or exceeds a limit.
            One of `_SIGNS_OF_DAMAGE`: The bytes are not a valid pickle.
        """
        self.require(len(pickled) <= MAX_PICKLE_BYTES, f"has a pickle of over {MAX_PICKLE_BYTES} bytes without tensors")
        stream = io.BytesIO(pickled)
        for count, (opcode, *_) in enumerate(pickletools.genops(stream)):
            self.require(opcode.name in _OPCODES, f"uses the pickle opcode {opcode.name}, which no checkpoint needs")
            self.require(count < _MAX_OPCODES, f"has a pickle of more than {_MAX_OPCODES} opcodes")
        stream.seek(0)
        super().__init__(stream, encoding="utf-8")
        return self.load(), stream.tell()

    def find_class(self, module, name):
        """Returns the name of a class or function, which is not imported."""
        return _Global(f"{module}.{name}")

    def persistent_load(self, reference):
        """Returns the tensor storage that a reference of PyTorch names."""
        return self.storage(*_of_kind(tuple, reference))

    def load_reduce(self):
        """Replaces a function's name and arguments on the stack by the result of the call."""
        arguments = _of_kind(tuple, self.stack.pop())
        self.work += sum(len(one) for one in arguments if isinstance(one, (str, bytes, list, tuple)))
        self.require(self.work <= _MAX_WORK, f"repeats its values until they are more than {_MAX_WORK}")
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def load_newobj(self):
        """Replaces a class's name and arguments on the stack by an object without attributes."""
        self.stack.pop()
        _of_kind(_Global, self.stack[-1])
        self.stack[-1] = StubObject()

    def load_build(self):
        """Sets the state of the object on the stack; the attributes of a module's state dict are not needed."""
        state, whole = self.stack.pop(), self.stack[-1]
        if isinstance(whole, np.dtype):
            self.require(state[1] in ("<", "|", "="), "has big-endian numbers")
        elif not isinstance(whole, dict):
            _of_kind(StubObject, whole).state = state

    def load_keyed(self, opcode, keys):
        """Runs an opcode that adds dictionary keys or set items, those at the slice `keys` of the stack."""
        odd = [key for key in self.stack[keys] if not isinstance(key, (str, bytes))]
        is_simple = all(key is None or isinstance(key, (int, float)) for key in odd)
        self.require(is_simple, "has dictionary keys that are not text or numbers")
        self.num_odd_keys += len(odd)
        self.require(self.num_odd_keys <= _MAX_ODD_KEYS, f"has more than {_MAX_ODD_KEYS} keys that are not text")
        pickle._Unpickler.dispatch[opcode](self)

    dispatch = pickle._Unpickler.dispatch | {
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: lambda self: self.load_keyed(pickle.SETITEM[0], slice(-2, -1)),
        pickle.SETITEMS[0]: lambda self: self.load_keyed(pickle.SETITEMS[0], slice(0, None, 2)),
        pickle.DICT[0]: lambda self: self.load_keyed(pickle.DICT[0], slice(0, None, 2)),
        pickle.ADDITEMS[0]: lambda self: self.load_keyed(pickle.ADDITEMS[0], slice(None)),
    }

    def call(self, function, arguments):
        """Calls `function` if it is one of the few that checkpoints need, else raises `TorchCheckpointError`."""
        scalar = lambda dtype, content: np.frombuffer(content, _of_kind(np.dtype, dtype))[0]
        functions = {
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: _of_kind(np.ndarray, tensor),
            "collections.OrderedDict": lambda pairs=(): {_of_kind(str, name): one for name, one in pairs},
            # Numbers of NumPy, such as a loss that a trainer stored.
            "numpy.dtype": lambda code, *_: np.dtype(re.fullmatch("[biuf][1248]", code)[0]),
            "numpy.core.multiarray.scalar": scalar,
            "numpy._core.multiarray.scalar": scalar,
            # A byte string in protocol 2.
            "_codecs.encode": lambda text, _encoding: _of_kind(str, text).encode("latin1"),
        }
        known = functions.get(_of_kind(_Global, function))
        if known is None:
            hint = "if you trust its origin, save its weights alone, as a state dict, and convert that."
            asks = f"{self.source} asks to call {function:.200}. Nothing was run."
            raise TorchCheckpointError(f"{asks} Do not use this file; {hint}")
        return known(*arguments)

    def storage(self, kind, storage_class, key, _location, num_values, *_view):
        """Returns the values of a tensor storage as a 1-D array. The arguments are PyTorch's reference to it."""
        dtype = DTYPES.get(storage_class.removeprefix("torch.")) if isinstance(storage_class, _Global) else None
        if kind != "storage" or dtype is None or self.load_storage is None:
            name = brief(str(storage_class) if isinstance(storage_class, str) else storage_class)
            raise TorchCheckpointError(f"{self.source} refers to {name}, which is not a known tensor storage.")
        valid = type(key) is str and type(num_values) is int and 0 <= num_values < 2**62
        self.require(valid, f"claims a storage {brief(key)} of {brief(num_values)} values")
        return self.load_storage(dtype, key, num_values)

    def tensor(self, storage, offset, size, stride, *_):
        """Returns a tensor as a view of `storage`; NumPy raises an error if the view exceeds the storage."""
        size, stride = _of_kind(tuple, size), _of_kind(tuple, stride)
        numbers = offset, *size, *stride
        valid = len(size) <= _MAX_AXES and all(type(one) is int and 0 <= one < 2**62 for one in numbers)
        view = f"offset {brief(offset)}, size {brief(size)}, stride {brief(stride)}"
        self.require(isinstance(storage, np.ndarray) and valid, f"has a tensor of {view}")
        claim = f"claims a tensor of size {brief(size)} in a storage of {storage.size} values"
        self.require(math.prod(size) <= storage.size, claim)
        itemsize = storage.dtype.itemsize
        byte_strides = tuple(itemsize * step for step in stride)
        return np.ndarray(size, storage.dtype, buffer=storage, offset=itemsize * offset, strides=byte_strides)


def _of_kind(kind, value):
    """Returns `value` if it is an instance of `kind`; else raises `TypeError`. Other types could bypass the limits."""
    if not isinstance(value, kind):
        raise TypeError(f"{brief(value)} where a {kind.__name__} belongs")
    return value


def read_torch_checkpoint(path: str | os.PathLike) -> Any:
    """Reads a file written by `torch.save`, with tensors as NumPy arrays, and verifies its checksums.

    Supports the zip format and the format used before PyTorch 1.6, which has no checksums. Arrays are read-only views
    of the memory-mapped file, so they need little memory. bfloat16 arrays have the dtype `ml_dtypes.bfloat16`.

    Returns:
        The saved object: usually a dictionary of arrays by name, or a dictionary with arrays by name under `"model"`.
        Objects of other classes become `StubObject`s.

    Raises:
        TorchCheckpointError: The file is cut short, altered or not a PyTorch checkpoint, calls a function that no
            checkpoint needs, or claims more data than it has.
    """
    path = Path(path)
    _require(path.stat().st_size, path, "is empty")
    data = np.memmap(path, dtype="uint8", mode="r")
    try:
        return _read_zip(path, data) if bytes(data[:4]) == b"PK\x03\x04" else _read_legacy(path, data)
    except TorchCheckpointError:  # a ValueError, but with a better message
        raise
    except _SIGNS_OF_DAMAGE as error:
        raise TorchCheckpointError(f"{path} is damaged or not a PyTorch checkpoint: {error!s:.200}.") from error


def write_torch_checkpoint(path: str | os.PathLike, checkpoint: Any) -> None:
    """Writes a file that `torch.load(path, weights_only=True)` can read. An error leaves no partial file.

    `checkpoint` is an array, or a dictionary of arrays, plain values and nested dictionaries.
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
            name = brief(entry.filename)
            _require(entries[entry.filename] is entry, path, f"has two entries named {name}")
            is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            _require(is_stored, path, f"has a compressed entry, {name}. Write it with torch.save, which has none")
        claimed = sum(entry.file_size for entry in entries.values())
        _require(claimed <= data.size, path, "claims entries of more bytes than the file has")
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        _require(len(pickles) == 1, path, f"is a zip file with {len(pickles)} data.pkl entries, not one")
        root, storages = pickles[0].removesuffix("data.pkl"), {}

        def content(name):
            """Returns the bytes of an entry, as a view of the mapped file."""
            entry = entries.get(name)
            if entry is None or entry.header_offset < 0:
                raise TorchCheckpointError(f"{path} has no entry {brief(name)}.")
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
            size = storages[key].size
            _require(claimed <= size, path, f"claims {claimed} bytes for storage {key:.40}, of {size}")
            return storages[key][:claimed].view(dtype)

        if root + "byteorder" in entries and content(root + "byteorder").tobytes() != b"little":
            raise TorchCheckpointError(f"{path} was written on a big-endian machine, which is not supported.")
        return Unpickler(str(path), load_storage).run(content(pickles[0]).tobytes())[0]


def _read_legacy(path, data):
    """Reads the format used before PyTorch 1.6 (and by Resemblyzer's encoder): five pickles, then the storages."""
    start, claims = 0, {}

    def note_claim(dtype, key, num_values):
        fits = num_values * dtype.itemsize <= data.size
        _require(fits, path, f"claims {num_values} values for storage {key:.40}, more than it has")
        claims[key] = (dtype, num_values)
        return data[: num_values * dtype.itemsize].view(dtype)  # a placeholder of the right size

    for number in range(5):
        pickled = data[start : start + MAX_PICKLE_BYTES].tobytes()
        value, length = Unpickler(str(path), note_claim if number == 3 else None).run(pickled)
        _require(number or value == _LEGACY_MAGIC, path, "is not a PyTorch checkpoint: it begins with other bytes")
        if number == 3:
            checkpoint = pickled
        start += length
    storages = {}
    for key in value:
        dtype, num_values = claims[key]
        (stored,) = struct.unpack("<q", data[start : start + 8].tobytes())
        begin, start = start + 8, start + 8 + num_values * dtype.itemsize
        _require(stored == num_values and start <= data.size, path, f"is cut short or altered at storage {key:.40}")
        storages[key] = data[begin:start].view(dtype)
    return Unpickler(str(path), lambda dtype, key, num_values: storages[key]).run(checkpoint)[0]


def _pickle(value, arrays):
    """Returns pickle opcodes that build `value`. Appends its arrays to `arrays`; their indices are the storage keys."""
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
    """Returns a zip entry whose content starts at a multiple of 64 bytes, as in PyTorch, for memory mapping."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    entry.file_size = num_bytes
    padding = -(file.tell() + 34 + len(entry.filename)) % 64  # the header has 30 bytes, the start of the padding 4
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return entry

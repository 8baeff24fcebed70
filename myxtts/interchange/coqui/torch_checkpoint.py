"""Reads and writes PyTorch checkpoint files without PyTorch, and without running code from a file.

A pickle is a program that can call any function by name. `Unpickler` builds only containers and tensors. It replaces
other objects by `StubObject`s with the same attributes, and rejects calls of functions that `Unpickler.call` does not
list. It also counts the values that it builds, because a small file could repeat values until they fill the memory.
"""

import copy
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
_MAX_OPCODES, _MAX_WORK, _MAX_DEPTH, _MAX_ODD_KEYS, _MAX_AXES = 10**6, 4 * 10**6, 100, 5000, 64
"""Limits of one pickle, in this order: number of opcodes, total weight of the values put into other values (see
`_Cell`), nesting depth, number of dictionary keys and set items that are not text, number of axes of a tensor. The
contents of tensors do not count. The pickle of XTTS v2 uses about a hundredth of most limits."""
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET "
    "ADDITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD "
    "BINPERSID".split()
)
"""Pickle opcodes that are allowed: those that `torch.save` writes, and those for plain objects with attributes."""
_KEYS = {"SETITEM": slice(0, 1), "SETITEMS": slice(0, None, 2), "DICT": slice(0, None, 2), "ADDITEMS": slice(None)}
"""Slice of each opcode's operands that selects keys or set items. `_MAX_ODD_KEYS` limits those that are not text."""
_DISTRUST = "Do not use this file; if you trust its origin, save its weights alone, as a state dict, and convert that."
_LITERALS = {"EMPTY_LIST": [], "EMPTY_TUPLE": (), "EMPTY_DICT": {}, "EMPTY_SET": set()}
_LITERALS |= {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_STORAGE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_SIGNS_OF_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError)
_SIGNS_OF_DAMAGE += (struct.error, zipfile.BadZipFile)
"""Errors that unpickling or unzipping raises for damaged files."""


class TorchCheckpointError(UserError):
    """Error for a file that is damaged, is not a PyTorch checkpoint, calls forbidden functions, or exceeds a limit."""


def _require(holds, source, problem):
    if not holds:
        raise TorchCheckpointError(f"{source} {problem}.")


class _Global(str):
    """Dotted name of a class or function in a pickle. It is never imported."""


@dataclass(eq=False, repr=False)
class StubObject:
    """Placeholder for an object in a pickle. The class of the object is never imported."""

    state: Any = None
    """Pickled state of the object, usually a dictionary of attributes; None if the pickle contains no state."""


@dataclass(slots=True, eq=False)
class _Cell:
    """A value on the pickle interpreter's stack, with the numbers that are needed to limit its size and nesting."""

    value: Any
    weight: int = 1
    """Estimated cost of hashing the value: 1, plus 1 per 64 characters, plus the weights of the values in it."""
    depth: int = 0
    """Nesting depth; 0 for a value that contains no other values."""
    is_held: bool = False
    """Whether a container holds this value. A held value must not grow, because the container's weight includes it."""


class Unpickler:
    """Restricted interpreter of one pickle.

    `source` names the file in error messages. `load_storage(dtype, key, num_values)` returns the values of a tensor
    storage as a 1-D array. If `load_storage` is None, the pickle must not contain tensors.
    """

    def __init__(self, source: str, load_storage: Callable[[np.dtype, str, int], np.ndarray] | None = None):
        self.source, self.load_storage = source, load_storage
        self.require = lambda holds, problem: _require(holds, source, problem)
        self.stack, self.marks, self.memo, self.work, self.num_odd_keys = [], [], {}, 0, 0

    def run(self, pickled: bytes) -> tuple[Any, int]:
        """Reads the first pickle in `pickled`; returns its value and its length in bytes.

        Raises `TorchCheckpointError` if the pickle exceeds a limit, or uses an opcode or a function that no checkpoint
        needs. Raises one of `_SIGNS_OF_DAMAGE` if the bytes are not a valid pickle.
        """
        limit = f"over the limit of {MAX_PICKLE_BYTES}; tensors do not count"
        self.require(len(pickled) <= MAX_PICKLE_BYTES, f"has a pickle of {len(pickled)} bytes, {limit}")
        stack, marks, stream = self.stack, self.marks, io.BytesIO(pickled)
        for count, (opcode, argument, _position) in enumerate(pickletools.genops(stream)):
            name, before = opcode.name, opcode.stack_before
            self.require(name in _OPCODES, f"uses the pickle opcode {name}, which no checkpoint needs")
            self.require(count < _MAX_OPCODES, f"has a pickle of more than {_MAX_OPCODES} opcodes")
            if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
            elif name == "MARK":
                marks.append(len(stack))
            elif name == "POP":
                (marks if marks and marks[-1] == len(stack) else stack).pop()
            elif name in ("DUP", "GET", "BINGET", "LONG_BINGET"):
                stack.append(stack[-1] if name == "DUP" else self.memo[argument])
            elif name == "STOP":
                return stack[-1].value, stream.tell()
            elif not before:
                stack += [_literal(name, argument)] * len(opcode.stack_after)
            elif pickletools.markobject in before:
                start = marks.pop()
                taken = stack[start:]
                del stack[start:]
                if name != "POP_MARK":
                    whole = stack.pop() if before[0] is not pickletools.markobject else None
                    self.combine(name, whole, taken)
            else:
                taken = [stack.pop() for _ in before][::-1]
                self.combine(name, taken.pop(0) if name in ("APPEND", "SETITEM", "BUILD") else None, taken)

    def combine(self, name, whole, parts):
        """Runs the pickle opcode `name` and pushes the result on the stack. The opcode adds `parts` to `whole` or, if
        `whole` is None, makes a new value from `parts`. Raises `TorchCheckpointError` if a limit is exceeded."""
        self.work += sum(part.weight for part in parts)
        self.num_odd_keys += sum(type(part.value) not in (str, bytes) for part in parts[_KEYS.get(name, slice(0))])
        depth = max([part.depth + 1 for part in parts], default=0)
        for part in parts:
            part.is_held = True
        self.require(whole is None or not whole.is_held, "changes a value that another value contains")
        self.require(depth <= _MAX_DEPTH, f"has values nested more than {_MAX_DEPTH} deep")
        self.require(self.work <= _MAX_WORK, f"repeats its values until they are more than {_MAX_WORK}")
        self.require(self.num_odd_keys <= _MAX_ODD_KEYS, f"has more than {_MAX_ODD_KEYS} keys that are not text")
        values = [part.value for part in parts]
        if whole is None:
            whole = _Cell(self.make(name, values))
        else:
            whole.value = _extended(name, whole.value, values)
        whole.weight += sum(part.weight for part in parts)
        whole.depth = max(whole.depth, depth)
        self.stack.append(whole)

    def make(self, name, values):
        """Returns the new value that the pickle opcode `name` builds from its operands `values`."""
        if name == "REDUCE":
            return self.call(*values)
        if name == "BINPERSID":
            return self.storage(*values[0])
        if name == "STACK_GLOBAL":
            return _Global(".".join(values))
        if name == "NEWOBJ":
            _of_kind(_Global, values[0])
            return StubObject()
        if name == "DICT":
            return dict(zip(values[::2], values[1::2], strict=True))
        return values if name == "LIST" else tuple(values)

    def call(self, function, arguments):
        """Calls `function` if it is one of the functions that checkpoints need, else raises `TorchCheckpointError`."""
        scalar = lambda dtype, content: np.frombuffer(content, _of_kind(np.dtype, dtype))[0]
        functions = {
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: _of_kind(np.ndarray, tensor),
            "collections.OrderedDict": lambda pairs=(): {_of_kind(str, name): one for name, one in pairs},
            "collections.Counter": lambda counts=(): dict(_of_kind(dict, counts)),  # milestones of a MultiStepLR
            # Numbers of NumPy, such as a loss that a trainer stored.
            "numpy.dtype": lambda code, *_: np.dtype(re.fullmatch("[biuf][1248]", code)[0]),
            "numpy.core.multiarray.scalar": scalar,
            "numpy._core.multiarray.scalar": scalar,
            # A byte string in protocol 2.
            "_codecs.encode": lambda text, _encoding: _of_kind(str, text).encode("latin1"),
        }
        if (known := functions.get(_of_kind(_Global, function))) is None:
            raise TorchCheckpointError(f"{self.source} asks to call {function:.200}. Nothing was run. {_DISTRUST}")
        return known(*arguments)

    def storage(self, kind, storage_class, key, _location, num_values, *_view):
        """Returns the values of a tensor storage as a 1-D array. The arguments are the fields of its persistent id."""
        dtype = DTYPES.get(storage_class.removeprefix("torch.")) if isinstance(storage_class, _Global) else None
        if kind != "storage" or dtype is None or self.load_storage is None:
            name = brief(str(storage_class) if isinstance(storage_class, str) else storage_class)
            raise TorchCheckpointError(f"{self.source} refers to {name}, which is not a known tensor storage.")
        valid = type(key) is str and type(num_values) is int and 0 <= num_values < 2**62
        self.require(valid, f"claims a storage {brief(key)} of {brief(num_values)} values")
        return self.load_storage(dtype, key, num_values)

    def tensor(self, storage, offset, size, stride, *_):
        """Returns a tensor as a view of `storage`; NumPy raises an error if the view exceeds the storage."""
        size, stride = tuple(size), tuple(stride)
        valid = len(size) <= _MAX_AXES and all(type(n) is int and 0 <= n < 2**62 for n in (offset, *size, *stride))
        view = f"offset {brief(offset)}, size {brief(size)}, stride {brief(stride)}"
        self.require(isinstance(storage, np.ndarray) and valid, f"has a tensor of {view}")
        claim = f"claims a tensor of size {brief(size)} in a storage of {storage.size} values"
        self.require(math.prod(size) <= storage.size, claim)
        itemsize = storage.dtype.itemsize
        return np.ndarray(size, storage.dtype, storage, itemsize * offset, tuple(itemsize * step for step in stride))


def _literal(name, argument):
    """Returns a `_Cell` with the value that opcode `name` pushes: a constant such as True, or the given `argument`."""
    if name in _LITERALS:
        return _Cell(copy.copy(_LITERALS[name]))
    if name == "GLOBAL":
        argument = _Global(argument.replace(" ", "."))
    if name in ("BINSTRING", "SHORT_BINSTRING"):
        argument = argument.encode("latin1").decode("utf-8")
    return _Cell(argument, 1 + (len(argument) // 64 if isinstance(argument, (str, bytes)) else 0))


def _extended(name, whole, values):
    """Runs opcode `name`: adds `values` to the container `whole`, or sets an object's state. Returns the result."""
    if name in ("APPEND", "APPENDS"):
        list.extend(whole, values)
    elif name in ("SETITEM", "SETITEMS"):
        dict.update(whole, zip(values[::2], values[1::2], strict=True))
    elif name == "ADDITEMS":
        set.update(whole, values)
    elif isinstance(whole, np.dtype):
        return whole.newbyteorder(values[0][1])
    elif not isinstance(whole, dict):  # the attributes of a module's state dict are not needed
        _of_kind(StubObject, whole).state = values[0]
    return whole


def _of_kind(kind, value):
    """Returns `value` if its type is `kind`, else raises `TypeError`. Other types could bypass the size limits."""
    if not isinstance(value, kind):
        raise TypeError(f"{brief(value)} where a {kind.__name__} belongs")
    return value


def read_torch_checkpoint(path: str | os.PathLike) -> Any:
    """Reads a file that `torch.save` wrote, and verifies its checksums. Tensors become NumPy arrays.

    Supports the zip format and the format used before PyTorch 1.6, which has no checksums. Arrays are read-only views
    of the memory-mapped file, so they need little memory. bfloat16 arrays have the dtype `ml_dtypes.bfloat16`.

    Returns the saved object: usually a dictionary of arrays by name, or a dictionary whose entry `"model"` is such a
    dictionary. Objects that are neither tensors nor plain Python values become `StubObject`s.

    Raises `TorchCheckpointError` if the file is damaged, is not a PyTorch checkpoint, or is not safe to read.
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
            start = entry.header_offset + 30 + sum(struct.unpack("<26xHH", data[entry.header_offset :][:30].tobytes()))
            return data[start : start + entry.file_size]

        def load_storage(dtype, key, num_values):
            if key not in storages:
                storages[key] = content(f"{root}data/{key}")
            claimed, size = num_values * dtype.itemsize, storages[key].size
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
    """Returns pickle opcodes for `value`. Appends its arrays to `arrays`, whose indices are the storage keys."""
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickle(one, arrays) for one in itertools.chain.from_iterable(value.items())) + b"u"
    if not isinstance(value, np.ndarray):
        return pickle.dumps(value, 2)[2:-1]  # without the protocol at the start and the stop at the end
    arrays.append(value)
    strides = tuple(math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
    storage_class = b"ctorch\n" + _STORAGE_NAMES[value.dtype].encode() + b"\n"
    place = [_pickle(one, arrays) for one in (str(len(arrays) - 1), "cpu", value.size)]
    storage = b"(" + _pickle("storage", arrays) + storage_class + b"".join(place) + b"tQ"
    view = b"".join(_pickle(one, arrays) for one in (0, value.shape, strides, False))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"ccollections\nOrderedDict\n)RtR"


def _aligned_entry(file, name, num_bytes=0):
    """Returns a zip entry to write at the end of `file`. As in PyTorch, its content is aligned to 64 bytes for memory
    mapping. `num_bytes` is the size of the content; 0 if `writestr` sets the size."""
    entry = zipfile.ZipInfo(f"archive/{name}")
    entry.file_size = num_bytes
    padding = -(file.tell() + 34 + len(entry.filename)) % 64  # the header has 30 bytes, the start of the padding 4
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return entry

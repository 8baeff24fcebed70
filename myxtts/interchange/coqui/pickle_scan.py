"""Scans the pickle of a PyTorch checkpoint before it is read: what it may ask for, and how much reading it can cost."""

import io
import pickletools
from dataclasses import dataclass

from myxtts.config.checks import UserError

_OPCODES = frozenset(
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET "
    "ADDITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD "
    "BINPERSID".split()
)
"""What torch.save and a plain object's state need. All ways to call other than REDUCE are left out, and so are the ways
to grow memory without data behind it."""
_KEYS = {"SETITEM": slice(0, 1), "SETITEMS": slice(0, None, 2), "DICT": slice(0, None, 2), "ADDITEMS": slice(None)}
"""Which of the values that an opcode takes are hashed."""
_GLOBAL_WEIGHT = 100
"""Of a class or function, for which the reader makes a class of its own; that of a number is 1."""
MAX_PICKLE_BYTES = 64 * 2**20
_MAX_OPCODES, _MAX_WORK, _MAX_DEPTH, _MAX_ODD_KEYS = 10**6, 4 * 10**6, 100, 5000
"""Limits on a pickle, without tensor data; that of the released XTTS v2 model takes a hundredth of most of them."""


class TorchCheckpointError(UserError):
    """A PyTorch checkpoint that cannot be read."""


class HostileCheckpointError(TorchCheckpointError):
    """The file asks to call a function that no checkpoint needs, or claims sizes that it does not have."""


@dataclass(slots=True, eq=False)
class _Value:
    """What is known of a value without making it."""

    weight: int = 1
    """Values in it, each wherever it recurs, with 64 bytes of text as one: what it costs to walk through or hash it."""
    depth: int = 0
    is_text: bool = False
    is_held: bool = False
    """Whether another value holds it; its weight counts there, so it may not grow any more."""


def scan_pickle(pickled: bytes, source: str) -> int:
    """The length of the first pickle in `pickled`, after running its stack machine on weights alone.

    Raises:
        HostileCheckpointError: An opcode that no checkpoint has, or more values, nesting or repetition than one has.
        LookupError, ValueError: It is no pickle.
    """

    def require(holds, problem):
        if not holds:
            raise HostileCheckpointError(f"{source} {problem}.")

    limit = f"over the limit of {MAX_PICKLE_BYTES}; tensors do not count"
    require(len(pickled) <= MAX_PICKLE_BYTES, f"has a pickle of {len(pickled)} bytes, {limit}")
    stream, stack, marks, memo, work, num_odd_keys = io.BytesIO(pickled), [], [], {}, 0, 0
    for count, (opcode, argument, _position) in enumerate(pickletools.genops(stream)):
        name, before = opcode.name, opcode.stack_before
        require(name in _OPCODES, f"uses the pickle opcode {name}, which no checkpoint needs")
        require(count < _MAX_OPCODES, f"has a pickle of more than {_MAX_OPCODES} opcodes")
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            slot = len(memo) if name == "MEMOIZE" else argument
            # The unpickler allocates as many slots as the highest one asked for.
            require(slot <= count, f"asks for {slot} memo slots after {count} opcodes")
            memo[slot] = stack[-1]
        elif name == "MARK" or (name == "POP" and marks and marks[-1] == len(stack)):
            marks.append(len(stack)) if name == "MARK" else marks.pop()
        elif name in ("DUP", "GET", "BINGET", "LONG_BINGET"):
            stack.append(stack[-1] if name == "DUP" else memo[argument])
        elif name in ("POP", "STOP"):
            stack.pop()
        elif not before:
            stack += [_plain_value(name, argument, kind) for kind in opcode.stack_after]
        else:
            start = marks.pop() if pickletools.markobject in before else len(stack) - len(before)
            grows = name == "BUILD" or before[0] in (pickletools.pylist, pickletools.pydict, pickletools.pyset)
            start += grows and pickletools.markobject not in before
            taken = stack[start:]
            del stack[start:]
            if name == "POP_MARK":
                continue
            work += sum(part.weight for part in taken)
            num_odd_keys += sum(not key.is_text for key in taken[_KEYS.get(name, slice(0))])
            for part in taken:
                part.is_held = True
            whole = stack.pop() if grows else _Value(_GLOBAL_WEIGHT if name == "STACK_GLOBAL" else 1)
            require(not whole.is_held, "changes a value that another one holds, which no checkpoint does")
            whole.weight += sum(part.weight for part in taken)
            whole.depth = max([whole.depth, *(part.depth + 1 for part in taken)])
            stack.append(whole)
            require(whole.depth <= _MAX_DEPTH, f"has values nested more than {_MAX_DEPTH} deep")
            require(work <= _MAX_WORK, f"repeats its values until they are more than {_MAX_WORK}")
            require(num_odd_keys <= _MAX_ODD_KEYS, f"has more than {_MAX_ODD_KEYS} keys that are not text")
    return stream.tell()


def _plain_value(name, argument, kind):
    if name == "GLOBAL":
        return _Value(_GLOBAL_WEIGHT + len(argument) // 64)
    is_text = isinstance(argument, (str, bytes))
    return _Value(1 + (len(argument) // 64 if is_text else 0), is_text=is_text)

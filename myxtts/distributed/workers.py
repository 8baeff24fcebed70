"""The workers of a run: processes, on one machine or several, that train one model together.

TensorFlow's collectives carry gradients; this carries what is no tensor, such as who asked for a stop, and notices when
a worker is gone. Each worker has a connection to worker 0, the chief, which alone writes. Messages are JSON.
"""

import json
import logging
import math
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from myxtts.config.checks import UserError, printable

BEAT_SECONDS = 2.0
"""Between signs of life."""
LOST_SECONDS = 30.0
"""Of silence after which a worker counts as lost. One that was killed is noticed at once: its connection ends."""
LOST_EXIT_CODE = 75
"""Of a run that ends as a worker was lost: the same command goes on (`EX_TEMPFAIL` of sysexits.h)."""
FAREWELL_SECONDS = 5.0
"""For the other workers to end when one is lost, before worker 0 does."""
REFUSED_EXIT_CODE, INTERRUPTED_EXIT_CODE = 2, 130
LARGEST_MESSAGE = 2**28
_LENGTH = struct.Struct("!I")


class WorkerLost(UserError):
    """A worker does not answer any more."""

    exit_code = LOST_EXIT_CODE


class Workers:
    """Those who train together; made as it is, one process alone. `join_workers` connects several."""

    def __init__(self, addresses: tuple[str, ...] = ("",), index: int = 0):
        self.addresses, self.index = addresses, index
        self.strategy: Any = None
        """`tf.distribute.Strategy` over all of them; None where there is one."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this is the one that writes."""
        return self.index == 0

    def name(self, index: int | None = None) -> str:
        """What a worker is called in messages; this one where None is given."""
        index = self.index if index is None else index
        return f"worker {index} ({self.addresses[index]})"

    def gather(self, value: Any = None) -> list:
        """The value that each worker gives, in their order, on all of them; a JSON value. All must call this."""
        return [value]

    def tell(self, value: Any = None) -> Any:
        """The chief's value, on all."""
        return self.gather(value if self.is_chief else None)[0]

    def ask(self, call: Callable[[], Any]) -> Any:
        """What the call returned on the chief, which alone makes it; a JSON value."""
        return self.tell(call() if self.is_chief else None)

    def any(self, flag: bool) -> bool:
        """Whether the flag of any worker is set."""
        return any(self.gather(flag))

    def agree(self, event: threading.Event) -> bool:
        """Sets the event of every worker if that of one is set; whether it is."""
        if self.any(event.is_set()):
            event.set()
            return True
        return False

    def require_equal(self, what: str, value: Any, way_out: str) -> None:
        """Raises `UserError`, on all, unless all give an equal JSON value for what messages call `what`."""
        values = self.gather(value)
        for index, other in enumerate(values):
            if other != values[0]:
                told = f"{self.name(index).capitalize()} has {what} {other}, and {self.name(0)} has {values[0]}"
                raise UserError(f"All workers must have the same {what}. {told}. {way_out}")

    def watch(self, seconds: float | None) -> None:
        """From now on this process waits for the others in operations of all: after so long it ends all of them; None
        calls that off. TensorFlow's own time limit starts a thread for each operation, which sleeps until the limit."""

    def part_of(self, error: BaseException) -> None:
        """Called with an error of a collective operation, which may come of another worker's end.

        Raises:
            WorkerLost: It does.
        """

    def leave(self, why: str, code: int) -> None:
        """Ends the others as well, with that exit code; they say why."""

    def close(self) -> None:
        """Says good-bye, once all have come to their end."""

    def see_off(self, seconds: float = LOST_SECONDS) -> None:
        """Waits until the other processes have ended, before worker 0 ends: it holds what TensorFlow's runtime there
        cannot lose without an abort."""


class ConnectedWorkers(Workers):
    """Workers with a connection each to the chief; `lines` are the sockets, by the index of who is at the other end."""

    def __init__(self, addresses: tuple[str, ...], index: int, lines: dict[int, socket.socket]):
        super().__init__(addresses, index)
        self._given = {peer: queue.Queue() for peer in lines}
        self._closed, self._ending = threading.Event(), threading.Event()
        self._one_end, self._deadline = threading.Lock(), (math.inf, 0.0)
        self._lines = {peer: _Line(line, peer, self._hear, self._broken) for peer, line in lines.items()}
        for line in self._lines.values():
            line.start()
        threading.Thread(target=self._beat, name="myxtts-workers-beat", daemon=True).start()

    def gather(self, value=None):
        if self._closed.is_set():
            raise UserError("Workers train once per process. Start all of them again to go on.")
        if not self.is_chief:
            self._send(0, {"value": value})
            return self._given[0].get()
        values = [value, *(self._given[peer].get() for peer in sorted(self._lines))]
        for peer in self._lines:
            self._send(peer, {"value": values})
        return values

    def watch(self, seconds):
        self._deadline = (time.monotonic() + seconds, seconds) if seconds else (math.inf, 0.0)

    def part_of(self, error):
        # Whose connection ended is known within a moment, and then this process ends in another thread.
        self._ending.wait(LOST_SECONDS + 10.0)
        threading.Event().wait(30.0 if self._ending.is_set() else 0.0)
        told = str(error).splitlines()[0]
        raise WorkerLost(
            "The workers have lost touch in an operation of all, and all of them still answer otherwise. "
            f"The same command goes on from the last checkpoint. TensorFlow: {told}"
        ) from error

    def leave(self, why, code):
        if self._closed.is_set():
            return
        self._closed.set()
        for peer in self._lines:
            self._send(peer, {"ends": self.index, "why": why, "code": code})

    def close(self):
        if self._closed.is_set():  # it has left before
            return
        self.gather()
        if self.is_chief:
            self._closed.set()
            for peer in self._lines:
                self._send(peer, {"done": True})
        self._closed.wait()

    def see_off(self, seconds=LOST_SECONDS):
        deadline = time.monotonic() + seconds
        for line in self._lines.values() if self.is_chief else ():
            if line is not threading.current_thread():
                line.join(max(0.0, deadline - time.monotonic()))

    def _send(self, peer, message):
        try:
            self._lines[peer].send(message)
        except OSError as error:
            self._broken(peer, error)

    def _beat(self):
        while not self._closed.wait(BEAT_SECONDS):
            for peer in self._lines:
                self._send(peer, {})
            deadline, seconds = self._deadline
            if time.monotonic() > deadline:
                waited = f"has waited for the others for {seconds:.0f} s (training.worker_timeout_seconds)"
                self._end(self.index, f"{waited}. The same command goes on from the last checkpoint", LOST_EXIT_CODE)

    def _hear(self, peer, message):
        if "value" in message:
            self._given[peer].put(message["value"])
        elif "done" in message:
            self._closed.set()
        elif "ends" in message:
            self._end(int(message["ends"]), str(message["why"]), int(message["code"]))

    def _broken(self, peer, error):
        if self._closed.is_set():
            return
        if isinstance(error, TimeoutError):
            how = f"has not answered for {LOST_SECONDS:.0f} s"
        else:
            how = "is gone, killed or its machine lost"
        self._end(peer, f"{how}. The same command goes on from the last checkpoint", LOST_EXIT_CODE)

    def _end(self, ended, why, code):
        """Ends this process because of another, and on the chief all others."""
        if not self._one_end.acquire(blocking=False):
            return
        self._ending.set()
        for peer in self._lines.keys() - {ended}:
            with suppress(OSError):
                self._lines[peer].send({"ends": ended, "why": why, "code": code})
        sentence = printable(f"{self.name(ended).capitalize()} {why}.".replace("..", "."))
        logging.getLogger("myxtts").error("%s", sentence)
        print(f"Error: {sentence}", file=sys.stderr, flush=True)
        logging.shutdown()
        sys.stdout.flush()
        self.see_off(FAREWELL_SECONDS)
        # Not an exception: the main thread may be in a collective operation that waits for who will not come.
        os._exit(code)


class _Line(threading.Thread):
    """A connection: hears in its thread, sends in any. `broken(peer, error)` is called when it ends or is silent."""

    def __init__(self, line: socket.socket, peer: int, hear: Callable, broken: Callable):
        super().__init__(name=f"myxtts-worker-{peer}", daemon=True)
        self._line, self._peer, self._hear, self._broken = line, peer, hear, broken
        self._sending = threading.Lock()
        line.settimeout(LOST_SECONDS)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message):
        with self._sending:
            send_message(self._line, message)

    def run(self):
        try:
            while True:
                self._hear(self._peer, read_message(self._line))
        except (OSError, ValueError) as error:
            self._broken(self._peer, error)


def send_message(line: socket.socket, message: dict) -> None:
    """Sends a JSON object, after its length."""
    content = json.dumps(message).encode()
    line.sendall(_LENGTH.pack(len(content)) + content)


def read_message(line: socket.socket) -> dict:
    """Reads what `send_message` sent.

    Raises:
        OSError: The connection ended, or was silent for longer than its time limit.
        ValueError: What came is no message.
    """
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size))
    if length > LARGEST_MESSAGE:
        raise ValueError("not a message of a worker")
    message = json.loads(_read(line, length))
    if not isinstance(message, dict):
        raise ValueError("not a message of a worker")
    return message


def _read(line, length):
    parts, left = [], length
    while left:
        part = line.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("the connection ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


@contextmanager
def leaving_together(workers: Workers) -> Iterator[None]:
    """When the block ends with an error, the other workers end as well and say what it was."""
    try:
        yield
    except WorkerLost:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # SystemExit: SIGTERM before there is anything to finish
        workers.leave("was stopped at once", getattr(error, "code", INTERRUPTED_EXIT_CODE))
        raise
    except (UserError, OSError) as error:
        workers.leave(f"ended: {error}", REFUSED_EXIT_CODE)
        raise
    except BaseException as error:
        workers.leave(f"failed: {type(error).__name__}: {error}", 1)
        raise


_current = Workers()


def current_workers() -> Workers:
    """The workers that this process has joined; itself alone where it has joined none."""
    return _current


def use_workers(workers: Workers) -> None:
    """Makes these the current ones."""
    global _current
    _current = workers

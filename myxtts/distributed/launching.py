"""Several workers on one machine, started, followed and ended as one (`myxtts launch`)."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from myxtts.distributed.workers import LOST_EXIT_CODE, LOST_SECONDS

FAREWELL_SECONDS = 2 * LOST_SECONDS
"""After the first worker has ended, for the others to end by themselves."""
LOST_FAREWELL_SECONDS = 15.0
"""The same where one was lost: the others know at once, and what hangs never ends by itself."""
STOPPED_SECONDS = LOST_SECONDS + 5.0
"""In which a worker that a signal has stopped may be continued. Those who have met it notice sooner and say so."""
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a worker that was told to end before it had anything to finish."""
HOST = "127.0.0.1"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def launch(count: int, arguments: Sequence[str], restarts: int = 0) -> int:
    """Runs `myxtts ARGUMENTS --workers … --worker-index N` so many times at once, and shows what they print.

    A Ctrl-C or SIGTERM is handed to all of them. When a worker is lost they all end; `restarts` times the same is
    started again, which goes on from the last checkpoint.

    Returns:
        The exit code: 0 where all ended well, `LOST_EXIT_CODE` where a worker was lost, else that of the first to fail.
    """
    for attempt in range(restarts + 1):
        workers = _start(count, arguments)
        with _handed_signals(workers) as is_stopped:
            code = _follow(workers)
        if code != LOST_EXIT_CODE or is_stopped.is_set() or attempt == restarts:
            return code
        print(f"A worker was lost: starting all again, restart {attempt + 1} of {restarts}", flush=True)
    return code


def free_addresses(count: int) -> tuple[str, ...]:
    """Addresses of this machine for so many workers, on ports that are free, as is the one after the first."""
    while True:
        held = [_held(0) for _ in range(count)]
        ports = [one.getsockname()[1] for one in held]
        try:
            held.append(_held(ports[0] + 1))
        except (OSError, OverflowError):
            continue
        finally:
            for one in held:
                one.close()
        return tuple(f"{HOST}:{port}" for port in ports)


def _held(port):
    one = socket.socket()
    try:
        one.bind((HOST, port))
    except BaseException:
        one.close()
        raise
    return one


def _start(count, arguments):
    addresses = ",".join(free_addresses(count))
    command = [sys.executable, "-u", "-m", "myxtts", *arguments, "--workers", addresses]
    # A session of its own, so that a Ctrl-C in the terminal comes to each once, from here.
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
    if sys.platform == "linux":
        options["preexec_fn"] = _die_with_parent
    return [subprocess.Popen([*command, "--worker-index", str(index)], **options) for index in range(count)]


def _die_with_parent():
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


@contextmanager
def _handed_signals(workers) -> Iterator[threading.Event]:
    """Inside, Ctrl-C and SIGTERM go to all workers; gives an event that says whether one came."""
    came = threading.Event()

    def hand_on(number, frame):
        came.set()
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


def _follow(workers):
    """Shows what the workers print until all have ended; returns the exit code for all."""
    readers = [
        threading.Thread(target=_show, args=(index, worker), daemon=True) for index, worker in enumerate(workers)
    ]
    for reader in readers:
        reader.start()
    deadline, ended, stopped_since = None, [], {}
    while len(ended) < len(workers):
        ended += [worker for worker in workers if worker.poll() is not None and worker not in ended]
        for index, worker in enumerate(workers):
            now = time.monotonic()
            if worker in ended or not _is_stopped(worker):
                stopped_since.pop(index, None)
            elif now - stopped_since.setdefault(index, now) > STOPPED_SECONDS:
                print(f"Worker {index} was stopped by a signal for {STOPPED_SECONDS:.0f} s and was killed.", flush=True)
                stopped_since[index] = float("inf")
                worker.kill()
        failed = [worker for worker in ended if worker.returncode]
        if deadline is None and failed:
            if any(worker.returncode == TERMINATED for worker in failed):
                _terminate(workers)  # it was told to end before it met the others, so nobody has told them
            seconds = LOST_FAREWELL_SECONDS if _is_lost(failed) else FAREWELL_SECONDS
            deadline = time.monotonic() + seconds
        if deadline is not None and time.monotonic() > deadline:
            for index, worker in enumerate(workers):
                if worker.poll() is None:
                    print(f"Worker {index} did not end within {seconds:.0f} s and was killed.", flush=True)
                    worker.kill()
            deadline = float("inf")
        time.sleep(0.05)
    for reader in readers:
        reader.join(LOST_SECONDS)
    if _is_lost(ended):
        return LOST_EXIT_CODE
    return next((worker.returncode for worker in ended if worker.returncode), 0)


def _terminate(workers):
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()


def _is_stopped(worker):
    """Whether a signal has stopped a process of ours and none has continued it."""
    if not hasattr(os, "waitid"):  # as on Windows
        return False
    try:
        return os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended meanwhile
        return False


def _is_lost(ended):
    """Whether one of these says that a worker was lost, or was killed itself."""
    return any(worker.returncode == LOST_EXIT_CODE or worker.returncode < 0 for worker in ended)


def _show(index, worker):
    for line in worker.stdout:
        print(f"[{index}] {line.decode(errors='replace').rstrip()}", flush=True)

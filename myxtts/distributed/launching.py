"""Starts several workers on one machine and ends them together (`myxtts launch`)."""

import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from myxtts.distributed.workers import FAREWELL_SECONDS, LOST_EXIT_CODE, LOST_SECONDS, REFUSED_EXIT_CODE

LOST_PATIENCE_SECONDS = 15.0
"""Seconds that the other workers have to end after one was lost; then they are killed, because they may hang."""


def launch(count: int, arguments: Sequence[str], restarts: int = 0) -> int:
    """Runs `count` processes of `myxtts ARGUMENTS --workers … --worker-index N` and prints their output.

    Ctrl-C and SIGTERM are forwarded to all workers. If a worker is lost, all workers end and are restarted, up to
    `restarts` times; the run resumes from the last checkpoint.

    Returns:
        0 if all workers succeeded, `REFUSED_EXIT_CODE` if the first failure was a worker that refused its settings,
        `LOST_EXIT_CODE` if one was lost, else the exit code of the first one that failed.
    """
    workers, is_stopped = [], threading.Event()
    # Each in a new session: a Ctrl-C of the terminal reaches it once, forwarded by this process.
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG of prctl(2) is 1: the workers end if this process is killed.
        options["preexec_fn"] = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def forward(number, frame):
        is_stopped.set()
        _signal(workers, number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for attempt in range(restarts + 1):
            command = [sys.executable, "-u", "-m", "myxtts", *arguments, "--workers", ",".join(free_addresses(count))]
            commands = ([*command, "--worker-index", str(index)] for index in range(count))
            workers[:] = [subprocess.Popen(one, **options) for one in commands]
            if is_stopped.is_set():  # while they were started
                _signal(workers, signal.SIGTERM)
            code = _follow(workers)
            if code != LOST_EXIT_CODE or is_stopped.is_set() or attempt == restarts:
                break
            print(f"A worker was lost. Restarting all, {attempt + 1} of {restarts}", flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _signal(workers, signal.SIGKILL)
        for worker in workers:
            worker.wait()
    return code


def free_addresses(count: int) -> tuple[str, ...]:
    """Returns `count` addresses of this machine with free ports."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in held)


def _signal(workers, number):
    for worker in workers:
        worker.send_signal(number)  # no effect on a process that has ended


def _follow(workers):
    """Prints the workers' output until all have ended; returns the exit code of the launch."""

    def show(index, worker):
        for line in worker.stdout:
            print(f"[{index}] {line.decode(errors='replace').rstrip()}", flush=True)

    readers = [threading.Thread(target=show, args=pair, daemon=True) for pair in enumerate(workers)]
    for reader in readers:
        reader.start()
    failed_at, is_refused = None, False
    while running := [worker for worker in workers if worker.poll() is None]:
        codes = _failures(workers)
        if codes and failed_at is None:
            if 128 + signal.SIGTERM in codes:  # it ended before it connected, so the others do not know
                _signal(running, signal.SIGTERM)
            failed_at, is_refused = time.monotonic(), REFUSED_EXIT_CODE in codes
            patience = LOST_PATIENCE_SECONDS if LOST_EXIT_CODE in codes else 2 * LOST_SECONDS
            if is_refused:  # connected workers know, the others would wait for it
                patience = FAREWELL_SECONDS
        if failed_at is not None and time.monotonic() - failed_at > patience:
            for worker in running:
                print(f"Worker {workers.index(worker)} did not end within {patience:.0f} s and was killed.", flush=True)
                worker.kill()
                worker.wait()
        time.sleep(0.05)
    for reader in readers:
        reader.join(LOST_SECONDS)
    codes = _failures(workers)
    return REFUSED_EXIT_CODE if is_refused else LOST_EXIT_CODE if LOST_EXIT_CODE in codes else next(iter(codes), 0)


def _failures(workers):
    """Exit codes of the workers that failed; a killed worker counts as lost."""
    return [LOST_EXIT_CODE if worker.returncode < 0 else worker.returncode for worker in workers if worker.returncode]

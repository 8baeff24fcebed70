"""Workers: processes, on one machine or several, that train one model together.

TensorFlow's collectives sum the gradients. Other values, such as a request to stop, are exchanged as JSON through
`Cluster`. Only worker 0, the chief, writes files. `launch` starts several workers on one machine.
"""

import ctypes
import importlib.metadata
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import myxtts
from myxtts.config.checks import UserError, printable, say
from myxtts.config.training import TrainingConfig
from myxtts.devices.device_plan import DevicePlan
from myxtts.storage.files import digest_bytes

CHECK_SECONDS = 2.0
"""Seconds between health checks."""
LOST_SECONDS = 30.0
"""Time limit of a health check in seconds. If the process was killed, its check fails without waiting."""
LOST_EXIT_CODE = 75
"""Exit code after the loss of a worker (`EX_TEMPFAIL` of sysexits.h). The same command then resumes training."""
REFUSED_EXIT_CODE = 2
"""Exit code of a worker that cannot run with its settings. In this case, `launch` restarts no workers."""
FAREWELL_SECONDS = 5.0
"""Seconds to wait for other workers to end: in worker 0 after an early end, in `launch` after `REFUSED_EXIT_CODE`."""
LOST_PATIENCE_SECONDS = 15.0
"""Seconds after the loss of a worker until `launch` kills the other workers, which may hang."""
RESUME = "The same command resumes from the last checkpoint"
_END = "myxtts/end"
"""`Cluster` key of the message that ends all workers: index of the worker that ended first, reason, exit code."""


class WorkerLost(UserError):
    """Raised if another worker no longer responds."""

    exit_code = LOST_EXIT_CODE


class Workers:
    """Processes that train one model together. This process is worker `index`. By default, there is no other worker."""

    def __init__(self, addresses: tuple[str, ...] = ("",), index: int = 0, cluster=None):
        self.addresses, self.index, self._cluster = addresses, index, cluster
        self.count: int = len(addresses)
        self.is_chief: bool = index == 0
        """Whether this is worker 0, which writes the files."""
        self.strategy: Any = cluster and cluster.strategy
        """`tf.distribute.Strategy` over all workers; None if this process trains alone."""
        self._round, self._deadline = 0, (math.inf, 0.0)
        self._closed, self._one_end = threading.Event(), threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="myxtts-workers-end", daemon=True)
        if cluster:
            self._listener.start()
            threading.Thread(target=self._check_health, name="myxtts-workers-health", daemon=True).start()

    def name(self, index: int) -> str:
        """Returns the name of worker `index` for messages: `worker 1 (host:port)`."""
        return f"worker {index} ({self.addresses[index]})"

    def gather(self, value: Any = None) -> list:
        """Returns the JSON values that all workers passed to `gather`, in worker order. All workers must call this."""
        if self.count == 1:
            return [value]
        if self._closed.is_set():
            raise UserError("Workers train once per process. Restart all of them to continue.")
        key, content = f"myxtts/{self._round}", json.dumps(value)
        try:
            if self.is_chief:
                own = [content, *(self._cluster.read(f"{key}/{peer}") for peer in range(1, self.count))]
                content = f"[{', '.join(own)}]"
                self._cluster.write(key, content)
                if self._round:  # every worker has read the previous values
                    self._cluster.delete(f"myxtts/{self._round - 1}")
            else:
                self._cluster.write(f"{key}/{self.index}", content)
                content = self._cluster.read(key)
        except ConnectionError as error:
            self.raise_lost(error)
        self._round += 1
        return json.loads(content)

    def ask(self, call: Callable[[], Any]) -> Any:
        """Calls `call` on the chief only, and returns the JSON result on all workers. All workers must call `ask`."""
        return self.gather(call() if self.is_chief else None)[0]

    def agree(self, event: threading.Event) -> bool:
        """If `event` is set on any worker, sets it on all of them and returns True. All workers must call `agree`."""
        if is_set := any(self.gather(event.is_set())):
            event.set()
        return is_set  # not `event.is_set()`, which may have changed since on one worker

    def require_equal(self, what: str, value: Any, hint: str) -> None:
        """Raises `UserError` on all workers if their `value`s (JSON) differ. All workers must call this. In the
        message, `what` names the values, and `hint` says how to make them equal."""
        first, *others = self.gather(value)
        differing = [(index, other) for index, other in enumerate(others, 1) if other != first]
        for index, other in differing[:1]:
            if isinstance(first, dict):
                name = min(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
                first, other = f"{name} {first.get(name)}", f"{name} {other.get(name)}"
            one, chief = self.name(index).capitalize(), self.name(0)
            raise UserError(f"All workers must have the same {what}. {one} has {other}, {chief} has {first}. {hint}")

    def watch(self, seconds: float | None) -> None:
        """Sets a deadline: ends all workers unless `watch` is called again within `seconds`. None means no deadline."""
        self._deadline = (time.monotonic() + seconds, seconds) if seconds else (math.inf, 0.0)

    def raise_lost(self, error: BaseException) -> None:
        """If this process is the only worker, does nothing. Otherwise, waits a minute. During this time, a health check
        usually finds the lost worker, reports its name and ends this process. If not, raises `WorkerLost`. `error` is
        the exception of the collective that failed."""
        if self.count == 1:
            return
        time.sleep(LOST_SECONDS + 30.0)
        raise WorkerLost(f"The workers lost contact. {RESUME}. TensorFlow: {str(error).splitlines()[0]}") from error

    def leave(self, why: str, code: int) -> None:
        """Ends the other workers, but not this one. The others print the reason `why` and exit with `code`."""
        if self.count > 1 and not self._closed.is_set():
            self._closed.set()
            self._send_end(self.index, why, code)

    def close(self) -> None:
        """Waits until all workers have called `close`, then ends the health checks."""
        if self.count > 1 and not self._closed.is_set():
            self.gather()
            self._closed.set()
            if self.is_chief:
                self._send_end()  # ends the listening threads
            self._listener.join(LOST_SECONDS)

    def _check_health(self):
        """Ends all workers if one is lost or the deadline passes. The chief checks the others; they check the chief."""
        while not self._closed.wait(CHECK_SECONDS):
            for peer in range(1, self.count) if self.is_chief else [0]:
                if why := self._cluster.failure(peer, LOST_SECONDS):
                    self._end(peer, f"{why}. {RESUME}", LOST_EXIT_CODE)
            deadline, seconds = self._deadline
            if time.monotonic() > deadline:
                why = f"waited {seconds:.0f} s for the others (training.worker_timeout_seconds). {RESUME}"
                self._end(self.index, why, LOST_EXIT_CODE)

    def _listen(self):
        with suppress(ConnectionError):  # the health check names who is gone
            if end := json.loads(self._cluster.read(_END)):  # empty when all workers have finished
                self._end(*end)

    def _send_end(self, *end):
        with suppress(ConnectionError):  # another worker was first, or the chief is gone
            self._cluster.write(_END, json.dumps(end))

    def _end(self, ended, why, code):
        """Prints the name of worker `ended` (an index) and the reason `why`. Ends all workers with exit code `code`."""
        if self._closed.is_set() or not self._one_end.acquire(blocking=False):
            return
        if ended:  # without worker 0 no message can be sent
            self._send_end(ended, why, code)
        sentence = printable(f"{self.name(ended).capitalize()} {why}.".replace("..", "."))
        logging.getLogger("myxtts").error("%s", sentence)
        with suppress(OSError):  # a closed pipe
            print(f"Error: {sentence}", file=sys.stderr, flush=True)
        # Not an exception: the main thread may wait in a collective that never ends.
        end_process(code, FAREWELL_SECONDS)


def join_workers(training: TrainingConfig, plan: DevicePlan, settings: dict) -> Workers:
    """Connects this process to the other `training.workers`. Returns a `Workers`; later calls return the same object.

    Checks that all workers have the same code, package versions and `settings` (JSON values). Must be called after the
    devices are configured and before TensorFlow's runtime starts. With no `training.workers`, the process trains alone.
    Raises `UserError` if a worker is missing, cannot be reached or differs from worker 0, or a port is taken.
    """
    global _current
    addresses, index = training.workers, training.worker_index
    if not addresses or _current.addresses == addresses:
        return _current
    require_free_port(training)
    from myxtts.distributed.cluster import Cluster

    say(f"Worker {index} of {len(addresses)}: waiting for the others, worker 0 at {addresses[0]}")
    _current = workers = Workers(addresses, index, Cluster(addresses, index, plan, training.worker_timeout_seconds))
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
    devices = [name.strip("/").split(":")[0] for name in plan.model_devices]
    root = Path(myxtts.__file__).parent
    code = b"".join(f"{file.relative_to(root)}\n".encode() + file.read_bytes() for file in sorted(root.rglob("*.py")))
    versions["MyXTTS"] = f"{myxtts.__version__} ({digest_bytes(code, 6)})"
    with leaving_together(workers):
        workers.require_equal("--workers", addresses, "Give all of them in the same order.")
        workers.require_equal("versions", versions, "Install the same versions on every machine.")
        workers.require_equal("settings", settings, "Start all with the same flags except --worker-index.")
        workers.require_equal("model devices", devices, "Give each worker the same number and kind of model devices.")
    return workers


def require_free_port(training: TrainingConfig) -> None:
    """Raises `UserError` if this worker's port is not free. Must be called before TensorFlow uses the port."""
    addresses, index = training.workers, training.worker_index
    if addresses and _current.addresses != addresses:
        try:
            socket.create_server(("", int(addresses[index].rpartition(":")[2]))).close()
        except OSError as error:
            reason = os.strerror(error.errno)
            raise UserError(f"Worker {index} ({addresses[index]}) cannot listen: {reason}. Change --workers.") from None


@contextmanager
def leaving_together(workers: Workers) -> Iterator[None]:
    """Context manager: if the `with` block raises an error, the other workers print this error and end."""
    try:
        yield
    except BaseException as error:
        why, code = f"failed: {type(error).__name__}: {error}", 1
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # SystemExit: SIGTERM before training
            why, code = "was interrupted", getattr(error, "code", 130)
        elif isinstance(error, (UserError, OSError)):
            why, code = f"ended: {error}", REFUSED_EXIT_CODE
        if not isinstance(error, WorkerLost):
            workers.leave(why, code)
        raise


_current = Workers()


def current_workers() -> Workers:
    """If `join_workers` was called, returns its result. Otherwise, returns `Workers` with only this process."""
    return _current


def end_process(code: int = 0, seconds: float = LOST_SECONDS) -> NoReturn:
    """Ends this process without clean-up, because clean-up could wait forever if interrupted code holds a lock.

    Worker 0, which runs the coordination service, first waits up to `seconds` for the other workers to end.
    """
    logging.shutdown()
    with suppress(OSError):  # it may be a closed pipe
        sys.stdout.flush()
    deadline, others = time.monotonic() + seconds, range(1, _current.count) if _current.is_chief else ()
    while time.monotonic() < deadline and not all(_current._cluster.failure(peer, 1.0) for peer in others):
        time.sleep(0.1)
    os._exit(code)


def launch(arguments: Sequence[str], environments: Sequence[Mapping[str, str]], restarts: int = 0) -> int:
    """Runs `myxtts ARGUMENTS --workers … --worker-index N` for each worker and prints the output of all workers.

    Each entry of `environments` contains the environment variables to add for one worker. Ctrl-C and SIGTERM are
    forwarded to all workers. If a worker is lost, all workers restart from the last checkpoint, up to `restarts` times.

    Returns 0 if no worker failed. Otherwise, returns `REFUSED_EXIT_CODE` if the earliest failure is that a worker
    cannot run with its settings. For other failures, returns `LOST_EXIT_CODE` if a worker was lost, else the exit code
    of the failed worker with the lowest index.
    """
    workers, is_stopped = [], threading.Event()
    # Each worker has its own session, so that it gets a Ctrl-C only once, forwarded by this process.
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
            addresses = ",".join(free_addresses(len(environments)))
            command = [sys.executable, "-u", "-m", "myxtts", *arguments, "--workers", addresses, "--worker-index"]
            started = enumerate(environments)
            workers[:] = [subprocess.Popen([*command, str(n)], env=os.environ | own, **options) for n, own in started]
            if is_stopped.is_set():  # while they were started
                _signal(workers, signal.SIGTERM)
            code = _follow(workers)
            if code != LOST_EXIT_CODE or is_stopped.is_set() or attempt == restarts:
                break
            with suppress(OSError):
                print(f"A worker was lost. Restarting all workers ({attempt + 1} of {restarts})", flush=True)
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
    """Prints the workers' output until all workers have ended. Kills workers that hang. Returns `launch`'s result."""

    def show(index, worker):
        for line in worker.stdout:
            with suppress(OSError, UnicodeError):  # the worker must not wait until its output is read
                # Text and line break in one call: the readers of all workers print at the same time.
                print(f"[{index}] {line.decode(errors='replace').rstrip()}\n", end="", flush=True)

    readers = [threading.Thread(target=show, args=pair, daemon=True) for pair in enumerate(workers)]
    for reader in readers:
        reader.start()
    failed_at, is_refused = None, False
    while running := [worker for worker in workers if worker.poll() is None]:
        codes = _failures(workers)
        if codes and failed_at is None:
            if 128 + signal.SIGTERM in codes:  # the worker ended before it connected, so the others do not know it
                _signal(running, signal.SIGTERM)
            failed_at, is_refused = time.monotonic(), REFUSED_EXIT_CODE in codes
            patience = LOST_PATIENCE_SECONDS if LOST_EXIT_CODE in codes else 2 * LOST_SECONDS
            if is_refused:  # connected workers end themselves; the others would wait for this worker
                patience = FAREWELL_SECONDS
        if failed_at is not None and time.monotonic() - failed_at > patience:
            for index in map(workers.index, running):
                with suppress(OSError):
                    print(f"Worker {index} did not end within {patience:.0f} s and was killed.", flush=True)
                workers[index].kill()
                workers[index].wait()
        time.sleep(0.05)
    for reader in readers:
        reader.join(LOST_SECONDS)
    codes = _failures(workers)
    return REFUSED_EXIT_CODE if is_refused else LOST_EXIT_CODE if LOST_EXIT_CODE in codes else next(iter(codes), 0)


def _failures(workers):
    """Returns the exit codes of the workers that failed, with `LOST_EXIT_CODE` for workers killed by a signal."""
    return [LOST_EXIT_CODE if worker.returncode < 0 else worker.returncode for worker in workers if worker.returncode]

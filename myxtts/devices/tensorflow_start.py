"""Imports TensorFlow without its start-up messages, and ends processes whose threads still run native code."""

import atexit
import gc
import importlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

SPARED = ("jax", "sklearn", "matplotlib")
"""Optional packages that `import_sparingly` hides from TensorFlow; they take a third of the import time."""
GPU_DRIVER_PLACES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Device files of GPU drivers, by which a machine with a GPU is recognized without TensorFlow."""
NOISE = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    r"^[IW][0-9]{4} [^ ]+ +[0-9]+ [^ ]+\.cc:[0-9]+]",
    r"^To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags",
    r"^E[0-9]{4} .*] Unable to register cu(DNN|FFT|BLAS) factory",
    r"^E[0-9]{4} .*] oneDNN supports DT_[A-Z0-9]+ only on platforms with AVX-512",
    r"^(\[src/libmpg123/|Note: (Illegal Audio-MPEG-Header|Trying to resync|Skipped [0-9]+ bytes)|Warning: Xing stream)",
    r"^\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+] \[ctranslate2]",
)
"""Messages to drop from standard error, as extended regular expressions of `grep -E`."""
NOISE_WITHOUT_GPU = r"^E[0-9]{4} .*] failed call to cuInit"
"""Message to drop only on machines without a GPU; on other machines, it explains why the GPU cannot be used."""
_filtering = threading.Lock()
# TensorFlow mistakes the graphs of several models for one function that is traced again and again.
logging.getLogger("tensorflow").addFilter(lambda record: "tf.function retracing" not in record.getMessage())


def import_tensorflow() -> None:
    """Imports TensorFlow without the packages `SPARED`. From now on, drops `NOISE` messages from standard error."""
    filter_native_errors()
    import_sparingly()


@contextmanager
def starting_quietly() -> Iterator[None]:
    """Context manager for calls from Python. In the `with` block, drops `NOISE` messages from standard error."""
    # There is no standard error in a program without a console, and another thread may filter it already.
    if sys.stderr is None or not _filtering.acquire(blocking=False):
        yield
        return
    relay = _relay(before := os.dup(2))
    try:
        yield
        if sys.modules.get("tensorflow") and not any(map(os.path.exists, GPU_DRIVER_PLACES)):
            importlib.import_module("tensorflow").config.list_physical_devices()  # prints `NOISE_WITHOUT_GPU`, once
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        if relay:
            with suppress(subprocess.TimeoutExpired):  # a child process of another thread still has the descriptor
                relay.wait(1.0)
        _filtering.release()


def import_sparingly() -> Any:
    """Imports TensorFlow without the optional packages in `SPARED`, which is faster; returns the module."""
    if "tensorflow" in sys.modules:
        return importlib.import_module("tensorflow")
    spared = [name for name in SPARED if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()  # collecting takes a quarter of the time and finds nothing
    try:
        sys.modules.update(dict.fromkeys(spared))  # importing None fails as for a missing package
        return importlib.import_module("tensorflow")
    finally:
        for name in spared:
            del sys.modules[name]
        gc.freeze()
        if collects:
            gc.enable()


def filter_native_errors() -> None:
    """From now on, drops messages that match `NOISE` from standard error. Does nothing if `sys.stderr` was replaced."""
    if sys.stderr is None or sys.stderr is not sys.__stderr__:
        return
    own = os.dup(2)
    if relay := _relay(own):
        relay.returncode = 0  # not waited for
        sys.stderr = open(own, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def _relay(output):
    """Starts a `grep` process that drops `NOISE` messages from standard error and copies others to descriptor `output`.

    Returns the `grep` process, or None if `grep` is missing, `TF_CPP_MIN_LOG_LEVEL` is 0 or 1, or the system is
    Windows. If TensorFlow aborts this process, `grep` still prints the reason; a thread could not do so.
    """
    grep = shutil.which("grep")
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1") or grep is None or os.name != "posix":
        return None
    noise = [*NOISE] if any(map(os.path.exists, GPU_DRIVER_PLACES)) else [*NOISE, NOISE_WITHOUT_GPU]
    command = [grep, "-avE", "--line-buffered", "|".join(noise)]
    # `grep` ends with the last process that has the descriptor. In its own process group, it does not get Ctrl-C.
    streams = dict(stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL)
    relay = subprocess.Popen(command, **streams, process_group=0, env={**os.environ, "LC_ALL": "C"})
    os.dup2(relay.stdin.fileno(), 2)
    relay.stdin.close()
    return relay


class AbandonedThread(threading.Thread):
    """Thread for a slow native call; `run_to_exit` ends the process without waiting for the thread.

    It is not a daemon, because the process aborts (SIGABRT) if a daemon leaves native code while Python shuts down.
    """


def run_to_exit(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process with the command's exit code, even if an `AbandonedThread` still runs."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `myxtts say <&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    if hasattr(sys.stdout, "reconfigure"):  # a notebook's stream has none
        sys.stdout.reconfigure(errors="backslashreplace")  # for letters that the encoding lacks
    try:
        code = command()
    except SystemExit as error:
        code = error.code
    if not any(isinstance(thread, AbandonedThread) for thread in threading.enumerate()):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code or 0)

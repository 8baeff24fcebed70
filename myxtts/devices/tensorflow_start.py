"""TensorFlow as a command starts it: sooner, and without start-up messages that nobody can act on.

TensorFlow's native code writes to file descriptor 2. Of a command's own process that descriptor is given to a filter,
and what Python prints goes where it went before, past it. Whatever is not on the list of known noise comes through.
"""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPARED = ("jax", "sklearn", "matplotlib")
"""Packages that TensorFlow and Keras import where they are installed, for TFLite, scikit-learn's interface and pictures
of theirs. They take a third of the time that importing TensorFlow takes; whoever needs one imports it later."""
GPU_DRIVER_PLACES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
NOISE = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    r"^[IW][0-9]{4} [^ ]+ +[0-9]+ [^ ]+\.cc:[0-9]+]",
    r"^To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags",
    r"^E[0-9]{4} .*] Unable to register cu(DNN|FFT|BLAS) factory",
    r"^E[0-9]{4} .*] oneDNN supports DT_[A-Z0-9]+ only on platforms with AVX-512",
)
"""Extended regular expressions, as `grep -E` takes them."""
NOISE_WITHOUT_GPU = r"^E[0-9]{4} .*] failed call to cuInit"
"""Of a GPU that is there and cannot be used it would tell the reason."""


def import_tensorflow() -> None:
    """Imports it for a command, which is about to work with it."""
    filter_native_errors()
    import_sparingly()


@contextmanager
def starting_quietly() -> Iterator[None]:
    """A block in which a program of somebody else's starts TensorFlow; afterwards its standard error is as before."""
    before = os.dup(2)
    relay = _relay(before)
    try:
        if relay:
            os.dup2(relay.stdin.fileno(), 2)
            relay.stdin.close()
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        if relay:
            relay.wait()


def import_sparingly() -> None:
    """Imports it without what nobody needs to train and speak."""
    if "tensorflow" in sys.modules:
        return
    spared = [name for name in SPARED if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()  # three thousand modules and hardly any garbage: looking for it takes a quarter of the time
    try:
        sys.modules.update(dict.fromkeys(spared))  # an import of None fails like that of a missing package
        import tensorflow  # noqa: F401
    finally:
        for name in spared:
            del sys.modules[name]
        gc.freeze()  # what modules hold stays
        if collects:
            gc.enable()


def filter_native_errors() -> None:
    """Filters file descriptor 2 for the rest of the process.

    Does nothing in a process whose standard error somebody else looks after already (a notebook, a test).
    """
    if sys.stderr is None or sys.stderr is not sys.__stderr__:
        return
    own = os.dup(2)
    if relay := _relay(own):
        os.dup2(relay.stdin.fileno(), 2)
        relay.stdin.close()
        relay.returncode = 0  # nobody waits for it
        sys.stderr = open(own, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def _relay(output):
    """A `grep` that passes on to a descriptor what is no noise; None without one, or for a user who asked for noise by
    `TF_CPP_MIN_LOG_LEVEL`. It takes a process: a thread would die with this one before it had passed on why TensorFlow
    aborts."""
    grep, is_asked_for = shutil.which("grep"), os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
    if is_asked_for or grep is None or os.name != "posix":
        return None
    noise = [*NOISE] if any(map(os.path.exists, GPU_DRIVER_PLACES)) else [*NOISE, NOISE_WITHOUT_GPU]
    command = [grep, "-avE", "--line-buffered", "|".join(noise)]
    # It ends with the last process that has the descriptor; a group of its own keeps it from a Ctrl-C meant for us.
    streams = dict(stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL)
    return subprocess.Popen(command, **streams, process_group=0, env={**os.environ, "LC_ALL": "C"})

"""Ctrl-C and SIGTERM in commands that train."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from myxtts.distributed.workers import current_workers


def leave_in_order(code: int):
    """Ends this process after the other workers; does nothing without workers."""
    workers = current_workers()
    if workers.count > 1:
        workers.see_off()
        leave_at_once(code)


@contextmanager
def stops_on_signals(trainer) -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM set the trainer's `stop_requested`; a second signal stops at once.

    The trainer then finishes its step and writes a checkpoint. Before its first step, the signal ends the block.
    """
    NoStepYet = type("NoStepYet", (KeyboardInterrupt,), {})

    def request(number, frame):
        if trainer.stop_requested.is_set():
            raise KeyboardInterrupt
        trainer.stop_requested.set()
        last = "finishing the step and writing a checkpoint; press again to stop at once"
        follows = last if trainer.under_way else "stopping before the first step"
        # Not `print`, which is not reentrant: the signal may have interrupted one.
        os.write(sys.__stdout__.fileno(), f"\n{signal.Signals(number).name}: {follows}\n".encode())
        if not trainer.under_way:
            raise NoStepYet

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (NoStepYet, Exception):
        # TensorFlow may raise an error of its own instead of the interrupt.
        if trainer.under_way or not trainer.stop_requested.is_set():
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_at_once(code: int = 0):
    """Ends the process without Python's clean-up, which could wait for locks of interrupted code."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Ctrl-C and SIGTERM, for front ends that are a process of their own."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from myxtts.distributed.workers import current_workers


def leave_in_order(code: int):
    """Ends a process that is one of several workers, the others first; a single process continues."""
    workers = current_workers()
    if workers.count > 1:
        workers.see_off()
        leave_at_once(code)


@contextmanager
def stops_on_signals(trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM let the trainer finish its step and write a checkpoint; a second one stops at once.

    Before there is a step, such as while the first is traced, the first signal ends the block. A signal sets the
    trainer's `stop_requested`; its `under_way` says whether it has taken a step.
    """

    NoStepYet = type("NoStepYet", (KeyboardInterrupt,), {})

    def request(number, frame):
        if trainer.stop_requested.is_set():
            raise KeyboardInterrupt
        trainer.stop_requested.set()
        last = "finishing the step and writing a checkpoint; once more stops at once"
        follows = last if trainer.under_way else "stopping before the first step"
        # Not `print`: the signal may have struck in the middle of one, which cannot be entered twice.
        os.write(sys.__stdout__.fileno(), f"\n{signal.Signals(number).name}: {follows}\n".encode())
        if not trainer.under_way:
            raise NoStepYet

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (NoStepYet, Exception):
        # An error of TensorFlow's own may come out of its code instead of what interrupted it.
        if trainer.under_way or not trainer.stop_requested.is_set():
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_at_once(code: int = 0):
    """Ends the process without Python's clean-up: what was broken off may hold locks that it waits for."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

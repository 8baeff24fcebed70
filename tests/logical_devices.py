"""Runs tests in one helper process that has four logical CPU devices.

Devices are configured once per process, and the process that runs the suite has its own. The helper is started by the
first test that needs it and ends with the suite.
"""

import contextlib
import functools
import importlib
import multiprocessing
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_in_helper = False


def on_logical_devices(test):
    """Decorator that runs a module-level function in the helper process. Arguments and result must be picklable."""

    @functools.wraps(test)
    def run(*arguments, **keywords):
        if _in_helper:
            return test(*arguments, **keywords)
        return _helper().submit(_call, test.__module__, test.__qualname__, arguments, keywords).result(240)

    return run


@functools.cache
def _helper():
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _configure)


def _configure():
    global _in_helper
    _in_helper = True
    threading.Thread(target=_end_with_the_suite, daemon=True).start()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1")
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    from myxtts.devices.configuration import early_gpu_configuration

    with contextlib.redirect_stdout(None):
        early_gpu_configuration(virtual_devices=4)


def _end_with_the_suite():
    multiprocessing.parent_process().join()
    os._exit(1)


def _call(module, name, arguments, keywords):
    from myxtts.devices import configuration as devices

    devices._applied = None  # so that each test configures the devices, as a new process does
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


def plan_of(mode):
    """Returns the `DevicePlan` of `single`, `dual`, `isolated` or `mirrored` (two replicas) on the helper's devices."""
    from myxtts.devices.configuration import plan_devices

    if mode == "single":
        return plan_devices(num_gpus=0)
    return plan_devices(num_gpus=0, virtual_devices=3 if mode == "mirrored" else 2, memory_isolation=mode == "isolated")

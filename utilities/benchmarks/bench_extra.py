"""Packages of the extra `bench`, and what the operating system counts for processes."""

import importlib
import os
import subprocess
import sys
import threading
from types import ModuleType


def import_extra(module: str) -> ModuleType:
    """Imports a package of the extra `bench`; where it is missing, ends the command with what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        sys.exit(f'This benchmark needs {module}. Install it with: pip install -e ".[bench]"')


def process_state() -> tuple[int, int, int]:
    """Of this process: resident memory in bytes, threads, threads of Python."""
    process = import_extra("psutil").Process()
    return process.memory_info().rss, process.num_threads(), threading.active_count()


def cpu_seconds(process: subprocess.Popen) -> float:
    """Processor time that a process has used; 0 for one that has ended."""
    if process.poll() is not None:
        return 0.0
    times = import_extra("psutil").Process(process.pid).cpu_times()
    return times.user + times.system


def others_seconds() -> float:
    """Processor seconds that other processes have used since the machine started."""
    total = import_extra("psutil").cpu_times()
    return total.user + total.nice + total.system - sum(os.times()[:2])

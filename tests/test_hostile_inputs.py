"""Generated inputs for every parser of files from elsewhere: each is read or refused, in bounded time.

`MYXTTS_EXAMPLES=20000 python -m pytest tests/test_hostile_inputs.py` generates thousands more.
"""

import logging
import os
import signal
import time
import traceback

import pytest
from hostile_strategies import PARSERS
from hypothesis import HealthCheck, Phase, given, seed, settings

from myxtts.config.checks import UserError

MAX_SECONDS = 2.0
"""Errors that commands print as a message."""


class Hang(BaseException):
    """The limit of processor time for one input is exceeded."""


def read_once(reads, files, folder):
    """Returns the fault of reading one input; None if it was read or refused in time."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 10 * MAX_SECONDS)
    try:
        reads(folder)
    except (UserError, OSError) as error:
        return "a sentence of more than 2000 characters" if len(str(error)) > 2000 else None
    except Hang:
        return "it hung"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {place.filename.split('/')[-1]}:{place.lineno}: {error!s:.80}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - began
    return f"{took:.1f} s" if took > MAX_SECONDS else None


def faults_of(name, count, tmp_path):
    """Returns the faults of a parser on generated inputs, and the number of inputs."""
    strategy, reads = PARSERS[name]
    found, given_count = [], 0

    def read(files):
        nonlocal given_count
        given_count += 1
        if fault := read_once(reads, files, tmp_path / str(given_count)):
            found.append(fault)

    def hang(number, frame):
        raise Hang

    before = signal.signal(signal.SIGPROF, hang)
    quiet = dict(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    try:
        seed(0)(settings(max_examples=count, **quiet)(given(strategy)(lambda files: read(files))))()
    finally:
        signal.signal(signal.SIGPROF, before)
    return found, given_count


@pytest.mark.parametrize("name", PARSERS)
def test_generated_input_is_read_or_refused_in_bounded_time(name, tmp_path):
    logging.disable()
    try:
        found, count = faults_of(name, int(os.environ.get("MYXTTS_EXAMPLES", 40)), tmp_path)
    finally:
        logging.disable(logging.NOTSET)
    assert count >= 30 and not found

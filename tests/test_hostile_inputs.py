"""Generated inputs for every parser of files from elsewhere: each is read or refused, in bounded time.

`utilities/benchmarks/hostile_inputs.py` gives them thousands more.
"""

import logging
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "utilities" / "benchmarks")]

from hostile_inputs import PARSERS, judge  # noqa: E402


@pytest.mark.parametrize("name", PARSERS)
def test_generated_input_is_read_or_refused_in_bounded_time(name):
    logging.disable()
    try:
        found = judge(name, 40)
    finally:
        logging.disable(logging.NOTSET)
    assert found.count >= 30
    assert not {place: fault for place, (fault, _) in found.faults.items()}


def test_fault_of_a_parser_is_found(monkeypatch):
    def broken(folder):
        raise KeyError("of no file")

    monkeypatch.setitem(PARSERS, "text", (PARSERS["text"][0], broken))
    assert list(judge("text", 3).faults) == ["KeyError at test_hostile_inputs.py:30"]

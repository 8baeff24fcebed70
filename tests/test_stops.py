"""The stops benchmark: what ends a run comes out with its traceback, and what is not as it should be is found."""

import contextlib
import sys
from pathlib import Path

import pytest
from logical_devices import on_logical_devices, plan_of
from tiny import tiny_run_config

from myxtts.config.checks import UserError

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "utilities" / "benchmarks")]

KINDS = ("end of data", "reader", "features", "step")  # those that need no signal to the process that runs the suite


@on_logical_devices
def stopped(corpus, folder):
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "utilities" / "benchmarks")]
    from stops import Saboteur

    from myxtts.training.watching.measurement import open_trainer

    config = tiny_run_config(corpus, folder, model={"layers": 1}, data={"num_buckets": 1, "model_start_delay": 0.0})
    with contextlib.redirect_stdout(None):
        saboteur = Saboteur(*open_trainer(config, plan_of("dual"), folder))
        return {kind: saboteur.run(kind, 2, 0.0) for kind in KINDS}, saboteur.trainer.step


def test_runs_end_as_they_should_with_the_traceback_of_the_cause(tiny_corpus, tmp_path):
    stops, step = stopped(tiny_corpus, tmp_path)
    assert {kind: stop.fault for kind, stop in stops.items()} == dict.fromkeys(KINDS, "")
    assert all(stop.seconds >= 0 for stop in stops.values()) and step == 2


def test_late_stops_and_foreign_errors_are_faults():
    from stops import Saboteur, Stop, table

    assert Stop("step", 6.0, "").faults == "took 6.0 s" and not Stop("step", 4.0, "").faults
    assert Stop("step", 6.0, "no error came out").faults == "no error came out; took 6.0 s"
    fault = Saboteur.__new__(Saboteur)._fault
    assert fault("step", None) == "no error came out" and "without the traceback" in fault("step", ValueError("other"))
    assert "came out" in fault("end of data", ValueError("other")) and not fault("end of data", None)
    assert table([Stop("step", 1.0, ""), Stop("step", 7.0, "")]) == [["step", 2, "4.00 s", "7.00 s", 1]]


def test_too_few_stops_are_refused():
    from stops import parse

    with pytest.raises(UserError, match="--stops must be at least 6"):
        parse(["--stops", "2"])

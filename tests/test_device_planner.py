"""`--device-plan auto`: which plans are measured, which is taken, and what is said about it."""

import contextlib
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from logical_devices import on_logical_devices
from stand_in_machine import stand_in_machine
from tiny import tiny_run_config

from myxtts.cli.train import build_parser, config_from_arguments
from myxtts.config.checks import UserError
from myxtts.runs import device_choice as device_planner
from myxtts.runs.device_choice import Measured, candidates, choose, quickest_flags


def measured(**seconds):
    return [Measured(name, (f"--{name}",), step, "" if step else "out of memory") for name, step in seconds.items()]


def test_ways_to_use_the_devices():
    assert [name for name, _ in candidates(1)] == ["single"]
    assert dict(candidates(2)) == {
        "single": ("--virtual-devices", "0"),
        "dual": ("--data-gpu", "0", "--model-gpu", "1"),
    }
    assert dict(candidates(4))["mirrored"] == ("--data-gpu", "0", "--model-gpus", "1,2,3")


def test_quickest_is_taken_and_compared_with_single():
    best, lines = choose(measured(single=0.4, dual=0.25, mirrored=0.2))
    assert best.name == "mirrored"
    assert lines == [
        "  single: 400.0 ms per step",
        "  dual: 250.0 ms per step, 1.60 x the speed of single",
        "  mirrored: 200.0 ms per step, 2.00 x the speed of single",
        "Device plan auto: mirrored, the quickest of 3 that run.",
    ]


def test_dual_slower_than_single_is_reported_as_such():
    best, lines = choose(measured(single=0.2, dual=0.25))
    assert best.name == "single"
    assert any(line.startswith("  dual is slower than single here") for line in lines)


def test_plan_that_does_not_run_is_named_and_left_out():
    best, lines = choose(measured(single=0.3, dual=None))
    assert best.name == "single" and "  dual: does not run (out of memory)" in lines
    best, lines = choose(measured(single=None, dual=0.3))
    assert best.name == "dual" and lines[-1] == "Device plan auto: dual, the quickest; it alone runs."
    with pytest.raises(UserError, match="No device plan runs. single: out of memory"):
        choose(measured(single=None, dual=None))


@pytest.mark.parametrize(
    "flags", [["--data-gpu", "0"], ["--model-gpu", "1"], ["--model-gpus", "1,2"], ["--enable-memory-isolation"]]
)
def test_naming_devices_as_well_is_an_error(flags):
    arguments = build_parser().parse_args(["--train-data", "x", "--device-plan", "auto", *flags])
    with pytest.raises(UserError, match="--device-plan auto chooses the devices itself"):
        quickest_flags(arguments, config_from_arguments(arguments), [])


def test_each_plan_is_measured_in_a_process_with_its_flags(monkeypatch, capsys):
    started = []

    def run(command, **options):
        started.append(command)
        seconds = 0.2 if "--model-gpus" in command else 0.3 if "--model-gpu" in command else 0.5
        return subprocess.CompletedProcess(command, 0, f"chatter\n{json.dumps({'step_seconds': seconds})}\n", "")

    monkeypatch.setattr(device_planner.subprocess, "run", run)
    argv = ["--train-data", "x", "--virtual-devices", "3"]
    arguments = build_parser().parse_args(argv)
    flags = quickest_flags(arguments, config_from_arguments(arguments), argv)
    assert [command[1:3] for command in started] == [["-m", "myxtts.runs.device_choice"]] * 3
    assert [command[3:7] for command in started] == [argv] * 3
    assert flags == ("--data-gpu", "0", "--model-gpus", "1,2")
    assert "measuring 12 steps of single, dual, mirrored" in capsys.readouterr().out


def test_one_device_needs_no_measurement(monkeypatch, capsys):
    monkeypatch.setattr(device_planner, "measure", None)
    arguments = build_parser().parse_args(["--train-data", "x"])
    with stand_in_machine(1):
        assert quickest_flags(arguments, config_from_arguments(arguments), []) == ("--virtual-devices", "0")
    assert "nothing to choose" in capsys.readouterr().out


def test_failing_process_is_told_by_its_last_line():
    found = device_planner.measure("dual", ("--train-data", os.devnull + "/none", "--no-such-flag"), [])
    assert found.step_seconds is None and "--no-such-flag" in found.failure


@on_logical_devices
def measure_in_helper(argv):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        device_planner.measure_here(argv)
    return out.getvalue().splitlines()[-1]


def test_measuring_process_times_the_real_pipeline(tmp_path, tiny_corpus):
    settings = Path(tmp_path) / "tiny.yaml"  # JSON is YAML
    config = tiny_run_config(tiny_corpus, tmp_path / "run", model={"layers": 1}, data={"num_buckets": 1})
    settings.write_text(json.dumps(config.to_dict()))
    found = json.loads(measure_in_helper(["--config", str(settings), "--virtual-devices", "2"]))
    assert found["step_seconds"] > 0 and found["devices"].startswith("dual: ")

"""`--device-plan auto`: which plans are measured, which one is selected, and what is printed."""

import contextlib
import io
import json
import subprocess

import pytest
from logical_devices import on_logical_devices
from stand_in_machine import stand_in_machine
from tiny import tiny_run_config, untraced

from myxtts.cli.train import build_parser, config_from_arguments, main
from myxtts.config.checks import UserError
from myxtts.config.flags import start_options
from myxtts.devices.device_plan import plan_devices
from myxtts.runs import setup
from myxtts.runs.setup import choose, quickest_devices


def asked_for(*flags):
    """Configuration and device options of a command line, as the command passes them to `quickest_devices`."""
    arguments = build_parser().parse_args(["--train-data", "x", *flags])
    return config_from_arguments(arguments), start_options({**vars(arguments)}).devices


def test_fastest_working_plan_is_chosen():
    best, lines = choose({"single": 0.4, "dual": 0.25, "mirrored": "out of memory"})
    assert best == "dual" and "dual: 250.0 ms" in lines[1] and "does not run (out of memory)" in lines[2]
    assert choose({"single": 0.2, "dual": 0.25})[0] == "single"
    with pytest.raises(UserError, match="No device plan works. single: out of memory"):
        choose(dict.fromkeys(("single", "dual"), "out of memory"))


def test_each_plan_is_measured_in_a_process_with_its_devices(monkeypatch, capsys):
    started = []

    def run(command, **keywords):
        assert command[1:3] == ["-m", "myxtts.runs.setup"]
        request = json.loads(command[3])
        started.append(request)
        data, options = request["config"]["data"], request["options"]
        seconds = 0.2 if options.get("model_gpus") else 0.3 if data["model_gpu"] is not None else 0.5
        return subprocess.CompletedProcess(command, 0, f"chatter\n{json.dumps({'step_seconds': seconds})}\n", "")

    monkeypatch.setattr(setup.subprocess, "run", run)
    config, options = quickest_devices(*asked_for("--virtual-devices", "3"))
    assert [request["config"]["data"]["train_data"] for request in started] == ["x"] * 3
    assert [request["options"]["virtual_devices"] for request in started] == [0, 3, 3]
    assert (config.data.data_gpu, config.data.model_gpu, options["model_gpus"]) == (0, None, (1, 2))
    assert "measuring 12 steps of single, dual, mirrored" in capsys.readouterr().out
    for request in started:  # no limit of memory isolation counts as given in the new process
        gpus = {name: request["config"]["data"][name] for name in ("data_gpu", "model_gpu")}
        plan_devices(num_gpus=0, **{**request["options"], **gpus})


def test_one_device_needs_no_measurement(monkeypatch, capsys):
    monkeypatch.setattr(setup, "measure", None)
    config, options = asked_for()
    with stand_in_machine(1):
        assert quickest_devices(config, options) == (config, {**options, "virtual_devices": 0})
    assert "only one device" in capsys.readouterr().out


def test_workers_of_tf_config_are_refused_before_they_are_measured_as_one_process(monkeypatch, capsys):
    cluster = {"cluster": {"worker": ["127.0.0.1:23999", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setattr(setup, "measure", None)
    assert main(["--virtual-devices", "2", "--device-plan", "auto"]) == 2
    assert "or TF_CONFIG" in capsys.readouterr().err


def test_failing_process_is_reported_by_its_last_line():
    config, _ = asked_for()
    assert "needs both --data-gpu and --model-gpu" in setup.measure(config, {"virtual_devices": 2, "model_gpus": [7]})
    config.training.init_from = "missing"  # the model whose shape is measured
    assert "--init-from" in setup.measure(config, {})


@on_logical_devices
def measure_in_helper(request):
    out = io.StringIO()
    setup.MEASURED_STEPS = 2
    with contextlib.redirect_stdout(out), untraced():
        setup.measure_here(request)
    return out.getvalue().splitlines()[-1]


def test_measuring_process_times_the_real_pipeline(tmp_path, tiny_corpus):
    config = tiny_run_config(tiny_corpus, tmp_path / "run", data={"num_buckets": 1})
    found = json.loads(measure_in_helper(json.dumps({"config": config.to_dict(), "options": {"virtual_devices": 2}})))
    assert found["step_seconds"] > 0 and found["devices"].startswith("dual: ")

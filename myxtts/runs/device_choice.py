"""`--device-plan auto`: measures the ways to use the available devices and chooses the fastest.

A process configures its devices once, so each way is measured in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from myxtts.config.checks import UserError, say
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.devices.configuration import VIRTUAL_DEVICES_VARIABLE, count_gpus
from myxtts.runs.setup import set_up
from myxtts.storage.files import read_json, write_json

MEASURED_STEPS = 12
ROOT = Path(__file__).resolve().parents[2]


def quickest_devices(config: XTTSConfig, options: Mapping[str, object]) -> tuple[XTTSConfig, dict]:
    """Measures all ways to use the devices and prints the times; returns arguments of `set_up` for the fastest."""
    virtual = options.get("virtual_devices")
    virtual = int(os.environ.get(VIRTUAL_DEVICES_VARIABLE) or 0) if virtual is None else virtual
    count = virtual or count_gpus()
    ways = {
        "single": ({}, {"virtual_devices": 0}),
        "dual": ({"data_gpu": 0, "model_gpu": 1}, {}),
        "mirrored": ({"data_gpu": 0}, {"model_gpus": tuple(range(1, count))}),
    }
    requests = {
        name: (replace(config, data=replace(config.data, **gpus)), {**options, **devices})
        for name, (gpus, devices) in list(ways.items())[: max(1, count)]
    }
    if count < 2:
        say("Device plan auto: there is only one device to train on.")
        return requests["single"]
    note = " on virtual devices, which say nothing about the speed of GPUs" if virtual else ""
    say(f"Device plan auto: measuring {MEASURED_STEPS} steps of {', '.join(requests)}{note}...")
    best, lines = choose({name: measure(*request) for name, request in requests.items()})
    say("\n".join(lines))
    return requests[best]


def measure(config: XTTSConfig, options: Mapping[str, object]) -> float | str:
    """Median seconds of a training step, measured in a new process, or the error if it does not run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        write_json(request, {"config": config.to_dict(), "options": options})
        command = [sys.executable, "-m", "myxtts.runs.device_choice", str(request)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1])["step_seconds"]


def choose(measured: Mapping[str, float | str]) -> tuple[str, list[str]]:
    """Returns the name of the fastest way and lines with all results. Raises `UserError` if none of them runs."""
    times = {name: result for name, result in measured.items() if not isinstance(result, str)}
    if not times:
        raise UserError("No device plan runs. {}: {}".format(*next(iter(measured.items()))))
    best = min(times, key=times.get)
    lines = [
        f"  {name}: {1e3 * result:.1f} ms per step" if name in times else f"  {name}: does not run ({result})"
        for name, result in measured.items()
    ]
    return best, [*lines, f"Device plan auto: {best} is the fastest"]


def measure_here(path: str | Path):
    """Runs a request of `measure` in this process and prints the result as the last line, in JSON."""
    request = read_json(path)
    config, plan = set_up(config_from_dict(request["config"]), **request["options"])
    from myxtts.training.watching.measurement import measure_pipeline, open_trainer

    with tempfile.TemporaryDirectory() as folder:
        times = measure_pipeline(*open_trainer(config, plan, folder), MEASURED_STEPS)
    print(json.dumps({"devices": plan.describe(), "step_seconds": median(times.step_times)}))


if __name__ == "__main__":
    measure_here(sys.argv[1])

"""`--device-plan auto`: measures the ways to use the devices that are there and takes the quickest.

Each way is measured in a process of its own, since a process configures its devices once.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from myxtts.config.checks import UserError, say
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.devices.configuration import VIRTUAL_DEVICES_VARIABLE, count_gpus
from myxtts.runs.setup import set_up
from myxtts.storage.files import read_json, write_json

MEASURED_STEPS = 12
ROOT = Path(__file__).resolve().parents[2]


class Way(NamedTuple):
    """One way to use the devices, `single`, `dual` or `mirrored`: settings of `DataConfig`, options of `set_up`."""

    name: str
    gpus: Mapping[str, int] = {}
    options: Mapping[str, object] = {}

    def of(self, config: XTTSConfig, options: Mapping[str, object]) -> tuple[XTTSConfig, dict]:
        """Configuration and options that ask for it."""
        return replace(config, data=replace(config.data, **self.gpus)), {**options, **self.options}


class Measured(NamedTuple):
    """The median training step with a way to use the devices, or why it does not run."""

    way: Way
    step_seconds: float | None
    failure: str = ""


def candidates(num_devices: int) -> list[Way]:
    """The ways to use so many devices; the first prepares data where there are several."""
    single = Way("single", options={"virtual_devices": 0})
    dual = Way("dual", {"data_gpu": 0, "model_gpu": 1})
    mirrored = Way("mirrored", {"data_gpu": 0}, {"model_gpus": tuple(range(1, num_devices))})
    return [single, dual, mirrored][: max(1, num_devices)]


def quickest_devices(config: XTTSConfig, options: Mapping[str, object]) -> tuple[XTTSConfig, dict]:
    """Prints what was measured and which devices were chosen.

    Returns:
        The configuration and the keyword arguments of `setup.set_up`, now asking for the quickest devices.

    Raises:
        UserError: None of the ways to use the devices runs.
    """
    virtual = options.get("virtual_devices")
    virtual = int(os.environ.get(VIRTUAL_DEVICES_VARIABLE) or 0) if virtual is None else virtual
    ways = candidates(virtual or count_gpus())
    if len(ways) == 1:
        say("Device plan auto: there is one device to train on, so there is nothing to choose.")
        return ways[0].of(config, options)
    note = " on virtual devices, whose speed says nothing about GPUs" if virtual else ""
    names = ", ".join(way.name for way in ways)
    say(f"Device plan auto: measuring {MEASURED_STEPS} steps of {names}{note}...")
    best, lines = choose([measure(way, config, options) for way in ways])
    say("\n".join(lines))
    return best.of(config, options)


def measure(way: Way, config: XTTSConfig, options: Mapping[str, object]) -> Measured:
    """Times a way to use the devices, in a process of its own; arguments as in `quickest_devices`."""
    config, options = way.of(config, options)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        write_json(request, {"config": config.to_dict(), "options": options})
        command = [sys.executable, "-m", "myxtts.runs.device_choice", str(request)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        return Measured(way, None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return Measured(way, json.loads(done.stdout.splitlines()[-1])["step_seconds"])


def choose(measured: Sequence[Measured]) -> tuple[Way, list[str]]:
    """The quickest way of those that run, and lines that say why.

    Raises:
        UserError: None runs.
    """
    running = [one for one in measured if one.step_seconds is not None]
    if not running:
        raise UserError(f"No device plan runs. {measured[0].way.name}: {measured[0].failure}")
    best = min(running, key=lambda one: one.step_seconds).way
    lines = [
        f"  {way.name}: " + (f"{1e3 * seconds:.1f} ms per step" if seconds else f"does not run ({failure})")
        for way, seconds, failure in measured
    ]
    return best, [*lines, f"Device plan auto: {best.name}, the quickest"]


def measure_here(path: str | Path):
    """Body of the measuring process: reads what `measure` wrote, prints one line of JSON last."""
    request = read_json(path)
    config, plan = set_up(config_from_dict(request["config"]), **request["options"])
    from myxtts.training.watching.measurement import measure_pipeline, open_trainer

    with tempfile.TemporaryDirectory() as folder:
        times = measure_pipeline(*open_trainer(config, plan, folder), MEASURED_STEPS)
    print(json.dumps({"devices": plan.describe(), "step_seconds": median(times.step_times)}))


if __name__ == "__main__":
    measure_here(sys.argv[1])

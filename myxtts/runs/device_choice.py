"""`--device-plan auto`: measures the ways to use the devices that are there, each in a process of its own, and takes the
quickest. Devices are configured once per process, so they cannot be tried one after the other in one."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from myxtts.config.checks import UserError
from myxtts.devices.configuration import VIRTUAL_DEVICES_VARIABLE, count_gpus

MEASURED_STEPS = 12
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Measured:
    """One way to use the devices, and how long a training step takes with it."""

    name: str
    """`single`, `dual` or `mirrored`."""
    flags: tuple[str, ...]
    """Command-line flags that ask for it."""
    step_seconds: float | None
    """Median step; None when it does not run."""
    failure: str = ""
    """Why it does not run."""


def candidates(num_devices):
    """`(name, flags)` of the ways to use so many devices; the first prepares data where there are several."""
    ways = [("single", ("--virtual-devices", "0"))]
    if num_devices >= 2:
        ways.append(("dual", ("--data-gpu", "0", "--model-gpu", "1")))
    if num_devices >= 3:
        ways.append(("mirrored", ("--data-gpu", "0", "--model-gpus", ",".join(map(str, range(1, num_devices))))))
    return ways


def quickest_flags(arguments, config, argv):
    """The device flags of the quickest plan; prints what was measured and why that plan was taken.

    Args:
        arguments: The parsed command line.
        config: `XTTSConfig` that it asks for.
        argv: The command line itself, which the measurements are started with.

    Raises:
        UserError: Devices were also named, or no plan runs.
    """
    if (
        arguments.model_gpus
        or arguments.enable_memory_isolation
        or config.data.data_gpu is not None
        or config.data.model_gpu is not None
    ):
        raise UserError(
            "--device-plan auto chooses the devices itself. Leave out --data-gpu, --model-gpu, --model-gpus and "
            "--enable-memory-isolation, or leave out --device-plan."
        )
    virtual = arguments.virtual_devices
    if virtual is None:
        virtual = int(os.environ.get(VIRTUAL_DEVICES_VARIABLE) or 0)
    ways = candidates(virtual or count_gpus())
    if len(ways) == 1:
        print("Device plan auto: there is one device to train on, so there is nothing to choose.")
        return ways[0][1]
    standing_in = " on virtual devices, whose speed says nothing about GPUs" if virtual else ""
    print(
        f"Device plan auto: measuring {MEASURED_STEPS} steps of {', '.join(name for name, _ in ways)}{standing_in}...",
        flush=True,
    )
    measured = [measure(name, flags, argv) for name, flags in ways]
    best, lines = choose(measured)
    print("\n".join(lines), flush=True)
    return best.flags


def measure(name, flags, argv):
    """Times a plan in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "myxtts.runs.device_choice", *argv, *flags],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Measured(name, flags, None, last)
    return Measured(name, flags, json.loads(done.stdout.splitlines()[-1])["step_seconds"])


def choose(measured):
    """The quickest of the plans that run, and lines that say why.

    Raises:
        UserError: None runs.
    """
    running = [one for one in measured if one.step_seconds is not None]
    if not running:
        raise UserError(f"No device plan runs. {measured[0].name}: {measured[0].failure}")
    single = next((one for one in running if one.name == "single"), None)
    best = min(running, key=lambda one: one.step_seconds)
    lines = []
    for one in measured:
        if one.step_seconds is None:
            lines.append(f"  {one.name}: does not run ({one.failure})")
            continue
        against = (
            f", {single.step_seconds / one.step_seconds:.2f} x the speed of single" if single not in (None, one) else ""
        )
        lines.append(f"  {one.name}: {1e3 * one.step_seconds:.1f} ms per step{against}")
    for one in running:
        if single is not None and one.step_seconds > single.step_seconds:
            lines.append(
                f"  {one.name} is slower than single here: what the other device takes over is less than what "
                "handing it over costs."
            )
    lines.append(
        f"Device plan auto: {best.name}, the quickest"
        + (f" of {len(running)} that run." if len(running) > 1 else "; it alone runs.")
    )
    return best, lines


def measure_here(argv):
    """Body of the measuring process: prints one line of JSON last."""
    from myxtts.cli.train import build_parser, config_from_arguments, set_up

    arguments = build_parser().parse_args(argv)
    config, plan = set_up(config_from_arguments(arguments), arguments)
    from myxtts.training.measurement import measure_pipeline, open_trainer

    with tempfile.TemporaryDirectory() as folder:
        times = measure_pipeline(*open_trainer(config, plan, folder), MEASURED_STEPS)
    print(json.dumps({"devices": plan.describe(), "step_seconds": median(times.step_times)}))


if __name__ == "__main__":
    measure_here(sys.argv[1:])

"""Addresses and indexes of the worker processes of a run, from flags or the environment."""

import json
import re
from collections.abc import Mapping

from myxtts.config.checks import ConfigError, brief, require

LARGEST_PORT = 65535
FIRST_SLURM_PORT = 23000
SLURM_PORTS = 8000
"""Port range for workers under Slurm; the job id selects the port, so that jobs on the same machine differ."""
SLURM = ("slurm",)
"""Value of `--workers` that stands for the tasks of a Slurm job step."""
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")


def check_workers(addresses: tuple[str, ...], index: int) -> None:
    """Raises `ConfigError` unless all addresses are valid and different (or `SLURM`) and `index` is one of them."""
    if addresses == SLURM:
        return
    setting, count = "training.workers (--workers)", len(addresses)
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        rule = f"host:port,… with ports from 1 to {LARGEST_PORT}"
        require(match is not None and 0 < int(match[1]) <= LARGEST_PORT, setting, rule, brief(address))
    hint = "Give each worker its own port."
    require(len(set(addresses)) == count, setting, "different addresses", ",".join(addresses), hint)
    rule = f"from 0 to {count - 1}, the index of this worker in --workers" if count else "0 without --workers"
    require(0 <= index < max(1, count), "training.worker_index (--worker-index)", rule, index)


def workers_in(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int] | None:
    """Returns the addresses and the index from `TF_CONFIG`, as Kubeflow's TFJob sets it; None if it is not set.

    The `chief` job comes before the workers. Other jobs, such as parameter servers, are not supported.

    Raises:
        ConfigError: `TF_CONFIG` is invalid, or this process is neither chief nor worker.
    """
    try:
        found = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = found.get("cluster", {}), found.get("task", {})
        chiefs, workers = ([str(one) for one in cluster.get(job, [])] for job in ("chief", "worker"))
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"TF_CONFIG must be JSON with cluster and task: {error}.") from error
    if not cluster:
        return None
    if kind not in ("chief", "worker") or not 0 <= index < len(chiefs if kind == "chief" else workers):
        received = f"Received: task {brief(kind)} {index}. Unset it to train on one machine."
        raise ConfigError(f"TF_CONFIG must name this process as a chief or worker of its cluster. {received}")
    return (*chiefs, *workers), index + len(chiefs) * (kind == "worker")


def workers_of_slurm(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Returns the addresses of the tasks of a Slurm job step, and the index of this one, from `srun`'s variables.

    Raises:
        ConfigError: This process is not a task of a job step.
    """
    names = "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
    if missing := [name for name in names if not environment.get(name)]:
        hint = "Start it with srun inside a job, or give host:port,… with --worker-index."
        raise ConfigError(f"--workers slurm needs the variables of a job step, and {missing[0]} is not set. {hint}")
    index, job, nodes, tasks = (environment[name] for name in names)
    try:
        first = FIRST_SLURM_PORT + int(job) * 16 % SLURM_PORTS
        pairs = zip(_hosts(nodes), _counts(tasks), strict=True)
        return tuple(f"{host}:{first + place}" for host, count in pairs for place in range(count)), int(index)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--workers slurm cannot read the variables of this job step: {error}.") from error


def _hosts(names):
    """Expands a Slurm host list: `node[01-03,7],login` -> all names."""
    hosts = []
    for start, spans, end in re.findall(r"([\w.-]+)(?:\[([\d,-]+)\])?([\w.-]*)(?:,|$)", names):
        for span in spans.split(","):
            low, _, high = span.partition("-")
            numbers = range(int(low), int(high or low) + 1) if span else [""]
            hosts += [f"{start}{str(number).zfill(len(low))}{end}" for number in numbers]
    return hosts


def _counts(counts):
    """Expands Slurm's task counts: `2(x3),1` -> `[2, 2, 2, 1]`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", counts)
    return [int(count) for count, nodes in found for _ in range(int(nodes or 1))]

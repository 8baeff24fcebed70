"""Who the workers of a run are: their addresses, and which of them this process is, from flags or the environment."""

import json
import re
from collections.abc import Mapping

from myxtts.config.checks import ConfigError, brief, require

LARGEST_PORT = 65535
FIRST_SLURM_PORT = 23000
"""Of the ports that workers under Slurm take, by the number of their job so that two jobs on a machine differ."""
SLURM_PORTS = 8000
SLURM = ("slurm",)
"""In place of addresses: those of the tasks of a Slurm job step."""
_SETTING = "training.workers (--workers)"


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of `host:port`; the host of an IPv6 address without its brackets.

    Raises:
        ConfigError: It is no address.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", address)
    is_one = match is not None and 0 < int(match[2]) <= LARGEST_PORT
    require(is_one, _SETTING, f"host:port,… with ports from 1 to {LARGEST_PORT}", brief(address))
    return match[1].strip("[]"), int(match[2])


def check_workers(addresses: tuple[str, ...], index: int) -> None:
    """Raises `ConfigError` unless the addresses are those of workers, or `SLURM`, and `index` is one of them."""
    if addresses == SLURM:
        return
    for address in addresses:
        require(isinstance(address, str), _SETTING, "a list of host:port", brief(address))
        host_and_port(address)
    hint = "Give each worker a port of its own."
    require(len(set(addresses)) == len(addresses), _SETTING, "different addresses", ",".join(addresses), hint)
    count, name = len(addresses), "training.worker_index (--worker-index)"
    rule = f"from 0 to {count - 1}, the place of this worker in --workers" if count else "0 without --workers"
    require(0 <= index < max(1, count), name, rule, index)


def workers_in(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int] | None:
    """Addresses and index from the variable `TF_CONFIG`, as Kubeflow's TFJob and others set it; None without it.

    A job named `chief` comes before the workers. Parameter servers have no part in this kind of training.

    Raises:
        ConfigError: It is not what TensorFlow describes, or names this process as something else.
    """
    try:
        found = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = found.get("cluster", {}), found.get("task", {})
        chiefs, workers = ([str(one) for one in cluster.get(job, [])] for job in ("chief", "worker"))
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"TF_CONFIG must be JSON with cluster and task. It is not: {error}.") from error
    if not cluster:
        return None
    if kind not in ("chief", "worker") or not 0 <= index < len(chiefs if kind == "chief" else workers):
        rule = "TF_CONFIG must name this process as a chief or worker of its cluster"
        raise ConfigError(f"{rule}. Received: task {brief(kind)} {index}. Unset it to train on one machine.")
    return (*chiefs, *workers), index + len(chiefs) * (kind == "worker")


def workers_of_slurm(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Addresses and index of the tasks of a Slurm job step, as `srun` describes them in variables.

    Raises:
        ConfigError: This is no such task.
    """
    names = "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
    if missing := [name for name in names if not environment.get(name)]:
        hint = "Start it with srun inside a job, or name host:port,… with --worker-index."
        raise ConfigError(f"--workers slurm needs the variables of a job step, and {missing[0]} is not set. {hint}")
    index, job, nodes, tasks = (environment[name] for name in names)
    try:
        first = FIRST_SLURM_PORT + int(job) * 16 % SLURM_PORTS
        pairs = zip(_hosts(nodes), _counts(tasks), strict=True)
        return tuple(f"{host}:{first + place}" for host, count in pairs for place in range(count)), int(index)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--workers slurm cannot read the variables of this job step: {error}.") from error


def _hosts(names):
    """Slurm's `node[01-03,7],login` as the names of all hosts. Raises `ValueError` for another form."""
    hosts = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        match = re.fullmatch(r"([\w.-]+)(?:\[([\d,-]+)\])?([\w.-]*)", part)
        if match is None:
            raise ValueError(f"{part!r} is no list of hosts")
        for span in match[2].split(",") if match[2] else [""]:
            low, _, high = span.partition("-")
            numbers = [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)] if span else [""]
            hosts += [f"{match[1]}{number}{match[3]}" for number in numbers]
    return hosts


def _counts(counts):
    """Slurm's `2(x3),1` as `[2, 2, 2, 1]`. Raises `ValueError` for another form."""
    found = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"{part!r} is no number of tasks")
        found += [int(match[1])] * int(match[2] or 1)
    return found

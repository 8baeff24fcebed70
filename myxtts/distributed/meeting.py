"""How workers meet: each calls worker 0, which lets training begin once all are there and are of one kind."""

import errno
import importlib.metadata
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import myxtts
from myxtts.config.checks import UserError
from myxtts.config.workers import host_and_port, meeting_address
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import (
    ConnectedWorkers,
    Workers,
    current_workers,
    read_message,
    send_message,
    use_workers,
)
from myxtts.storage.files import new_hasher

RETRY_SECONDS = 0.3
HELLO_SECONDS = 10.0
"""For a caller to say who it is; whatever else calls this port is let go."""
WAYS_OUT = {
    "workers": "Give all the same --workers, in the same order.",
    "code": "Install the same version of MyXTTS on every machine.",
    "settings": "Start all with the same command line but for --worker-index.",
    "model devices": "Give each worker as many model devices of one kind.",
}
"""By what workers must have in common."""


def join_workers(
    addresses: tuple[str, ...],
    index: int,
    plan: DevicePlan,
    settings: dict,
    timeout_seconds: float,
    say: Callable[[str], Any] = print,
) -> Workers:
    """Waits until all workers are there, and makes TensorFlow's strategy over them. Once per process.

    To be called when the devices are configured and before TensorFlow's runtime starts. Without addresses this process
    works alone.

    Args:
        addresses: `host:port` of every worker, the same on all.
        index: Which of them this is.
        plan: Of this worker's devices.
        settings: JSON values that must be the same on all.
        timeout_seconds: Most time to wait for the others.

    Raises:
        UserError: One does not come, cannot be reached or does not fit the others; a port is taken.
    """
    current = current_workers()
    if not addresses or current.addresses == addresses:
        return current
    facts = {"workers": list(addresses), "code": code_digest(), "settings": settings}
    facts |= {"model devices": [name.strip("/").split(":")[0] for name in plan.model_devices]}
    facts |= {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
    require_free_port(addresses, index)
    workers = meet(addresses, index, facts, timeout_seconds, say)
    from myxtts.distributed.cluster import make_strategy

    workers.strategy = make_strategy(addresses, index, plan)
    use_workers(workers)
    return workers


def code_digest() -> str:
    """Identifies the package's code: its version and content."""
    hasher, root = new_hasher(6), Path(myxtts.__file__).parent
    for path in sorted(root.rglob("*.py")):
        hasher.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return f"{myxtts.__version__} ({hasher.hexdigest()})"


def require_free_port(addresses: tuple[str, ...], index: int) -> None:
    """Raises `UserError` if another program of this machine has this worker's port."""
    host, port = host_and_port(addresses[index])
    try:
        _bound(host, port).close()
    except OSError as error:
        raise _taken(addresses[index], port, index, error) from error


def meet(
    addresses: tuple[str, ...], index: int, facts: dict, timeout_seconds: float, say: Callable[[str], Any] = print
) -> ConnectedWorkers:
    """Connects the workers; see `join_workers`. All `facts` must be equal to the chief's."""
    meeting, deadline = meeting_address(addresses), time.monotonic() + timeout_seconds
    if index == 0:
        return ConnectedWorkers(addresses, 0, _receive(addresses, meeting, facts, deadline, say))
    return ConnectedWorkers(addresses, index, {0: _call(addresses, index, meeting, facts, deadline, say)})


def _receive(addresses, meeting, facts, deadline, say):
    """The chief's part: lines by worker, once all are there."""
    try:
        listener = _bound(*meeting)
    except OSError as error:
        raise _taken(addresses[0], meeting[1], 0, error) from error
    lines, homes, waited = {}, {}, deadline - time.monotonic()
    say(f"Worker 0 of {len(addresses)}: waiting for the others at {meeting[0]}:{meeting[1]}")
    try:
        with listener:
            listener.listen(len(addresses) + 8)
            while len(lines) < len(addresses) - 1:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                line, home = listener.accept()
                number, theirs = _hello(line)
                if number is None:
                    line.close()
                    continue
                if number in lines and _has_ended(lines[number]):
                    homes.pop(number)  # started again meanwhile
                refusal = _refusal(addresses, number, home[0], homes, theirs, facts)
                if refusal:
                    lines[f"refused {number}"] = line
                    raise UserError(refusal)
                lines[number], homes[number] = line, home[0]
                say(f"Worker {number} of {len(addresses)} is there ({addresses[number]})")
        for line in lines.values():
            send_message(line, {"welcome": True})
        return lines
    except TimeoutError:
        missing = [f"{place} ({addresses[place]})" for place in range(1, len(addresses)) if place not in lines]
        which = f"Worker {missing[0]} has" if len(missing) == 1 else f"Workers {', '.join(missing)} have"
        way_out = (
            f"Start each with the same --workers and its --worker-index, and let port {meeting[1]} of {meeting[0]}"
        )
        told = f"{which} not come within {waited:.0f} s. {way_out} be reached from there"
        _refuse_all(lines, told)
        raise UserError(f"{told}; a longer training.worker_timeout_seconds waits longer.") from None
    except UserError as error:
        _refuse_all(lines, str(error))
        raise


def _hello(line):
    """Index and facts of who calls; None, None where it is no worker."""
    line.settimeout(HELLO_SECONDS)
    try:
        hello = read_message(line)
        return int(hello["index"]), dict(hello["facts"])
    except (OSError, ValueError, LookupError, TypeError):
        return None, None


def _has_ended(line):
    try:
        return bool(select.select([line], [], [], 0)[0]) and line.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _refusal(addresses, number, home, homes, theirs, facts):
    """Why a worker cannot take part; None where it can."""
    if number in homes or not 0 < number < len(addresses):
        first = homes.get(number, "this machine")
        return (
            f"Two workers have --worker-index {number}: one from {first}, one from {home}. "
            f"Give each its own, from 0 to {len(addresses) - 1}."
        )
    for name, value in facts.items():
        if theirs.get(name) != value:
            told = _difference(value, theirs.get(name))
            way_out = WAYS_OUT.get(name, f"Install one version of {name} on every machine.")
            return f"Worker {number} ({home}) has other {name} than worker 0: {told}. {way_out}"
    return None


def _difference(ours, theirs):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        name = min(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        return f"{name} is {theirs.get(name)} there and {ours.get(name)} here"
    return f"{theirs} there, {ours} here"


def _refuse_all(lines, why):
    for line in lines.values():
        try:
            send_message(line, {"refuse": why})
        except OSError:
            continue


def _call(addresses, index, meeting, facts, deadline, say):
    """The others' part: the line to the chief."""
    say(f"Worker {index} of {len(addresses)}: calling worker 0 at {meeting[0]}:{meeting[1]}")
    began = time.monotonic()
    while True:
        try:
            line = socket.create_connection(meeting, timeout=max(1.0, min(HELLO_SECONDS, deadline - began)))
            send_message(line, {"index": index, "facts": facts})
            line.settimeout(max(1.0, deadline - time.monotonic()) + HELLO_SECONDS)
            answer = read_message(line)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                where = f"{meeting[0]}:{meeting[1]}, the port after its own in --workers"
                way_out = "Start it, check the name, and let that port be reached from here"
                waited = f"within {time.monotonic() - began:.0f} s: {error.strerror or error}"
                raise UserError(f"Worker 0 cannot be reached at {where}, {waited}. {way_out}.") from error
            time.sleep(RETRY_SECONDS)
        except ValueError as error:
            raise UserError(f"What answers at {meeting[0]}:{meeting[1]} is no worker of MyXTTS: {error}.") from error
    if "refuse" in answer:
        raise UserError(str(answer["refuse"]))
    return line


def _bound(host, port):
    """A socket at an address of this machine; at all of them where the name is of none, as behind a translation."""
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            bound.close()
            raise
        bound.bind(("", port))
    return bound


def _taken(address, port, index, error):
    if isinstance(error, socket.gaierror):
        return UserError(f"--workers: the name of worker {index}, {address}, is not known here: {error.strerror}.")
    cause = f"by another worker with --worker-index {index}, or by another program"
    return UserError(
        f"Port {port} for worker {index} ({address}) cannot be had on this machine: {error.strerror}. It may be taken "
        f"{cause}. Give each worker its own index, or other ports in --workers."
    )

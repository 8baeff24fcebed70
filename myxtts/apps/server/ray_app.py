"""The server as an application of Ray Serve, which runs as many replicas as there is work for.

    serve run myxtts.apps.server.ray_app:application checkpoint=runs/mine voices=voices

The arguments are the flags of `myxtts serve`. Ray knows how many replicas there are, on which devices, and who asks
which of them; a replica knows nothing of the others.
"""

import argparse
import time
from typing import Any

from myxtts.apps.server.options import add_options, check_options
from myxtts.config.checks import UserError

OF_RAY = ("host", "port", "grace_seconds", "wyoming_port", "wyoming_host", "ui", "api_key", "device")
"""Flags of a server that is a process of its own."""
NUM_CPUS = 2
"""Of a replica: one draws codes while the other makes sound."""
ONGOING_REQUESTS = 8
"""Of a replica, which Ray aims at: as many texts are spoken together."""
MOST_ONGOING_REQUESTS = 40
"""Of a replica, speaking and waiting, before Ray lets requests wait elsewhere."""


def application(flags: dict[str, Any]) -> Any:
    """The application of Ray Serve for flags of `myxtts serve`, such as `{"checkpoint": "runs/mine", "queue": 16}`.

    Raises:
        UserError: A flag is unknown, has a wrong value, or is not for replicas.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise UserError('This needs Ray Serve. Install it with: pip install "myxtts[ray]"') from error
    words = command_line(flags)
    check_options(parsed(words))

    def build():
        return open_replica(words)

    @serve.deployment(
        name="speech",
        ray_actor_options={"num_cpus": NUM_CPUS},
        max_ongoing_requests=MOST_ONGOING_REQUESTS,
        autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": ONGOING_REQUESTS},
    )
    @serve.ingress(build)
    class Replica:
        """One server, without an address."""

        def check_health(self):
            if not self.app.state.speaker.alive:
                raise RuntimeError("The thread that speaks has ended.")

    return Replica.bind()


def command_line(flags: dict[str, Any]) -> list[str]:
    """The words of `myxtts serve` for flags by name; of those that are only given or not, True gives them."""
    words = []
    for name, value in flags.items():
        name = name.replace("-", "_")
        if name in OF_RAY:
            raise UserError(
                f"{name} is for a server that is a process of its own; here Ray settles it (docs/serving.md)."
            )
        if value is not False and str(value).lower() != "false":
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True or str(value).lower() == "true" else [str(value)]
    return words


def parsed(words: list[str]) -> argparse.Namespace:
    """The options of a server; raises `UserError` for what is none."""
    parser = _Parser(prog="myxtts serve", allow_abbrev=False)
    add_options(parser)
    return parser.parse_args(words)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message[:1].upper()}{message[1:]}. `myxtts serve --help` lists the options.")


def open_replica(words: list[str]) -> Any:
    """The ASGI application of one replica, in its process; it has started once it is warm."""
    from myxtts.apps.server.opening import open_model
    from myxtts.apps.server.serving import log_lines

    log_lines()
    arguments = parsed(words)
    app, speaker, _, _ = open_model(arguments, check_options(arguments), wait_until_warm)
    app.state.speaker = speaker
    return app


def wait_until_warm(speaker: Any) -> None:
    """Returns once a speaker takes texts; it must not end before."""
    while not speaker.ready:
        if not speaker.alive:
            raise RuntimeError("The model could not be made ready; the log says why.")
        time.sleep(0.05)

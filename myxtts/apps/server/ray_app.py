"""The server as an application of Ray Serve, which runs as many replicas as there is work for.

    serve run myxtts.apps.server.ray_app:application checkpoint=runs/mine voices=voices

The arguments are the flags of `myxtts serve`. Ray decides how many replicas there are, on which devices, and which of
them gets a request; a replica knows nothing of the others.
"""

import time
from typing import Any

from myxtts.apps.server.options import build_parser, check_options
from myxtts.config.checks import UserError

OF_RAY = tuple("host port max_connections grace_seconds wyoming_port wyoming_host ui api_key device".split())
"""Flags of a server that is a process of its own."""


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
    check_options(build_parser().parse_args(words))

    @serve.deployment(
        name="speech",
        ray_actor_options={"num_cpus": 2},  # one samples codes while the other makes audio
        max_ongoing_requests=40,
        autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8},
    )
    @serve.ingress(lambda: open_replica(words))
    class Replica:
        """A server replica that Ray Serve routes requests to."""

        def check_health(self):
            if not self.app.state.speaker.alive:
                raise RuntimeError("The thread that speaks has ended.")

    return Replica.bind()


def command_line(flags: dict[str, Any]) -> list[str]:
    """The words of `myxtts serve` for flags by name; True stands for a flag that has no value."""
    words = []
    for name, value in flags.items():
        name = name.replace("-", "_")
        if name in OF_RAY:
            raise UserError(f"{name} is not for replicas: Ray settles it (docs/serving.md).")
        if str(value).lower() != "false":
            words.append(f"--{name.replace('_', '-')}")
            words += [] if str(value).lower() == "true" else [str(value)]
    return words


def open_replica(words: list[str]) -> Any:
    """The ASGI application of one replica, in its process, once it is warm."""
    from myxtts.apps.server.serving import log_as_json, open_model

    log_as_json()
    arguments = build_parser().parse_args(words)
    app, speaker, _, _ = open_model(arguments, check_options(arguments))
    speaker.start()
    while not speaker.ready:
        if not speaker.alive:
            raise RuntimeError("The model could not be made ready; the log says why.")
        time.sleep(0.05)
    app.state.speaker = speaker
    return app

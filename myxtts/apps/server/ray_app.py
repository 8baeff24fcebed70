"""The server as an application of Ray Serve, which scales the number of replicas with the load.

    serve run myxtts.apps.server.ray_app:application checkpoint=runs/mine voices=voices

The arguments are the flags of `myxtts serve`. Ray decides how many replicas run, on which devices, and which replica
gets a request; replicas are independent of each other.
"""

import time
from typing import Any

from myxtts.apps.server.options import build_parser, check_options
from myxtts.config.checks import UserError, needing

OF_RAY = tuple("host port max_connections grace_seconds wyoming_port wyoming_host ui api_key device".split())
"""Flags of `myxtts serve` that `command_line` refuses, because Ray manages them or replicas do not support them."""


def application(flags: dict[str, Any]) -> Any:
    """Builds a Ray Serve application from flags of `myxtts serve`, such as `{"checkpoint": "runs/mine", "queue": 16}`.

    Raises `UserError` if Ray is not installed, or if a flag is unknown, invalid or forbidden for replicas (`OF_RAY`).
    """
    with needing('This needs Ray Serve. Install it with: pip install "myxtts[ray]"'):
        from ray import serve
    words = command_line(flags)
    check_options(build_parser().parse_args(words))

    @serve.deployment(
        name="speech",
        ray_actor_options={"num_cpus": 2},  # one CPU samples codes while the other decodes audio
        max_ongoing_requests=40,
        autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8},
    )
    @serve.ingress(lambda: open_replica(words))
    class Replica:
        def check_health(self):
            if not self.app.state.speaker.alive:
                raise RuntimeError("The speaker's thread has ended.")

    return Replica.bind()


def command_line(flags: dict[str, Any]) -> list[str]:
    """Converts flags to arguments of `myxtts serve`. Omits flags that are False or None. A True flag gets no value."""
    words = []
    for name, value in flags.items():
        name = name.replace("-", "_")
        if name in OF_RAY:
            raise UserError(f"{name} is not available for replicas; see docs/serving.md.")
        values = [*value] if isinstance(value, (list, tuple)) else [value]
        if (given := str(value).lower()) != "false" and value is not None and values:
            words += [f"--{name.replace('_', '-')}", *map(str, values if given != "true" else [])]
    return words


def open_replica(words: list[str]) -> Any:
    """Loads and warms up the model in a replica process; returns the ASGI app. `words` are flags of `myxtts serve`."""
    from myxtts.apps.server.serving import log_as_json, open_model

    log_as_json()
    arguments = build_parser().parse_args(words)
    app, speaker, _, _ = open_model(arguments, check_options(arguments))
    speaker.start()
    while not speaker.ready:
        if not speaker.alive:
            raise RuntimeError("The warm-up of the model failed. The reason is in the log.")
        time.sleep(0.05)
    app.state.speaker = speaker
    return app

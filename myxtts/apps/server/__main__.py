"""`myxtts serve`: serves a model over HTTP."""

import os
import secrets
import signal
import sys
import threading
from pathlib import Path

from myxtts.apps.server.options import build_parser, check_options
from myxtts.cli.errors import exits_with_sentence, open_port
from myxtts.config.checks import needing


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Runs the server until it is stopped; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    key = check_options(arguments)
    with open_port("--port", arguments.host, arguments.port):  # before the model is loaded, which takes long
        open_port("--wyoming-port", arguments.wyoming_host, arguments.wyoming_port or 0).close()
    with needing('The server needs: pip install "myxtts[server]" ({} is missing.)'):
        from myxtts.apps.server.serving import Serving, log_as_json, open_model

        if arguments.wyoming_port is not None:
            from myxtts.apps.server.wyoming_protocol import serve_wyoming
    log_as_json()
    app, speaker, voices, settings = open_model(arguments, key)
    wyoming, listening = None, open_port("--port", arguments.host, arguments.port)
    if arguments.wyoming_port is not None:
        place = open_port("--wyoming-port", arguments.wyoming_host, arguments.wyoming_port)
        wyoming = serve_wyoming(place, speaker, voices, settings)
    if arguments.ui:
        host = f"[{arguments.host.strip('[]')}]" if ":" in arguments.host else arguments.host
        _mount_page(app, Path(arguments.ui), key, f"http://{host}:{listening.getsockname()[1]}")
    serving = Serving(app, speaker, arguments.max_connections, arguments.grace_seconds, wyoming)

    def end(number, frame):
        # Python's cleanup would crash during the warm-up, and would wait for the page's threads.
        if speaker.alive or arguments.ui:
            os._exit(128 + number)
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
    serving.run([listening])  # after the shutdown, raises the caught signals again
    return 0 if serving.started else 1


def _mount_page(app, home, key, address):
    with needing('--ui needs the extra "ui": pip install "myxtts[ui]" ({} is missing.)'):
        from myxtts.apps.studio.app import mount_page
        from myxtts.apps.studio.studio import Studio
    token = None if key else secrets.token_urlsafe(24)
    mount_page(app, Studio(home), key, token)
    print(f"The web page is at {address}/ui/{f'?token={token}' if token else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`myxtts ui`: serves a web page for training models and synthesizing speech."""

import os
import secrets
import signal
import sys
import threading
from pathlib import Path

from myxtts.cli.arguments import EXAMPLES, PlainParser
from myxtts.cli.errors import exits_with_sentence, open_port, require_output
from myxtts.config.checks import UserError, needing, printable
from myxtts.storage.base_model import FILE, KINDS, require_kind

PASSWORD_VARIABLE = "MYXTTS_UI_PASSWORD"


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Serves the page until the process is stopped. Training runs that were started on the page continue."""
    parser = PlainParser(prog="myxtts ui", description="Train and speak in the browser, on this machine.")
    parser.add_argument("--runs", metavar="FOLDER", default="runs", help="folder with a folder for each run")
    parser.add_argument("--host", default="127.0.0.1", help=EXAMPLES["host of ui"])
    parser.add_argument("--port", type=int, default=7860, help="listen port; 0 picks a free one")
    parser.add_argument("--no-token", action="store_true", help="let every user of this machine open the web page")
    arguments = parser.parse_args(argv)
    password = os.environ.get(PASSWORD_VARIABLE) or None
    require_output("--runs", arguments.runs, makes_folders=True)
    require_kind(Path(arguments.runs), "--runs", {*KINDS} - {FILE}, "the folder that contains the runs")
    if arguments.host not in ("127.0.0.1", "localhost", "::1") and not password:
        raise UserError(f"--host {arguments.host} needs a password. Set {PASSWORD_VARIABLE}.")
    listener = open_port("--port", arguments.host, arguments.port)
    made = "" if os.path.isdir(arguments.runs) else f" with the new folder {printable(arguments.runs)}"
    print(f"Starting the web page{made} …", flush=True)  # Gradio takes seconds to import, on a busy machine a minute
    with needing('The web page needs: pip install "myxtts[ui]" ({} is missing.)'):
        import uvicorn

        from myxtts.apps.studio.app import make_page_app
        from myxtts.apps.studio.studio import Studio
    token = None if arguments.no_token or password else secrets.token_urlsafe(24)
    app, query = make_page_app(Studio(Path(arguments.runs)), password, token), f"?token={token}" if token else ""
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"Open http://{host}:{listener.getsockname()[1]}/{query} (Ctrl-C stops it; runs continue)", flush=True)
    # After the shutdown, uvicorn raises the signals again. Python would wait for Gradio's threads that still speak.
    for number in (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ():
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    # An open page holds a connection; uvicorn would log its end as an error with a traceback.
    uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2)).run([listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`myxtts serve`: a model as an HTTP server."""

import argparse
import sys
from pathlib import Path

from myxtts.apps.server.options import add_options, check_options
from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import UserError

EXTRA = 'The server needs the packages of the extra "server". Install them with: pip install "myxtts[server]"'
EXAMPLES = """
examples:
  myxtts serve --checkpoint runs/mine --voices voices
  curl http://127.0.0.1:8000/v1/audio/speech -H "Content-Type: application/json" \\
      -d '{"model": "tts-1", "input": "Good morning.", "voice": "me", "response_format": "wav"}' --output out.wav

A voice is a file NAME.voice, NAME.wav, NAME.flac, NAME.mp3 or NAME.ogg in the folder of --voices, or a speaker that the
model was trained on. /docs says what a request may hold.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts serve`."""
    about = "Serve a model over HTTP, as OpenAI's clients expect it."
    parser = PlainParser(prog="myxtts serve", description=about, epilog=EXAMPLES)
    add_options(parser)
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Serves until it is told to stop."""
    arguments = build_parser().parse_args(argv)
    key = check_options(arguments)
    from myxtts.devices.tensorflow_start import filter_native_errors

    filter_native_errors()  # what follows imports TensorFlow
    try:
        from myxtts.apps.server.serving import check_bind
    except ModuleNotFoundError as error:
        raise UserError(f"{EXTRA} ({error.name} is missing.)") from error
    check_bind(arguments.host, arguments.port, key)
    return serve(arguments, key)


def serve(arguments: argparse.Namespace, key: str | None) -> int:
    """Loads the model and runs the server."""
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.apps.server.opening import open_model
    from myxtts.apps.server.serving import Serving, log_lines

    log_lines()
    app, speaker, voices, settings = open_model(arguments, key)
    place, besides = (arguments.host, arguments.port, arguments.grace_seconds), []
    if arguments.wyoming_port is not None:
        from myxtts.apps.server.wyoming_protocol import WyomingServer

        wyoming = WyomingServer(speaker, voices, settings.language, settings.max_characters)
        besides.append(wyoming.serve(arguments.wyoming_host, arguments.wyoming_port))
    if arguments.ui:
        _mount_page(app, Path(arguments.ui), key)
    serving = Serving(app, speaker, *place, besides)
    serving.run()
    return 0 if serving.started else 1


def _mount_page(app, home, key):
    try:
        from myxtts.apps.studio.app import mount_page
        from myxtts.apps.studio.studio import Studio
    except ModuleNotFoundError as error:
        raise UserError(f'--ui needs the extra "ui": pip install "myxtts[ui]" ({error.name} is missing.)') from error
    home.mkdir(parents=True, exist_ok=True)
    mount_page(app, Studio(home), key)


if __name__ == "__main__":
    sys.exit(main())

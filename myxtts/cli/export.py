"""`myxtts export`: a trained model as files that speak without this project."""

import argparse
from pathlib import Path

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError

EXAMPLES = """
examples:
  myxtts export --checkpoint runs/mine --format onnx --output exported
  myxtts export --checkpoint runs/mine --format onnx --weights int8 --output exported
  python exported/speak.py --text "Good morning." --voice emma --output morning.wav

Every file is loaded in its engine and compared with the model before the folder appears.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts export`."""
    description = "Write a trained model as files that speak without this project."
    parser = PlainParser(prog="myxtts export", description=description, epilog=EXAMPLES)
    checkpoint = "folder of a training run or of `myxtts convert`, hf://owner/name[@revision], or base"
    parser.add_argument("--checkpoint", metavar="FOLDER", help=checkpoint)
    parser.add_argument("--accept-licence", action="store_true", help="of a model of the hub, without being asked")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to export")
    parser.add_argument("--format", default="onnx", help="onnx, the only one")
    parser.add_argument("--weights", default="float32", help="float32, or int8 for the GPT's matrices")
    parser.add_argument("--output", metavar="FOLDER", help="folder to write, empty or not there")
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Exports, and prints what was compared."""
    arguments = build_parser().parse_args(argv)
    for name in ("checkpoint", "output"):
        if not getattr(arguments, name):
            raise UserError(f"--{name} must name a folder. myxtts export --help has examples.")
    require_output("--output", arguments.output, makes_folders=True)

    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.interchange.hub.fetching import local_folder
    from myxtts.interchange.onnx.exporting import export_model
    from myxtts.utils.commons import setup_logging

    configure_for_speech()
    folder = local_folder(arguments.checkpoint, arguments.accept_licence)
    setup_logging()
    output = Path(arguments.output)
    export_model(folder, output, arguments.format, arguments.weights, arguments.which, tell=print)
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        print(f"Wrote {path}: {path.stat().st_size / 1e6:.2f} MB")
    return 0

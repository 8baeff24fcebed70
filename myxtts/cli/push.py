"""`myxtts push`: a model to the Hugging Face hub, with a card that says data, steps and scores."""

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence

EXAMPLES = """examples:
  hf auth login
  myxtts push runs/mine hf://emma/persian-voice --private --licence cc-by-4.0
  myxtts say --checkpoint hf://emma/persian-voice --reference-audio me.wav --text "Good morning."

Paths of this machine and recordings of the speakers stay here. --card shows the card and uploads nothing.
"""


def build_parser() -> PlainParser:
    """The command line of `myxtts push`."""
    description = "Upload the model in a folder to the Hugging Face hub, with a model card."
    parser = PlainParser(prog="myxtts push", description=description, epilog=EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="folder of a training run, or of `myxtts convert`")
    parser.add_argument("target", metavar="hf://owner/name", help="where to; made if need be. @branch may follow")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to upload")
    parser.add_argument("--private", action="store_true", help="of a repository that is made now")
    parser.add_argument("--licence", metavar="ID", help="for the card, such as cc-by-4.0")
    parser.add_argument("--card", action="store_true", help="only show the card")
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Uploads, or shows the card; returns the exit code."""
    from myxtts.interchange.hub.fetching import import_hub, parse_hub_name
    from myxtts.interchange.hub.uploading import model_card
    from myxtts.storage.provenance import read_config

    arguments = build_parser().parse_args(argv)
    repository, _ = parse_hub_name(arguments.target)
    if arguments.card:
        folder = Path(arguments.folder)
        print(model_card(repository, read_config(folder), folder, arguments.licence), end="")
        return 0
    import_hub()  # before the model is read
    from myxtts.inference.loading import load_preset

    model = load_preset(arguments.folder, arguments.which)
    print(f"Wrote {model.push_to_hub(arguments.target, arguments.private, arguments.licence)}")
    return 0

"""`myxtts train-aligner`: what finds a transcript in a recording, learned from a data set of one's own."""

from collections.abc import Sequence
from pathlib import Path

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, require

EXAMPLES = """example, for any language that is written with letters:
  myxtts make-dataset first_hour.wav --subtitles first_hour.srt --output set
  myxtts train-aligner set --output aligner
  myxtts make-dataset rest.wav --transcript rest.txt --aligner aligner/letters.onnx --output set
"""


def build_parser() -> PlainParser:
    """The command line of `myxtts train-aligner`."""
    description = "Learn which letter is spoken when, from clips with their texts."
    parser = PlainParser(prog="myxtts train-aligner", description=description, epilog=EXAMPLES)
    parser.add_argument("data", metavar="DIR", help="data set, as --train-data takes it; an hour of it is enough")
    parser.add_argument("--output", required=True, metavar="DIR", help="new folder for letters.onnx and vocab.json")
    parser.add_argument("--language", default="en", help="of clips that do not name theirs")
    parser.add_argument("--seed", type=int, default=0)
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Learns and writes; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    output = Path(arguments.output)
    require(0 <= arguments.seed < 2**31, "--seed", "0 to 2147483647", arguments.seed)
    require_output("--output", arguments.output, makes_folders=True)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output must be a folder that is empty or not there. Received: {output}.")
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.apps.datasets.letter_training import NETWORK_FILE, train_aligner

    tell = lambda line: print(line, flush=True)
    outcome = train_aligner(arguments.data, output, arguments.language, arguments.seed, tell=tell)
    judged = f"Of {outcome.held} clips that it did not learn from it reads {outcome.letter_errors:.0%} of the letters"
    print(f"{judged} wrong, believes the own text of {outcome.heard} and that of another clip of {outcome.misheard}.")
    if not outcome.finds_sentences:
        print(
            "That is too little to find sentences by: more speech is needed, or texts and clips do not belong together."
        )
    elif not outcome.misses_others:
        print("It finds what is there, and does not tell what is not: for that it needs more speech.")
    print(f"Wrote {output / NETWORK_FILE}. Use it with: myxtts make-dataset … --aligner {output / NETWORK_FILE}")
    return 0

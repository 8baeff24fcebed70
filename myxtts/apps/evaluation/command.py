"""`myxtts evaluate`: how well models speak, side by side, with recordings to compare with."""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from myxtts.apps.evaluation.subjects import JSON_FILE, PAGE, check_output, subjects
from myxtts.cli.arguments import PlainParser, keywords
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, counted, printable, require
from myxtts.devices.kinds import check_device
from myxtts.inference.choices import add_choices
from myxtts.storage.base_model import model_name
from myxtts.storage.files import read_json

SENTENCES, QUICK_SENTENCES, MOST_SENTENCES = 200, 30, 10_000
EXAMPLES = """
examples:
  myxtts evaluate runs/mine --quick
  myxtts evaluate runs/a runs/b runs/b@last --data recordings --recognizer base
  myxtts evaluate runs/mine --texts lines.txt --voices me.wav --recognizer "./hear.sh {wav}"
  myxtts evaluate spoken_by_others --data recordings

A folder of spoken files has a metadata.csv with their texts. Sentences are clips that were not trained on, the same for
all that are compared; docs/evaluation.md says what each figure is.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts evaluate`."""
    parser = PlainParser(
        prog="myxtts evaluate", description="Judge how well models speak.", epilog=EXAMPLES, add_help=True
    )
    what = "a run, a converted model, or spoken files; FOLDER@best or FOLDER@last; or hf://owner/name[@revision]"
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=what)
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint where none is named")
    parser.add_argument("--accept-licence", action="store_true", help="of a model of the hub, without being asked")
    said = parser.add_argument_group("what is said")
    said.add_argument("--data", metavar="DIR", help="data set with recordings (default: the run's own)")
    said.add_argument("--texts", metavar="FILE", help="a sentence on each line, instead of those of the data set")
    said.add_argument("--voices", nargs="+", default=[], metavar="FILE", help="recordings of who says it, in turn")
    said.add_argument("--language", default="en", help="of texts and of data that do not name theirs")
    said.add_argument("--sentences", type=int, metavar="N", default=SENTENCES, help="at most")
    said.add_argument("--quick", action="store_true", help=f"{QUICK_SENTENCES} sentences")
    said.add_argument("--seeds", type=int, metavar="N", default=3, help="times that each sentence is drawn")
    said.add_argument("--seed", type=int, metavar="N", default=0, help="the first seed")
    heard = parser.add_argument_group("recognizer")
    recognizer = (
        "size of Whisper such as base, hf://owner/name, a Whisper model's folder, or a command with {wav} in it"
    )
    heard.add_argument("--recognizer", metavar="NAME", help=recognizer)
    encoder = "pretrained.pt of resemblyzer, or an .onnx that takes 16 kHz samples (default: the installed package's)"
    heard.add_argument("--speaker-encoder", metavar="FILE", help=encoder)
    parser.add_argument("--output", metavar="DIR", default="evaluation", help="for table, page and sound")
    add_choices(parser, engines=False)
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Evaluates; everything that can be wrong is checked before the first sentence."""
    arguments = build_parser().parse_args(argv)
    judged = _check(arguments)
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    from myxtts.utils.commons import setup_logging

    setup_logging()
    print(f"\n{_evaluate(arguments, judged)}\n\nWrote {printable(str(Path(arguments.output) / PAGE))}")
    return 0


def evaluate(*folders: str | os.PathLike, **options) -> dict[str, Any]:
    """Judges how well models speak, as `myxtts evaluate` does; returns what `evaluation.json` in its output says.

    Args:
        folders: Runs, converted models or spoken files.
        options: Names of the command's options, with underscores: `data="DIR"`, `quick=True`, `recognizer="FOLDER"`.

    Raises:
        UserError: Something that was asked for cannot be had.
    """
    arguments = keywords(build_parser(), {"folders": [os.fspath(one) for one in folders], **options})
    print(_evaluate(arguments, _check(arguments)))
    return read_json(Path(arguments.output) / JSON_FILE)


def _check(arguments):
    """The subjects; raises `UserError` for what can be seen to be wrong before TensorFlow is imported."""
    if not arguments.folders:
        raise UserError("Name what is to be evaluated. Try: myxtts evaluate runs/mine --quick")
    require(1 <= arguments.sentences <= MOST_SENTENCES, "--sentences", f"1 to {MOST_SENTENCES}", arguments.sentences)
    require(1 <= arguments.seeds <= 100, "--seeds", "1 to 100", arguments.seeds)
    require(0 <= arguments.seed < 2**31, "--seed", "0 to 2147483647", arguments.seed)
    check_device(arguments.device)
    require_output("--output", arguments.output, makes_folders=True)
    check_output(Path(arguments.output))
    for flag, given in (("--data", [arguments.data]), ("--texts", [arguments.texts]), ("--voices", arguments.voices)):
        for path in filter(None, given):
            rule = "a folder or a list" if flag == "--data" else "a file"
            require(Path(path).exists(), flag, f"{rule} that is there", path, "Check the name.")
    if arguments.recognizer:
        from myxtts.hearing.recognizers import settle_recognizer

        settle_recognizer(arguments.recognizer)
    from myxtts.interchange.hub.fetching import local_folder

    local = lambda folder: local_folder(folder, arguments.accept_licence)
    return subjects(arguments.folders, arguments.which, local)


def _evaluate(arguments, judged):
    """Has all of them speak, and writes the pages; returns the table for a terminal."""
    from myxtts.apps.evaluation.evaluate import choose_sentences, evaluate_into, rows_to_speak
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.devices.kinds import device_named
    from myxtts.hearing.measuring import Tools
    from myxtts.utils.commons import get_device_context

    configure_for_speech()
    count = min(arguments.sentences, QUICK_SENTENCES) if arguments.quick else arguments.sentences
    asked = arguments.data, arguments.texts, arguments.voices, arguments.language, count
    device = get_device_context(arguments.device and device_named(arguments.device))
    with device, tempfile.TemporaryDirectory() as room:
        tools = Tools.find(arguments.recognizer, arguments.speaker_encoder)
        sentences = choose_sentences(judged, *asked, Path(room))
        seeds = range(arguments.seed, arguments.seed + arguments.seeds) if any(one.is_model for one in judged) else [0]
        sources = rows_to_speak(judged, sentences, seeds, arguments.decoder)
        settings = {
            "folders": {one.name: model_name(one.folder) for one in judged},
            "which": {one.name: one.which for one in judged if one.is_model},
            "sentences": len(sentences),
            "seeds": len(seeds),
            **{name: getattr(arguments, name) for name in ("seed", "data", "texts", "recognizer", "decoder")},
        }
        print(f"{counted(len(sentences), 'sentence')}, {', '.join(source.name for source in sources)}", flush=True)
        return evaluate_into(Path(arguments.output), sources, sentences, tools, settings)

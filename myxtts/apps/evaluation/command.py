"""`myxtts evaluate`: compares the speech of models with each other and with recordings."""

import argparse
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.api import naming_arguments
from myxtts.cli.arguments import LICENCE, PlainParser, add_options, keywords
from myxtts.cli.errors import exits_with_sentence, language_code, require_output
from myxtts.config.checks import UserError, counted, printable, read_toml, require
from myxtts.devices.machine import check_device
from myxtts.devices.tensorflow_start import import_tensorflow, starting_quietly
from myxtts.hearing.recognizers import open_recognizer, settle_recognizer
from myxtts.inference.choices import add_choices
from myxtts.interchange.hub import local_folder
from myxtts.storage.base_model import FOLDER, MODELS, RUNS, is_base, kind_of, model_name
from myxtts.utils.commons import setup_logging

JSON_FILE, CSV_FILE, PAGE, SOUNDS = "evaluation.json", "evaluation.csv", "report.html", "sounds"
WHICH = ("best", "last")
QUICK_SENTENCES, MOST_SENTENCES = 30, 10_000
OPTIONS = read_toml(__file__, "options.toml")["options"]


class Subject(NamedTuple):
    """A model or a folder of audio files to evaluate. `which` is the checkpoint of the model, `best` or `last`."""

    folder: Path
    which: str
    name: str
    is_model: bool


def subjects(folders: Sequence[str], which: str, accept_licence: bool = False) -> list[Subject]:
    """Parses arguments of the form `FOLDER`, `FOLDER@best` or `FOLDER@last`, and gives each subject a unique name.

    `which` is the checkpoint to use for a `FOLDER` without `@`. Models on the Hugging Face hub are downloaded.

    Raises `UserError` if a folder does not exist, or a model cannot be loaded (see `local_folder`).
    """
    found, names, what = [], Counter(), "FOLDER (or spoken files with a metadata.csv)"
    for one in folders:
        folder, at, chosen = one.rpartition("@")
        given, end = (folder, at + chosen) if at and chosen in WHICH else (one, "")
        path = local_folder(given, accept_licence, what, (*MODELS, FOLDER, RUNS))
        plain, parent = Path(given).resolve().name, Path(given).resolve().parent.name
        short, long = (model_name(path),) * 2 if is_base(path) else (plain, f"{parent}/{plain}")
        found.append((path, end[1:] or which, short + end, long + end))
    shorts, result = Counter(short for _, _, short, _ in found), []
    for path, chosen, short, long in found:
        name = long if shorts[short] > 1 else short
        names[name] += 1
        name += f" ({names[name]})" * (names[name] > 1)
        result.append(Subject(path, chosen, name, kind_of(path) in MODELS))
    return result


def check_output(folder: Path) -> None:
    """Raises `UserError` if the output folder contains anything but an earlier evaluation, or is a file or link."""
    if folder.is_symlink() or folder.exists() and not folder.is_dir():
        raise UserError(f"--output must be a folder. {folder} is a file or a link.")
    names, report = {one.name for one in folder.glob("*")} - {".DS_Store"}, folder / JSON_FILE
    is_ours = report.is_file() and report.read_bytes().startswith(b'{\n "format": "myxtts evaluation"')
    if names and not (is_ours and names <= {JSON_FILE, CSV_FILE, PAGE, SOUNDS}):
        raise UserError(f"--output must be a new folder or an earlier evaluation. {folder} has other content.")


def build_parser() -> argparse.ArgumentParser:
    """Builds the argument parser of `myxtts evaluate`."""
    parser = PlainParser(prog="myxtts evaluate", description="Evaluate the speech of models.")
    quick = {"help": f"use {QUICK_SENTENCES} sentences"}
    add_options(parser, OPTIONS, {"--which": {"choices": WHICH}, "--accept-licence": LICENCE, "--quick": quick})
    parser.add_argument("--output", metavar="DIR", default="evaluation", help="folder for tables, report and audio")
    add_choices(parser, engines=False)
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Runs `myxtts evaluate`; returns 3 if a model was left out, else 0. Checks options before importing TensorFlow."""
    arguments = build_parser().parse_args(argv)
    judged = _check(arguments)
    import_tensorflow()
    setup_logging()
    return 3 if _evaluate(arguments, judged).left_out else 0


@naming_arguments(build_parser)
def evaluate(*folders: str | os.PathLike, **options) -> dict[str, Any]:
    """Evaluates the speech of models, like `myxtts evaluate`, and returns the content of the file `evaluation.json`.

    Args:
        folders: Runs, converted models or folders of audio files.
        options: Options of the command, with underscores: `data="DIR"`, `quick=True`, `recognizer="base"`.

    Raises `UserError` if an option, file or package is unusable. A note on the error translates flags in the message
    to Python arguments."""
    arguments = keywords(build_parser(), {"folders": folders, **options})
    _evaluate(arguments, _check(arguments))
    return json.loads((Path(arguments.output) / JSON_FILE).read_text("utf-8"))


def _check(arguments):
    """Checks the options without importing TensorFlow. Returns a `Subject` for each folder to evaluate."""
    if not arguments.folders:
        raise UserError("Name a model to evaluate, for example: myxtts evaluate runs/mine --quick")
    require(1 <= arguments.sentences <= MOST_SENTENCES, "--sentences", f"1 to {MOST_SENTENCES}", arguments.sentences)
    require(1 <= arguments.seeds <= 100, "--seeds", "1 to 100", arguments.seeds)
    require(0 <= arguments.seed < 2**31, "--seed", "0 to 2147483647", arguments.seed)
    check_device(arguments.device)
    arguments.language = language_code(arguments.language)
    require_output("--output", arguments.output, makes_folders=True, replaces=True)
    check_output(Path(arguments.output))
    data, texts = arguments.data, [arguments.texts] if arguments.texts else []
    require(not data or Path(data).exists(), "--data", "an existing folder or list", data, "Check the name.")
    for flag, paths in (("--texts", texts), ("--voices", arguments.voices)):
        for path in paths:
            require(Path(path).is_file(), flag, "an existing file", path, "Check the name.")
    if arguments.recognizer:
        settle_recognizer(arguments.recognizer)
    return subjects(arguments.folders, arguments.which, arguments.accept_licence)


def _evaluate(arguments, judged):
    """Synthesizes and measures speech, writes the reports, prints the results, and returns the `Comparison`."""
    with starting_quietly():
        from myxtts.apps.evaluation.report import as_text, evaluate_into
        from myxtts.apps.evaluation.sentences import choose_sentences, rows_to_speak
        from myxtts.devices.configuration import configure_for_speech
        from myxtts.hearing.measuring import Measurer
        from myxtts.hearing.networks import DNSMOS, find_encoder

    count = min(arguments.sentences, QUICK_SENTENCES) if arguments.quick else arguments.sentences
    options = arguments.data, arguments.texts, arguments.voices, arguments.language, count
    with configure_for_speech(arguments.device), tempfile.TemporaryDirectory() as folder:
        recognizer = arguments.recognizer and open_recognizer(arguments.recognizer)
        measurer = Measurer(recognizer, find_encoder(arguments.speaker_encoder), DNSMOS.load())
        sentences = choose_sentences(judged, *options, Path(folder))
        seeds = range(arguments.seed, arguments.seed + arguments.seeds) if any(one.is_model for one in judged) else [0]
        sources = rows_to_speak(judged, sentences, seeds, arguments.decoder)
        settings = {
            "folders": {one.name: model_name(one.folder) for one in judged},
            "which": {one.name: one.which for one in judged if one.is_model},
            "sentences": len(sentences),
            "seeds": len(seeds),
            **{name: getattr(arguments, name) for name in ("seed", "data", "texts", "recognizer", "decoder")},
        }
        print(f"Evaluating {counted(len(sentences), 'sentence')}: {'; '.join(row.name for row in sources)}", flush=True)
        comparison = evaluate_into(Path(arguments.output), sources, sentences, measurer, settings)
        table = as_text(comparison, shutil.get_terminal_size((120, 24)).columns)
        print(f"\n{table}\n\nWrote {printable(str(Path(arguments.output).resolve() / PAGE))}")
    return comparison

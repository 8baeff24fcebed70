"""`myxtts doctor` looks at the machine; `myxtts doctor data DIR` checks a data set as training would, and says what is
wrong with which clip."""

import argparse
from pathlib import Path

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import UserError, require
from myxtts.config.model import MODEL_SIZES
from myxtts.storage.files import write_json

LARGEST_DATA_SAMPLE = 400
"""Recordings at most that the disk's speed is taken from."""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts doctor`."""
    parser = PlainParser(prog="myxtts doctor")
    machine = (
        "the machine, what TensorFlow can use of it, what the automatic settings would choose,\nand how fast it trains"
    )
    parser.description = f"Check before training. Without a subject:\n{machine}."
    add, folder = parser.add_argument, dict(metavar="DIR")
    add("--model-size", choices=MODEL_SIZES, default="tiny", help="size to measure")
    add("--batch-size", type=int, default=16, help="clips per batch")
    add("--precision", help="dtype policy to measure (default: float32)")
    length = "length of the measurement of training steps; 0 leaves it out"
    add("--seconds", type=float, default=10.0, help=length)
    add("--train-data", **folder, help="data set whose reading speed is measured as well")
    where = "where a run would write: its disk is measured"
    add("--checkpoint-dir", **folder, default=".", help=where)
    add("--json", metavar="FILE", help="write the findings there as well")
    help_text = "instead of the machine, check these workers and what connects them; start it on each at once"
    add("--workers", metavar="HOST:PORT,…", help=help_text)
    add("--worker-index", type=int, default=0, metavar="N", help="which of them this is")
    subjects = parser.add_subparsers(dest="subject")
    add = subjects.add_parser("data", help="check a data set: every recording and transcript").add_argument
    add("folder", help="root of the data set, or a list of its clips")
    add("--format", metavar="NAME", help="format of the data, see docs/data.md (default: recognized by its content)")
    where = "a further folder in which lists may name audio; can be repeated"
    add("--audio-root", action="append", default=[], **folder, help=where)
    add("--validation", **folder, help="validation set, to look for clips that are in both")
    add("--language", help="language of recordings whose set names none (default: en)")
    add("--vocabulary", metavar="FILE", help="tokenizer file that transcripts must fit")
    add("--min-seconds", type=float, default=0.1, help="shorter clips are left out")
    add("--max-seconds", type=float, default=11.6, help="longer clips are left out")
    add("--report", default="doctor.csv", help="file for every clip and its reason")
    add("--strict", action="store_true", help="exit code 1 when a clip is left out")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Examines the machine, workers or a data set; exit code 2 without a usable clip, with --strict 1 for any other."""
    from myxtts.runs.signals import leave_in_order

    code = run(argv)
    leave_in_order(code)
    return code


@exits_with_sentence
def run(argv: list[str] | None = None) -> int:
    """As `main`; workers that it has joined are still there."""
    arguments = build_parser().parse_args(argv)
    if arguments.subject == "data":
        return report_data(arguments)
    return check_workers(arguments) if arguments.workers else check_machine(arguments)


def check_workers(arguments: argparse.Namespace) -> int:
    """Meets the other workers, compares, measures and prints."""
    from myxtts.config.loading import config_from_dict
    from myxtts.runs.setup import with_workers
    from myxtts.runs.worker_report import examine_workers

    training = {"workers": tuple(arguments.workers.split(",")), "worker_index": arguments.worker_index}
    config = with_workers(config_from_dict({"training": training, "data": {"train_data": arguments.train_data}}))
    print("\n".join(examine_workers(config)))
    return 0


def check_machine(arguments: argparse.Namespace) -> int:
    """Looks at the machine, measures and prints."""
    require_output("--json", arguments.json)
    require(arguments.seconds >= 0, "--seconds", "0 or more", arguments.seconds, "0 leaves the measurement out.")
    from myxtts.config.loading import config_from_dict
    from myxtts.devices.tensorflow_start import filter_native_errors
    from myxtts.runs.machine_report import describe, examine

    filter_native_errors()

    training = {"precision": arguments.precision} if arguments.precision else {}
    data = {"batch_size": arguments.batch_size}
    config = config_from_dict({"model": {"size": arguments.model_size}, "data": data, "training": training})
    if not Path(arguments.checkpoint_dir).is_dir():
        raise UserError(f"--checkpoint-dir must be a folder that is there. {arguments.checkpoint_dir} is not one.")
    files = []
    if arguments.train_data:
        from myxtts.data.corpora import load_corpus

        files = [clip.wav_path for clip in load_corpus(arguments.train_data).utterances[:LARGEST_DATA_SAMPLE]]
    found = examine(config, arguments.seconds, arguments.checkpoint_dir, files)
    print(describe(found))
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def report_data(arguments: argparse.Namespace) -> int:
    """Inspects a data set and prints what is wrong with it."""
    require_output("--report", arguments.report)
    low, high = arguments.min_seconds, arguments.max_seconds
    require(0 < low < high, "--min-seconds", "above 0 and below --max-seconds", f"{low:g} and {high:g}")
    from myxtts.data.doctor import ClipLimits, check_data, is_foreign, summarize, write_report
    from myxtts.runs.progress import clip_progress

    if is_foreign(arguments.report):
        raise UserError(f"--report must be a new file or an earlier report. {arguments.report} is another; it is kept.")
    limits = ClipLimits(min_seconds=arguments.min_seconds, max_seconds=arguments.max_seconds)
    options = dict(limits=limits, language=arguments.language, vocabulary=arguments.vocabulary)
    options |= dict(format_name=arguments.format, audio_roots=arguments.audio_root)
    inspection, leaks = check_data(arguments.folder, arguments.validation, **options, progress=clip_progress)
    print("\n".join([summarize(inspection), *(f"leakage: {leak}" for leak in leaks)]))
    write_report(inspection, arguments.report)
    print(f"every clip and its reason: {arguments.report}")
    return int(bool(arguments.strict and (inspection.rejections or leaks))) if inspection.accepted else 2

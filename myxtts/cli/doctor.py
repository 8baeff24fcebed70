"""The `myxtts doctor` command, which checks the machine, workers, or (with `data DIR`) the clips of a data set."""

import argparse
import shlex
import sys
from pathlib import Path

from myxtts.cli.arguments import EXAMPLES, OPTIONS, PlainParser, add_options
from myxtts.cli.errors import exits_with_sentence, language_code, require_output
from myxtts.config.checks import UserError, printable, require
from myxtts.config.config import config_from_dict
from myxtts.config.model import MODEL_SIZES
from myxtts.storage.files import write_json

UNUSED = OPTIONS["unused in doctor"]
"""Names of the options that each check rejects. A key such as `data is` completes "left out when ... checked"."""


def build_parser() -> argparse.ArgumentParser:
    """Returns the argument parser of `myxtts doctor`."""
    parser = PlainParser(prog="myxtts doctor", description=EXAMPLES["about doctor"])
    parser.add_argument("--model-size", choices=MODEL_SIZES, default="tiny", help="size to measure")
    add_options(parser, OPTIONS["doctor"])
    subjects = parser.add_subparsers(dest="subject")
    data = subjects.add_parser("data", help="check a data set: every recording and transcript")
    add_options(data, OPTIONS["doctor data"])
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Checks the machine, workers or data. Returns 2 if no clip is usable, 1 if --strict finds a problem, else 0."""
    arguments = build_parser().parse_args(argv)
    subject = "data is" if arguments.subject else "the machine is" if arguments.workers is None else "workers are"
    for name in UNUSED[subject]:
        flag, rule = f"--{name.replace('_', '-')}", f"left out when {subject} checked"
        require(name not in arguments.given, flag, rule, getattr(arguments, name))
    for name, given in vars(arguments).items():
        if given == "" and name not in ("folder", "json", "report"):  # they are reported elsewhere
            raise UserError(f"--{name.replace('_', '-')} needs a value.")
    if arguments.subject == "data":
        return report_data(arguments)
    if arguments.workers:
        from myxtts.runs.machine_report import examine_workers
        from myxtts.runs.setup import with_workers

        training = {"workers": tuple(arguments.workers.split(",")), "worker_index": arguments.worker_index}
        config = config_from_dict({"training": training, "data": {"train_data": arguments.train_data}})
        print("\n".join(examine_workers(with_workers(config))))
        return 0
    require_output("--json", arguments.json, starts=b'{\n "versions"')
    require(0 <= arguments.seconds <= 3600, "--seconds", "0 to 3600", arguments.seconds, "0 skips the measurement.")
    from myxtts.data.corpora import load_corpus
    from myxtts.devices.tensorflow_start import filter_native_errors
    from myxtts.runs.machine_report import describe, examine

    filter_native_errors()
    training = {"precision": arguments.precision} if arguments.precision else {}
    data, home = {"batch_size": arguments.batch_size}, arguments.checkpoint_dir
    config = config_from_dict({"model": {"size": arguments.model_size}, "data": data, "training": training})
    require(Path(home).is_dir(), "--checkpoint-dir", "an existing folder", home)
    clips = load_corpus(arguments.train_data).utterances[:400] if arguments.train_data else ()
    found = examine(config, arguments.seconds, home, [clip.wav_path for clip in clips])
    print(describe(found))
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def report_data(arguments: argparse.Namespace) -> int:
    """Checks the clips of a data set, prints a summary, writes the report of all clips, and returns the exit code."""
    require_output("--report", arguments.report, starts="\ufeffid,verdict,".encode())
    low, high = arguments.min_seconds, arguments.max_seconds
    require(0 < low < high, "--min-seconds", "above 0 and below --max-seconds", f"{low:g} and {high:g}")
    from myxtts.data.doctor import ClipLimits, check_data, summarize, write_report
    from myxtts.utils.commons import folded_on_terminal, progress_bar

    options = dict(vocabulary=arguments.vocabulary, validation=arguments.validation, format_name=arguments.format)
    options |= dict(language=language_code(arguments.language), audio_roots=arguments.audio_root)
    with progress_bar(arguments.folder) as shown:
        corpus, leakage = check_data(arguments.folder, limits=ClipLimits(low, high), progress=shown, **options)
    lists = ", ".join(corpus.lists[:3]) + ", …" * (len(corpus.lists) > 3)
    lines = [f"format: {corpus.format}{lists and f' ({lists})'}", summarize(corpus)]
    lines += [f"leakage: {leakage}"] if leakage else []
    write_report(corpus, arguments.report, "\ufeff")
    flags = {"--val-data": arguments.validation, "--vocabulary": arguments.vocabulary, "--format": arguments.format}
    flags |= {"--language": arguments.language, "--min-seconds": low}
    flags |= {"--max-seconds": high} if high < ClipLimits().max_seconds else {}  # a model has a limit of its own
    given = [*flags.items(), *(("--audio-root", one) for one in arguments.audio_root)]
    words = [f"{flag}={value}" for flag, value in given if value and value not in ClipLimits()]
    after = "Next: correct the clips in this report, and repeat this command."
    if corpus.utterances and not leakage:
        after = f"Next:  {printable(shlex.join(['myxtts', 'train', arguments.folder, *words]))}"
    lines += [f"report on every clip: {printable(arguments.report)}", after]
    print(folded_on_terminal("\n".join(lines), sys.stdout))
    if not corpus.utterances:
        return 2
    return 1 if arguments.strict and (corpus.rejections or leakage) else 0

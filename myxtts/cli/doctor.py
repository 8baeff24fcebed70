"""`myxtts doctor data DIR`: checks a data set as training would, and says what is wrong with which clip."""

import argparse
import sys

from myxtts.cli.errors import exits_with_sentence


def build_parser():
    """The command line of `myxtts doctor`."""
    parser = argparse.ArgumentParser(prog="myxtts doctor", description="Check before training.")
    subjects = parser.add_subparsers(dest="subject", required=True)
    data = subjects.add_parser("data", help="check a data set: every recording and transcript")
    data.add_argument("folder", help="root of the data set")
    data.add_argument("--validation", metavar="DIR", help="validation set, to look for clips that are in both")
    data.add_argument("--language", default="en", help="language of recordings whose set names none (default: en)")
    data.add_argument("--vocabulary", metavar="FILE", help="tokenizer file that transcripts must fit")
    data.add_argument("--min-seconds", type=float, default=0.1, help="shorter clips are left out (default: 0.1)")
    data.add_argument("--max-seconds", type=float, default=11.6, help="longer clips are left out (default: 11.6)")
    data.add_argument("--report", default="doctor.csv", help="file for every clip and its reason (default: doctor.csv)")
    data.add_argument("--strict", action="store_true", help="exit code 1 when a clip is left out")
    return parser


@exits_with_sentence
def main(argv=None):
    """Inspects a data set; exit code 1 under --strict when a clip is left out."""
    arguments = build_parser().parse_args(argv)
    from tqdm import tqdm

    from myxtts.data.corpora import load_corpus
    from myxtts.data.doctor import ClipLimits, inspect_corpus, summarise, write_report
    from myxtts.data.splits import find_leakage
    from myxtts.text.tokenizer import XTTSTokenizer

    tokenizer = XTTSTokenizer.from_file(arguments.vocabulary) if arguments.vocabulary else None
    limits = ClipLimits(min_seconds=arguments.min_seconds, max_seconds=arguments.max_seconds)

    def check_text(utterance):
        reason = tokenizer.check(utterance.text, utterance.language)
        return f"text not usable: {reason}" if reason else None

    def inspect(folder):
        with tqdm(desc=folder, unit="clip", disable=not sys.stdout.isatty(), leave=False) as bar:
            def progress(done, total):
                bar.total = total
                bar.update(done - bar.n)
            return inspect_corpus(load_corpus(folder, arguments.language), limits, progress=progress,
                                  check_text=check_text if tokenizer else None)

    inspection = inspect(arguments.folder)
    print(summarise(inspection))
    leaks = ()
    if arguments.validation:
        leaks = find_leakage(inspection.accepted, inspect(arguments.validation).accepted)
        for leak in leaks:
            print(f"leakage: validation clip {leak.validation_id} is also trained on as {leak.train_id} "
                  f"({leak.reason})")
    write_report(inspection, arguments.report)
    print(f"every clip and its reason: {arguments.report}")
    return 1 if arguments.strict and (inspection.rejections or leaks) else 0

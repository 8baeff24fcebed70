"""`myxtts plan`: predicts the memory of training with each optimization, and the largest batch per GPU.

The figures are computed from the settings (`myxtts/memory`), without TensorFlow or measurements."""

import argparse
import os
from collections.abc import Sequence

from myxtts import api
from myxtts.cli import train
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import printable, require, say
from myxtts.storage.files import write_json


def build_parser() -> argparse.ArgumentParser:
    """The flags of train_main.py and those of this command."""
    parser = train.build_parser("myxtts plan")
    parser.description = (
        f"Predict the memory of training a stage ({api.PLANNED_STAGE} unless --stage names one) with the flags of\n"
        "train_main.py: by purpose, with and without each optimization, and the largest batch for common GPUs."
    )
    add = parser.add_argument_group("plan").add_argument
    longest = "longest clip of the data (default: data.max_seconds, the longest that training accepts)"
    add("--clip-seconds", type=float, help=longest)
    add("--text-tokens", type=int, default=api.PLANNED_TOKENS, help="size of the vocabulary")
    gpus = f"memory of a GPU; can be repeated (default: {', '.join(map(str, api.PLANNED_GPUS_GB))})"
    add("--gpu-memory", type=float, action="append", metavar="GB", help=gpus)
    add("--json", metavar="FILE", help="also write the figures to this file")
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Plans and prints; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    require_output("--json", arguments.json)
    if recordings := arguments.folder or arguments.train_data:
        require(os.path.exists(recordings), "--train-data", "a file or a folder", printable(recordings))
        say("The recordings are not read: --clip-seconds sets their longest clip.")
    asked = dict(clip_seconds=arguments.clip_seconds, text_tokens=arguments.text_tokens)
    report = api.plan(train.config_from_arguments(arguments), gpu_memory=arguments.gpu_memory, **asked)
    print(report)
    if arguments.json:
        write_json(arguments.json, report)
    return 0

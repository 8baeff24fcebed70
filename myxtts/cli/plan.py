"""`myxtts plan`: how much memory training would take, under each optimization, and the largest batch per GPU.

Everything is arithmetic on the settings (`myxtts/planning`); no TensorFlow is imported and nothing is measured."""

import argparse
from collections.abc import Sequence

from myxtts import api
from myxtts.cli import train
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.storage.files import write_json


def build_parser() -> argparse.ArgumentParser:
    """The flags of train_main.py and those of this command."""
    parser = train.build_parser()
    parser.prog = "myxtts plan"
    parser.description = (
        f"Predict the memory of training a stage ({api.PLANNED_STAGE} unless --stage names one) with the flags of\n"
        "train_main.py: by what it is for, with and without each optimization, and the largest batch for usual GPUs."
    )
    plan = parser.add_argument_group("plan")
    longest = "longest clip of the data (default: data.max_seconds, the longest that training accepts)"
    plan.add_argument("--clip-seconds", type=float, help=longest)
    vocabulary = f"size of the vocabulary (default: {api.PLANNED_TOKENS})"
    plan.add_argument("--text-tokens", type=int, default=api.PLANNED_TOKENS, help=vocabulary)
    gpus = f"GPU to find the largest batch for; may be repeated (default: {', '.join(map(str, api.PLANNED_GPUS_GB))})"
    plan.add_argument("--gpu-memory", type=float, action="append", metavar="GB", help=gpus)
    plan.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Plans and prints; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    require_output("--json", arguments.json)
    asked = dict(clip_seconds=arguments.clip_seconds, text_tokens=arguments.text_tokens)
    config = train.config_from_arguments(arguments)
    report = api.plan(config, gpu_memory=arguments.gpu_memory, **asked)
    print(report)
    if arguments.json:
        write_json(arguments.json, report)
    return 0

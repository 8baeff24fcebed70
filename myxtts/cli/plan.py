"""`myxtts plan`: how much memory training would take, under each optimization, and the largest batch per GPU.

Everything is arithmetic on the settings (`myxtts/planning`); no TensorFlow is imported and nothing is measured."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from myxtts.cli import train
from myxtts.cli.errors import exits_with_sentence, require_output
from myxtts.config.checks import require
from myxtts.memory.estimates import RESERVED_GB
from myxtts.memory.report import describe, memory_report
from myxtts.storage.files import write_json

GPU_GB = (8, 12, 16, 24, 48, 80)
VOCABULARY = 512
"""Text tokens while no tokenizer is known: what `data.vocabulary_size` allows by default."""
DEFAULT_STAGE = "gpt"
"""What is planned for `--stage all`: the stage that takes most."""


def build_parser() -> argparse.ArgumentParser:
    """The flags of train_main.py and those of this command."""
    parser = train.build_parser()
    parser.prog = "myxtts plan"
    parser.description = (
        f"Predict the memory of training a stage ({DEFAULT_STAGE} unless --stage names one) with the same flags as\n"
        "train_main.py: by what it is for, with and without each optimization, and the largest batch for usual GPUs."
    )
    plan = parser.add_argument_group("plan")
    longest = "longest clip of the data (default: data.max_seconds, the longest that training accepts)"
    plan.add_argument("--clip-seconds", type=float, help=longest)
    vocabulary = f"size of the vocabulary (default: {VOCABULARY})"
    plan.add_argument("--text-tokens", type=int, default=VOCABULARY, help=vocabulary)
    gpus = f"GPU to find the largest batch for; may be repeated (default: {', '.join(map(str, GPU_GB))})"
    plan.add_argument("--gpu-memory", type=float, action="append", metavar="GB", help=gpus)
    plan.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser


@exits_with_sentence
def main(argv: Sequence[str] | None = None) -> int:
    """Plans and prints; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    require_output("--json", arguments.json)
    config = train.config_from_arguments(arguments)
    seconds, gpus = arguments.clip_seconds, arguments.gpu_memory or GPU_GB
    require(seconds is None or seconds > 0, "--clip-seconds", "above 0", f"{seconds or 0:g}")
    require(arguments.text_tokens > 0, "--text-tokens", "above 0", arguments.text_tokens)
    require(min(gpus) > RESERVED_GB, "--gpu-memory", f"above {RESERVED_GB:g}", f"{min(gpus):g}")
    config = replace(config, model=replace(_model(config), num_text_tokens=arguments.text_tokens))
    stage = DEFAULT_STAGE if config.training.stage == "all" else config.training.stage
    report = memory_report(config, stage, seconds, gpus)
    print(describe(report))
    if arguments.json:
        write_json(arguments.json, report)
    return 0


def _model(config):
    """The shape that is trained: that of `--init-from`, where it is on this machine."""
    if not config.training.init_from:
        return config.model
    from myxtts.interchange.hub.fetching import folder_here  # brings NumPy, which other plans do without
    from myxtts.storage.provenance import read_config

    if (folder := folder_here(config.training.init_from)) is None:
        return config.model

    return read_config(folder).model

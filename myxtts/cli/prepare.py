"""`myxtts prepare`: the clips of a training set, encoded once into shards that training reads."""

import argparse

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence, require_output

EXAMPLES = """
examples:
  myxtts prepare --train-data DIR --checkpoint RUN --output SHARDS --shards 16
  myxtts prepare --train-data DIR --checkpoint RUN --output SHARDS --shards 16 --shard 3
  myxtts train --train-data DIR --checkpoint-dir RUN --prepared SHARDS

Shards can be made in any order, by as many processes and machines as there are shards; one that is there is left as it
is, so the same command goes on after a stop. docs/scaling.md says what training takes from them.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `myxtts prepare`."""
    parser = PlainParser(
        prog="myxtts prepare", description="Encode a training set into shards.", epilog=EXAMPLES, add_help=True
    )
    parser.add_argument("--train-data", metavar="DIR", help="root of the training set (default: the run's)")
    parser.add_argument("--checkpoint", metavar="RUN", required=True, help="folder of a run whose DVAE is trained")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder for shards and manifest")
    parser.add_argument("--shards", type=int, metavar="N", default=1, help="parts that the set is divided into")
    parser.add_argument("--shard", type=int, metavar="I", help="make this one only, 0 to N - 1 (default: all)")
    parser.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU, where there is one)")
    return parser


@exits_with_sentence
def main(argv: list[str] | None = None) -> int:
    """Makes the shards that are not there yet."""
    arguments = build_parser().parse_args(argv)
    require_output("--output", arguments.output, makes_folders=True)
    from myxtts.devices.tensorflow_start import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    from myxtts.devices.kinds import device_named
    from myxtts.runs.preparing import prepare
    from myxtts.utils.commons import setup_logging

    setup_logging()
    default = "gpu:0" if tf.config.get_visible_devices("GPU") else "cpu"
    device = device_named(arguments.device or default)
    asked = arguments.shards, device, arguments.shard, arguments.train_data
    prepare(arguments.checkpoint, arguments.output, *asked, tell=lambda line: print(line, flush=True))
    return 0

"""Steps per second of the decoder stage: both decoders, without and with discriminators, on one thread.

    python utilities/benchmarks/decoder_steps.py [--sizes nano small] [--batch-size 16] [--frames 32] [--repeats 3]

Batches are of noise: what a step costs does not depend on the sound. Making latents, the data device's work, is
left out. Prints a table of processor time and of how many seconds of sound a step learns from.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tensorflow as tf  # noqa: E402
from hardware import append_table  # noqa: E402
from memory_estimate import full_batch, training_step  # noqa: E402

from myxtts.config.config import ModelConfig  # noqa: E402
from myxtts.config.model import DECODER_TYPES  # noqa: E402
from myxtts.config.rates import DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES  # noqa: E402
from myxtts.memory.estimates import Shapes  # noqa: E402
from myxtts.training.stages.decoder import ADVERSARIAL, SPECTRAL  # noqa: E402

HEADER = ["size", "decoder", "phase", "step, s", "steps a second", "seconds of sound a second"]


def seconds_of(step, batch, repeats):
    """Processor time of one step, the least of so many after one that traces."""
    times = []
    for number in range(repeats + 1):
        began = time.process_time()
        step([batch], 1e-4, (0, number))["loss"].numpy()
        times.append(time.process_time() - began)
    return min(times[1:])


def main():
    """Times each case and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["nano", "small"])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--frames", type=int, default=32, help="frames of a slice (default: 32)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--append", action="store_true", help="append the table to docs/benchmarks.md")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    shapes = Shapes(arguments.batch_size, 0, 0, 0, arguments.frames)
    learned = arguments.batch_size * arguments.frames * MEL_HOP_SAMPLES / DECODER_SAMPLE_RATE
    rows = []
    for size in arguments.sizes:
        for decoder_type in DECODER_TYPES:
            config = ModelConfig(size, num_text_tokens=8, decoder_type=decoder_type)
            step, batch = training_step("decoder", config, shapes), full_batch("decoder", config, shapes)
            for step.phase, told in ((SPECTRAL, "spectra alone"), (ADVERSARIAL, "with discriminators")):
                took = seconds_of(step, batch, arguments.repeats)
                row = [size, decoder_type, told, f"{took:.2f}", f"{1 / took:.2f}", f"{learned / took:.2f}"]
                rows.append(row)
                print(*row, sep=" | ", flush=True)
    command = " ".join(["python", os.path.relpath(__file__), *sys.argv[1:]])
    title = (
        f"The decoder stage, {arguments.batch_size} slices of {arguments.frames} frames, processor time of one thread"
    )
    append_table(title, command, HEADER, rows, append=arguments.append)


if __name__ == "__main__":
    main()

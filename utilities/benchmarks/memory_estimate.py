"""Holds the memory estimates (`myxtts plan`) against peaks of real train steps on the CPU.

    python utilities/benchmarks/memory_estimate.py [--stage gpt] [--sizes nano tiny small] [--batch-size 4]
    [--seconds 6]
    python utilities/benchmarks/memory_estimate.py --stage decoder [--decoder hifigan] --sizes nano small

Each case runs in a process of its own, which takes one step to trace and then a measured one. What stays between steps
is the growth of the resident set (VmRSS) by building model and optimizer; what the step takes is how far its peak
(VmHWM, reset through /proc/self/clear_refs) rises above that. Ends with exit code 1 when an estimate is off by more
than 15 %.

Linux only. So that the resident set is what is in use, and not what an allocator keeps for later, the processes map
each buffer on its own (MALLOC_MMAP_THRESHOLD_) and leave oneDNN's pool out (TF_ENABLE_ONEDNN_OPTS=0).
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from myxtts.config.config import DataConfig, ModelConfig, XTTSConfig  # noqa: E402
from myxtts.config.model import DECODER_TYPES  # noqa: E402
from myxtts.config.rates import MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.devices.machine import peak_resident_bytes, resident_bytes  # noqa: E402
from myxtts.memory.estimates import Optimizations, Shapes  # noqa: E402
from myxtts.memory.report import ESTIMATES  # noqa: E402

VOCABULARY = 512
LARGEST_ERROR = 0.15
CASES = {
    "none": Optimizations(),
    "mixed precision": Optimizations(precision="mixed_bfloat16"),
    "gradient checkpointing": Optimizations(gradient_checkpointing=True),
    "memory-efficient attention": Optimizations(attention="memory-efficient"),
    "all three": Optimizations("mixed_bfloat16", True, "memory-efficient"),
    "accumulation of 2": Optimizations(accumulation=2),
}
"""Those of the GPT; the stages without attention have the ones that change nothing in it."""
HEADER = (
    "size,switches,stays (measured),estimated,step (measured),estimated,peak (measured),estimated,error (goal: 15 %)"
)
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_MAX_": "1000000",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
"""One thread: with several, TensorFlow works on several layers at once, and what they hold together depends on
chance."""


def training_step(stage, model_config, shapes, optimizations=CASES["none"]):
    """The `TrainStep` of a stage of a new model, in the phase that takes the most."""
    import tensorflow as tf

    from myxtts.models.xtts import XTTS
    from myxtts.training.loop.step import TrainStep
    from myxtts.training.loop.switches import recompute
    from myxtts.training.stages.base import Update
    from myxtts.training.stages.decoder import ADVERSARIAL
    from myxtts.training.stages.dvae import DVAEObjective
    from myxtts.training.stages.gpt import GPTObjective

    config = XTTSConfig(model=model_config, data=DataConfig(batch_size=shapes.batch))
    settings = config.stage(stage)
    strategy = tf.distribute.OneDeviceStrategy(tf.config.list_logical_devices()[0].name)
    with strategy.scope():
        model = XTTS(model_config, parts=(stage,), precision=optimizations.precision)
        if stage == "gpt":
            model.gpt.set_memory_use(
                optimizations.attention, recompute if optimizations.gradient_checkpointing else None
            )
            updates = [Update("", GPTObjective(model, config), settings)]
        elif stage == "dvae":
            updates = [Update("", DVAEObjective(model), settings)]
        else:
            updates = decoder_updates(model, config, settings, optimizations.precision)
        step = TrainStep(updates, strategy, settings, optimizations.accumulation, optimizations.precision)
    step.phase = ADVERSARIAL if stage == "decoder" else ""
    return step


def decoder_updates(model, config, settings, precision):
    """Of the decoder stage: the discriminators' and the decoder's."""
    from myxtts.models.discriminators import Discriminators
    from myxtts.training.stages.base import Update
    from myxtts.training.stages.decoder import (
        ADVERSARIAL,
        DIVISORS,
        JUDGING,
        SPECTRAL,
        DecoderObjective,
        DiscriminatorObjective,
    )

    divisor = DIVISORS.get(config.model.size, 1)
    discriminators = Discriminators(divisor, dtype=precision)
    models = model.decoder, discriminators, config.model.decoder_type
    discriminator = Update("discriminator", DiscriminatorObjective(*models), settings, (JUDGING, ADVERSARIAL))
    generator = Update("", DecoderObjective(*models, config.training), settings, (SPECTRAL, ADVERSARIAL))
    return [discriminator._replace(averaged=False), generator]


def measure(stage, size, decoder_type, shapes, optimizations):
    """Resident and step bytes of one case, measured in this process."""
    # What Keras imports and caches at its first model.
    smallest = ModelConfig("nano", num_text_tokens=8, layers=1, dvae_hidden=8, decoder_type=decoder_type)
    training_step(stage, smallest, shapes, optimizations)
    before = resident_bytes()
    model_config = ModelConfig(size, num_text_tokens=VOCABULARY, decoder_type=decoder_type)
    step = training_step(stage, model_config, shapes, optimizations)
    resident = resident_bytes() - before
    batches = [full_batch(stage, model_config, shapes)] * optimizations.accumulation
    for number in range(2):  # the first traces, the second starts what is started late
        step(batches, 1e-4, (0, number))["loss"].numpy()
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    step(batches, 1e-4, (0, 2))["loss"].numpy()
    return {"resident": resident, "step": peak_resident_bytes() - before}


def full_batch(stage, model_config, shapes):
    """A batch of random numbers, without padding."""
    import tensorflow as tf

    from myxtts.data.batch import DVAEBatch

    if stage == "gpt":
        return gpt_batch(model_config, shapes.batch, shapes.text, shapes.codes, shapes.frames)
    if stage == "decoder":
        return decoder_batch(model_config, shapes)
    frames = MEL_FRAMES_PER_CODE * shapes.codes
    mel = tf.random.stateless_normal((shapes.batch, frames, model_config.num_mels), (0, 0))
    return DVAEBatch(tf.range(shapes.batch), mel, tf.fill((shapes.batch,), frames))


def gpt_batch(config, batch, num_text, num_codes, conditioning_frames):
    """A full batch of random numbers, without padding."""
    import tensorflow as tf

    from myxtts.data.batch import GPTBatch

    rng = np.random.default_rng(0)
    return GPTBatch(
        tf.range(batch),
        tf.constant(rng.integers(4, config.num_text_tokens, (batch, num_text)), tf.int32),
        tf.fill((batch,), num_text),
        tf.constant(rng.normal(size=(batch, conditioning_frames, 80)), tf.float32),
        tf.constant(rng.integers(0, config.num_codes, (batch, num_codes)), tf.int32),
        tf.fill((batch,), num_codes),
        tf.zeros((batch, 2), tf.int32),
    )


def decoder_batch(model_config, shapes):
    """Slices with the frames around them that the decoder depends on."""
    import tensorflow as tf

    from myxtts.data.batch import DecoderBatch
    from myxtts.models.waveform_decoders import make_decoder

    grid, count = make_decoder(model_config), shapes.batch
    length = grid.history_frames + shapes.slice_frames + grid.lookahead_frames

    def noise(*shape):
        return tf.random.stateless_normal((count, *shape), (0, len(shape)))

    sounds = noise(model_config.speaker_width), 0.1 * noise(shapes.slice_frames * grid.hop_length)
    frames, present = noise(length, model_config.width), tf.ones((count, length), bool)
    return DecoderBatch(tf.range(count), frames, present, *sounds, tf.fill((count,), MODEL_SAMPLE_RATE))


def measure_apart(stage, size, decoder_type, shapes, case):
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--here", json.dumps([stage, size, decoder_type, asdict(shapes), case])]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT})
    if done.returncode:
        raise RuntimeError(f"{size}, {case} does not run: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def build_parser():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="gpt", choices=("dvae", "gpt", "decoder"))
    parser.add_argument("--decoder", default="istft", choices=DECODER_TYPES)
    parser.add_argument("--sizes", nargs="+", default=["nano", "tiny", "small"])
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of the clips (default: 6)")
    parser.add_argument("--append", action="store_true", help="append the table to docs/benchmarks.md")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    return parser


def cells(one):
    """A case as a row of the table, in MB."""
    measured, estimate = one["measured"], one["estimate"]
    peak = measured["resident"] + measured["step"]
    bytes_ = measured["resident"], estimate["resident"], measured["step"], estimate["step"], peak, estimate["peak"]
    return [one["size"], one["case"], *(f"{number / 2**20:.0f}" for number in bytes_), f"{one['error']:+.1%}"]


def main():
    """Measures every case and prints the table; returns the exit code."""
    arguments = build_parser().parse_args()
    if arguments.here:
        *which, shapes, case = json.loads(arguments.here)
        print(json.dumps(measure(*which, Shapes(**shapes), CASES[case])))
        return 0
    from bench_extra import append_table

    stage, shapes = arguments.stage, Shapes.of_data(DataConfig(), arguments.batch_size, arguments.seconds)
    whole = list(CASES) if stage == "gpt" else ["none", "mixed precision", "accumulation of 2"]
    found = []
    for size in arguments.sizes:
        for case in arguments.cases or whole:
            model_config = ModelConfig(size, num_text_tokens=VOCABULARY, decoder_type=arguments.decoder)
            estimate = ESTIMATES[stage](model_config, shapes, CASES[case])
            measured = measure_apart(stage, size, arguments.decoder, shapes, case)
            error = estimate.peak / (measured["resident"] + measured["step"]) - 1
            found.append(dict(size=size, case=case, measured=measured, estimate=estimate.as_dict(), error=error))
            print(f"{size}, {case}: {error:+.1%}; {measured} {estimate.resident} {estimate.step}", flush=True)
    append_table(
        f"Memory estimated and measured, MB: {stage} stage, batch {shapes.batch}, {shapes.codes} codes, "
        f"{shapes.text} text tokens, {shapes.frames} conditioning frames",
        "memory_estimate.py",
        HEADER.split(","),
        [cells(one) for one in found],
        append=arguments.append,
    )
    return 1 if any(abs(one["error"]) > LARGEST_ERROR for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())

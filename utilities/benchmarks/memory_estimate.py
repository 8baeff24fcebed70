"""Compares the memory estimates of `myxtts plan` with the measured peaks of real train steps on the CPU.

    python utilities/benchmarks/memory_estimate.py [--stage gpt] [--sizes nano tiny] [--batch-size 4] [--seconds 6]
    python utilities/benchmarks/memory_estimate.py --stage decoder [--decoder hifigan] --sizes nano small

Each case runs in its own process, which takes two warm-up steps and a measured one. Resident memory is the growth of
VmRSS when model and optimizer are created. Step memory is the peak (VmHWM) of the measured step minus VmRSS before this
step. The exit code is 1 if an estimate is off by more than 15 %.

Linux only. The allocator returns each buffer to the system at once (MALLOC_MMAP_THRESHOLD_) and oneDNN's memory pool is
off (TF_ENABLE_ONEDNN_OPTS=0), so that the resident set is the memory in use.
"""

import argparse
import sys
from dataclasses import asdict

import numpy as np
from bench_extra import Worker, answer_requests, append_table

from myxtts.config.config import DataConfig, ModelConfig, XTTSConfig
from myxtts.config.model import DECODER_TYPES
from myxtts.config.rates import MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.devices.machine import peak_resident_bytes, reset_peak, resident_bytes
from myxtts.memory.estimates import Optimizations, Shapes
from myxtts.memory.report import ESTIMATES

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
"""Cases of the GPT stage; other stages leave out the cases with attention or gradient checkpointing."""
HEADER = "size,switches,stays (measured),estimated,step (measured),estimated,peak (measured),estimated,error"
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_MAX_": "1000000",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
"""Environment of the measured process. With more than one thread, layers would overlap and the peak would vary."""


def training_step(stage, config, switches, accumulation=1, device="/device:CPU:0", **options):
    """Creates the `TrainStep` of a stage with a new model, in its last phase, which needs the most memory.

    Args:
        config: `XTTSConfig`.
        switches: Optimizations to use: `Switches`, or `Optimizations`, which has the same attributes.
        options: `xla` and `ema` of `TrainStep`.
    """
    import tensorflow as tf

    from myxtts.training.loop.step import TrainStep
    from myxtts.training.stages.classes import STAGE_CLASSES

    strategy, settings = tf.distribute.OneDeviceStrategy(device), config.stage(stage)
    learner = STAGE_CLASSES[stage](config, dict.fromkeys(STAGES))
    with strategy.scope(), tf.device(device):
        learner.build(None, switches, None)
        step = TrainStep(learner.updates(), strategy, settings, switches.precision, **options)
    if accumulation > 1:
        step.make_accumulators()
    step.phase = learner.phase(999, 1000)  # the last one
    return step


def measure(stage, size, decoder_type, shapes, case):
    """Measures a case in this process; returns `{"resident": bytes, "step": bytes}`. `shapes`: fields of `Shapes`."""
    shapes, optimizations = Shapes(**shapes), CASES[case]

    def step_of(model_config, switches):
        config = XTTSConfig(model=model_config, data=DataConfig(batch_size=shapes.batch))
        return training_step(stage, config, switches, switches.accumulation)

    # What Keras imports and caches for its first model is not counted.
    step_of(ModelConfig("nano", num_text_tokens=8, layers=1, dvae_hidden=8, decoder_type=decoder_type), CASES["none"])
    before = resident_bytes()
    model_config = ModelConfig(size, num_text_tokens=VOCABULARY, decoder_type=decoder_type)
    step = step_of(model_config, optimizations)
    resident = resident_bytes() - before
    batches = [full_batch(stage, model_config, shapes)] * optimizations.accumulation
    for number in range(2):  # traces, then initializes what TensorFlow creates lazily
        step(batches, 1e-4, (0, number))["loss"].numpy()
    before = resident_bytes()
    reset_peak()
    step(batches, 1e-4, (0, 2))["loss"].numpy()
    return {"resident": resident, "step": peak_resident_bytes() - before}


def full_batch(stage, config, shapes):
    """Returns a random batch for a stage, with all clips of full length; `config` is a `ModelConfig`."""
    import tensorflow as tf

    from myxtts.data.batch import DecoderBatch, DVAEBatch, GPTBatch
    from myxtts.models.waveform_decoders import make_decoder

    count, rng = shapes.batch, np.random.default_rng(0)
    index, filled = tf.range(count), lambda value: tf.fill((count,), value)

    def noise(*shape):
        return tf.constant(rng.normal(size=(count, *shape)), tf.float32)

    def integers(low, high, length):
        return tf.constant(rng.integers(low, high, (count, length)), tf.int32)

    if stage == "gpt":
        text, mel = integers(4, config.num_text_tokens, shapes.text), noise(shapes.frames, config.num_mels)
        codes = integers(0, config.num_codes, shapes.codes), filled(shapes.codes)
        return GPTBatch(index, text, filled(shapes.text), mel, *codes, tf.zeros((count, 2), tf.int32))
    if stage == "dvae":
        frames = MEL_FRAMES_PER_CODE * shapes.codes
        return DVAEBatch(index, noise(frames, config.num_mels), filled(frames))
    grid = make_decoder(config)
    length = grid.history_frames + shapes.slice_frames + grid.lookahead_frames
    frames, present = noise(length, config.width), tf.ones((count, length), bool)
    audio = noise(config.speaker_width), 0.1 * noise(shapes.slice_frames * grid.hop_length)
    return DecoderBatch(index, frames, present, *audio, filled(MODEL_SAMPLE_RATE))


def main():
    """Measures every case and prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="gpt", choices=("dvae", "gpt", "decoder"))
    parser.add_argument("--decoder", default="istft", choices=DECODER_TYPES)
    parser.add_argument("--sizes", nargs="+", default=["nano", "tiny", "small"])
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of the clips (default: 6)")
    parser.add_argument("--append", action="store_true", help="append the table to docs/benchmarks.md")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        answer_requests(lambda: lambda request: measure(**request))
        return 0
    stage, shapes = arguments.stage, Shapes.of_data(DataConfig(), arguments.batch_size, arguments.seconds)
    whole = list(CASES) if stage == "gpt" else ["none", "mixed precision", "accumulation of 2"]
    rows, errors = [], []
    for size in arguments.sizes:
        for case in arguments.cases or whole:
            model_config = ModelConfig(size, num_text_tokens=VOCABULARY, decoder_type=arguments.decoder)
            estimate = ESTIMATES[stage](model_config, shapes, CASES[case])
            with Worker(sys.executable, __file__, "--worker", **ENVIRONMENT) as worker:  # a new process for each case
                which = dict(stage=stage, size=size, decoder_type=arguments.decoder, shapes=asdict(shapes), case=case)
                resident, step = worker.ask(which).values()
            errors.append(estimate.peak / (resident + step) - 1)
            sizes = resident, estimate.resident, step, estimate.step, resident + step, estimate.peak
            rows.append([size, case, *(f"{number / 2**20:.0f}" for number in sizes), f"{errors[-1]:+.1%}"])
            print(*rows[-1], sep=" | ", flush=True)
    title = f"Memory estimated and measured, MB: {stage} stage, batch {shapes.batch}, {shapes.codes} codes, "
    title += f"{shapes.text} text tokens, {shapes.frames} conditioning frames"
    append_table(title, "memory_estimate.py", HEADER.split(","), rows, arguments.append)
    return int(max(map(abs, errors)) > LARGEST_ERROR)


if __name__ == "__main__":
    sys.exit(main())

"""Times the input pipeline, the features and the train step, each alone, each on one core.

    python utilities/benchmarks/throughput.py --data ../shared/data/ljspeech_mini

The train step is held against the rate of matrix products that TensorFlow reaches on the same core for the same widths,
measured in the same run. Prints tables and appends them to docs/benchmarks.md.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # librosa's products, on the one core; more threads would wait for each other
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from bench_extra import import_extra  # noqa: E402
from flops import step_flops  # noqa: E402
from hardware import append_table  # noqa: E402  settles what TensorFlow reads when it is imported

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram  # noqa: E402
from myxtts.config.config import DataConfig, ModelConfig, XTTSConfig  # noqa: E402
from myxtts.config.rates import MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.data.batch import GPTBatch  # noqa: E402
from myxtts.data.buckets import BatchOrder  # noqa: E402
from myxtts.data.corpora import load_corpus  # noqa: E402
from myxtts.data.doctor import inspect_corpus  # noqa: E402
from myxtts.data.pipeline import BatchLoader, Clip, SampleCache, wave_dataset  # noqa: E402
from myxtts.models.xtts import XTTS  # noqa: E402
from myxtts.training.loop.step import TrainStep  # noqa: E402
from myxtts.training.stages.base import Update  # noqa: E402
from myxtts.training.stages.gpt import GPTObjective  # noqa: E402

REPEATED_CLIPS = 500


def best_of(function, repeats):
    """Shortest time of `repeats` calls after one that is not counted, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def input_pipeline(folder, repeats):
    """Reads, decodes, resamples where needed, buckets and pads `REPEATED_CLIPS` clips, without any cache."""
    inspected = inspect_corpus(load_corpus(folder)).accepted
    chosen = [inspected[i % len(inspected)] for i in range(REPEATED_CLIPS)]
    clips = [
        Clip(str(i), str(u.wav_path), (4, 5, 6), u.speaker, u.language, u.num_samples) for i, u in enumerate(chosen)
    ]
    order = BatchOrder([c.num_samples for c in clips], [3] * len(clips), 16, 8, seed=0)
    loader = BatchLoader(clips, order, SampleCache(0), seed=0)
    seconds = sum(u.seconds for u in chosen)

    def run():
        for _ in wave_dataset(loader, 0, order.batches_per_epoch, num_workers=1):
            pass

    spent = best_of(run, repeats)
    share = order.batches_per_epoch * order.batch_size / len(clips)
    return [
        [
            "reading to padded batches",
            f"{share * len(clips) / spent:.0f} clips/s",
            f"{share * seconds / 3600 / (spent / 60):.1f} hours of audio per minute",
            f"{share * seconds / spent:.0f}× real time (goal: 1000×)",
            f"padding {100 * order.padding_share():.1f} %",
        ]
    ]


def features(repeats):
    """Log-mels of a batch of eight clips of seven seconds, against librosa on the same core."""
    librosa = import_extra("librosa")
    wav = np.random.default_rng(0).normal(0, 0.1, (8, 7 * MODEL_SAMPLE_RATE)).astype(np.float32)
    extractor = MelSpectrogram(DVAE_MEL)
    ours_function = tf.function(lambda wav: extractor(wav, in_chunks=True))
    batch = tf.constant(wav)
    ours = best_of(lambda: ours_function(batch).numpy(), repeats)

    def reference():
        for clip in wav:
            np.log(
                np.maximum(
                    librosa.feature.melspectrogram(
                        y=clip,
                        sr=DVAE_MEL.sample_rate,
                        n_fft=DVAE_MEL.n_fft,
                        hop_length=DVAE_MEL.hop_length,
                        fmax=8000,
                        n_mels=80,
                        htk=True,
                        norm="slaney",
                    ),
                    1e-5,
                )
            )

    theirs = best_of(reference, repeats)
    return [
        [
            "log-mel",
            f"{8 / ours:.0f} clips/s",
            f"librosa {8 / theirs:.0f} clips/s",
            f"{theirs / ours:.1f}× librosa (goal: 4×)",
        ]
    ]


def gpt_batch(config, batch, num_text, num_codes, conditioning_frames):
    """A full batch of random numbers, without padding."""
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


def matmul_rate(width, rows, repeats):
    """Floating-point operations per second of the MLP's matrix products at this width: the ceiling."""
    x = tf.random.normal((rows, width))
    up, down = tf.random.normal((width, 4 * width)), tf.random.normal((4 * width, width))
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(tf.matmul(x, up), down)))
    return 2 * 2 * rows * width * 4 * width / best_of(lambda: product().numpy(), repeats)


def train_step(size, batch, num_text, num_codes, frames, repeats):
    """One optimizer step of the GPT at a size, against the matrix-product ceiling."""
    model_config = ModelConfig(size, num_text_tokens=512)
    config = XTTSConfig(model=model_config, data=DataConfig(batch_size=batch))
    strategy = tf.distribute.OneDeviceStrategy(tf.config.list_logical_devices()[-1].name)
    with strategy.scope():
        model = XTTS(model_config, parts=("gpt",))
        model.gpt.set_memory_use()
        settings = config.stage("gpt")
        step = TrainStep([Update("", GPTObjective(model, config), settings)], strategy, settings)
    data = gpt_batch(model_config, batch, num_text, num_codes, frames)
    spent = best_of(lambda: step([data], 1e-4, (0, 0))["loss"].numpy(), repeats)
    flops = step_flops(model_config, batch, num_text, num_codes, frames)
    tokens = batch * (model_config.num_latents + num_text + num_codes + 7)
    ceiling = matmul_rate(model_config.width, tokens, repeats * 5)
    return [
        size,
        f"{1e3 * spent:.0f} ms",
        f"{tokens / spent:.0f} tokens/s",
        f"{flops / spent / 1e9:.1f} GFLOP/s",
        f"{ceiling / 1e9:.1f} GFLOP/s",
        f"{100 * flops / spent / ceiling:.0f} % (goal: 60 %)",
    ]


def main():
    """Runs all three on the first core that the process may use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="an LJSpeech-format folder; without it the input pipeline is left out"
    )
    parser.add_argument("--sizes", nargs="+", default=["nano", "tiny", "small"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    command = "python " + " ".join(["utilities/benchmarks/throughput.py", *sys.argv[1:]])
    rows = input_pipeline(arguments.data, arguments.repeats) if arguments.data else []
    if rows:
        append_table("Input pipeline alone, one core", command, ["what", "clips", "audio", "speed", "padding"], rows)
    append_table("Features, one core", command, ["what", "ours", "reference", "ratio"], features(arguments.repeats))
    steps = [train_step(size, 8, 60, 200, 258, arguments.repeats) for size in arguments.sizes]
    append_table(
        "GPT train step, one core, batch 8, 60 text tokens, 200 codes, 258 conditioning frames",
        command,
        ["size", "step", "tokens", "rate", "matrix products alone", "share"],
        steps,
    )


if __name__ == "__main__":
    main()

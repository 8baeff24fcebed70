"""Measures the throughput of the input pipeline, the log-mels and the train step of each stage on one core.

    python utilities/benchmarks/throughput.py --data ../shared/data/ljspeech_mini
    python utilities/benchmarks/throughput.py --sizes nano --repeats 1          smallest case, a minute

Train steps get random batches without padding, since the cost of a step does not depend on the audio.
"""

import argparse
import os
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # librosa uses one core too

import librosa  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from bench_extra import append_table  # noqa: E402  must be imported before TensorFlow
from memory_estimate import full_batch, training_step  # noqa: E402

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram  # noqa: E402
from myxtts.config.config import DataConfig, ModelConfig, XTTSConfig  # noqa: E402
from myxtts.config.model import DECODER_TYPES  # noqa: E402
from myxtts.config.rates import DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.data.batch import BatchOrder  # noqa: E402
from myxtts.data.corpora import load_corpus  # noqa: E402
from myxtts.data.doctor import inspect_corpus  # noqa: E402
from myxtts.data.pipeline import BatchLoader, SampleCache, wave_dataset  # noqa: E402
from myxtts.memory.estimates import Optimizations, Shapes  # noqa: E402
from myxtts.training.stages.decoder import ADVERSARIAL, SPECTRAL  # noqa: E402

REPEATED_CLIPS = 500


def best_of(function: Callable, repeats: int) -> float:
    """Returns the shortest time of `repeats` calls in seconds, after a warm-up call."""
    function()
    return min(timeit.repeat(function, number=1, repeat=repeats))


def input_pipeline(folder: Path, repeats: int) -> list[str]:
    """Times the reading of `REPEATED_CLIPS` clips into padded batches, without a cache; returns a table row."""
    accepted = inspect_corpus(load_corpus(folder)).utterances
    chosen = [accepted[i % len(accepted)] for i in range(REPEATED_CLIPS)]
    clips = [replace(one, tokens=(4, 5, 6)) for one in chosen]
    order = BatchOrder([clip.num_samples for clip in clips], [3] * len(clips), 16, 8, seed=0)
    loader = BatchLoader(clips, order, SampleCache(0), seed=0)
    spent = best_of(lambda: list(wave_dataset(loader, 0, order.batches_per_epoch, num_workers=1)), repeats)
    share = order.batches_per_epoch * order.batch_size / len(clips)
    real_time = share * sum(one.seconds for one in chosen) / spent
    return ["reading", f"{share * len(clips) / spent:.0f} clips/s", f"{real_time:.0f} times real time (goal: 1000)"]


def features(repeats: int) -> list[str]:
    """Times the log-mels of eight clips of seven seconds, in MyXTTS and in librosa; returns a table row."""
    wav = np.random.default_rng(0).normal(0, 0.1, (8, 7 * MODEL_SAMPLE_RATE)).astype(np.float32)
    mel, batch = MelSpectrogram(DVAE_MEL), tf.constant(wav)
    ours_function = tf.function(lambda wav: mel(wav, by_clip=True))
    ours = best_of(lambda: ours_function(batch).numpy(), repeats)
    of_librosa = dict(sr=DVAE_MEL.sample_rate, n_fft=DVAE_MEL.n_fft, hop_length=DVAE_MEL.hop_length, fmax=8000)
    of_librosa |= dict(n_mels=80, htk=True, norm="slaney")
    theirs = best_of(lambda: [librosa.feature.melspectrogram(y=clip, **of_librosa) for clip in wav], repeats)
    return ["log-mel", f"{8 / ours:.0f} clips/s", f"{theirs / ours:.1f} times librosa (goal: 4)"]


def train_steps(size: str, batch_size: int, repeats: int) -> Iterator[list[str]]:
    """Yields a table row for each stage; for the decoder stage, one for each decoder type and phase."""
    data = DataConfig(batch_size=batch_size)
    shapes = Shapes.of_data(data, batch_size, 4.6)

    def step_and_batch(stage, config):
        step = training_step(stage, XTTSConfig(model=config, data=data), Optimizations())
        return step, full_batch(stage, config, shapes)

    def seconds(step, batch):
        return best_of(lambda: step([batch], 1e-4, (0, 0))["loss"].numpy(), repeats)

    for stage, tokens in (("dvae", shapes.codes), ("gpt", shapes.text + shapes.codes)):
        took = seconds(*step_and_batch(stage, ModelConfig(size, num_text_tokens=512)))
        yield [f"{stage}, {size}", f"{1e3 * took:.0f} ms", f"{batch_size * tokens / took:.0f} tokens or codes/s"]
    for decoder_type in DECODER_TYPES:
        step, batch = step_and_batch("decoder", ModelConfig(size, num_text_tokens=8, decoder_type=decoder_type))
        for step.phase in (SPECTRAL, ADVERSARIAL):
            took = seconds(step, batch)
            learned = batch_size * shapes.slice_frames * MEL_HOP_SAMPLES / DECODER_SAMPLE_RATE / took
            yield [f"{decoder_type}, {size}, {step.phase}", f"{1e3 * took:.0f} ms", f"{learned:.2f} s of audio/s"]


def main() -> None:
    """Runs all measurements on the first core that the process may use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of recordings; without it, reading is not measured")
    parser.add_argument("--sizes", nargs="+", default=["nano", "tiny", "small"])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--append", action="store_true", help="append the table to docs/benchmarks.md")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = [input_pipeline(arguments.data, arguments.repeats)] if arguments.data else []
    rows.append(features(arguments.repeats))
    for size in arguments.sizes:
        for row in train_steps(size, arguments.batch_size, arguments.repeats):
            rows.append(row)
            print(" | ".join(row), flush=True)
    append_table("Throughput of one core", "throughput.py", ["what", "time or rate", "rate"], rows, arguments.append)


if __name__ == "__main__":
    main()

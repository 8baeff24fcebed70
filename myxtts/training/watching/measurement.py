"""Measures the time of training steps, either in the whole pipeline, where data preparation and training overlap, or
with batches of noise that are prepared before each step. Also measures matrix products and all-reduces."""

import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from statistics import fmean, median, median_low
from typing import Any

import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.batch import WaveBatch, noise_batch
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import read_processor
from myxtts.memory.estimates import TOKENS_PER_SECOND
from myxtts.training.loop.device_pipeline import StepClock
from myxtts.training.resuming import untrained_foundations
from myxtts.training.stage_trainer import StageTrainer

PHASE_STEPS = 20
"""Number of evenly spaced steps whose phase `try_stage` looks up, to estimate the fraction of steps in each phase."""
PHASE_SECONDS = 15.0
"""Time limit in seconds for the steps that `try_stage` takes in a phase, not counting the first step."""
COMPILED_SHARES = 0.3, 0.5
"""Compiled time divided by eager time, for preparation and the train step; fitted to five runs (docs/benchmarks.md)."""
WARMUP_STEPS = 5
"""Number of steps at the start of a measurement that are not counted, because they trace graphs and fill caches."""
PRODUCT_SIZE = 1024
"""Number of rows and columns of the matrices that `product_rates` multiplies."""


def open_trainer(config: XTTSConfig, plan: DevicePlan, folder: PathLike) -> tuple[StageTrainer, SpeechDataset]:
    """Opens the data set and creates a GPT trainer for timing, with an untrained DVAE and the run folder `folder`."""
    training = replace(config.training, checkpoint_dir=str(folder), reset_training=True)
    dataset = SpeechDataset.open(replace(config, training=training))
    return noise_trainer(dataset.config, plan, folder), dataset


def noise_trainer(config: XTTSConfig, plan: DevicePlan, folder: PathLike, stage: str = "gpt") -> StageTrainer:
    """Creates a trainer for timing `stage`, with untrained models of earlier stages and the run folder `folder`."""
    below = untrained_foundations(config, stage, plan.data_device)
    training = replace(config.training, checkpoint_dir=str(folder), reset_training=True, gradient_accumulation=1)
    return StageTrainer(replace(config, training=training), stage, plan, below)


def measure_pipeline(
    trainer: StageTrainer, dataset: SpeechDataset, num_steps: int, start: int = 0, watch=lambda phase, call: call
) -> StepClock:
    """Takes `WARMUP_STEPS` warm-up steps and then `num_steps` timed steps. Returns the `StepClock`.

    Begins at batch `start`. Changes the weights. Data preparation overlaps with training if
    `trainer.enable_async_pipeline` is True. For `watch`, see `StageTrainer.pipeline`; here, `train` is a third phase.
    """
    clock, step = StepClock(WARMUP_STEPS), watch("train", take_step)
    with trainer.pipeline(dataset, start, start + WARMUP_STEPS + num_steps, watch) as batches:
        batches.wait_until_filled()
        clock.start(batches)
        for position, batch in enumerate(batches):
            step(trainer, batch, position)
            clock.tick()
    return clock


def take_step(trainer: StageTrainer, batch: tuple, position: int) -> dict[str, tf.Tensor]:
    """Takes a training step on one batch at a negligible learning rate. Returns the losses when the step is done."""
    losses = trainer.train_step([batch], 1e-6, (0, position))
    tf.test.experimental.sync_devices()  # a GPU only queues the work
    return losses


def timed(times: list[float], call: Callable, *arguments) -> Any:
    """Calls `call`, waits until all devices are idle, appends the seconds to `times`, and returns the result."""
    began = time.perf_counter()
    result = call(*arguments)
    tf.test.experimental.sync_devices()
    times.append(time.perf_counter() - began)
    return result


def synthetic_waves(config: XTTSConfig, seconds: float, batch_size: int) -> WaveBatch:
    """Creates a batch of noise clips with random texts. Clips last `seconds`, capped at the model's maximum."""
    samples = min(int(seconds * MODEL_SAMPLE_RATE), config.max_samples) // CODE_STRIDE_SAMPLES * CODE_STRIDE_SAMPLES
    tokens = min(int(TOKENS_PER_SECOND * seconds), config.data.max_text_length)
    conditioning = int(config.data.conditioning_seconds[1] * MODEL_SAMPLE_RATE)
    noise = noise_batch(batch_size, samples, tokens, conditioning, config.model.num_text_tokens)
    return tf.nest.map_structure(tf.constant, noise)


def measure_training(
    config: XTTSConfig, plan: DevicePlan, folder: PathLike, clip_seconds: float, budget_seconds: float
) -> list[float]:
    """Times training steps on noise for `budget_seconds`, but at least one step. An extra first step traces graphs and
    is not timed. Returns the seconds of each timed step, including the preparation of its batch."""
    trainer = noise_trainer(config, plan, folder)
    waves = synthetic_waves(config, clip_seconds, trainer.stage_config.batch_size)
    step = lambda n: take_step(trainer, trainer.replicas.transfer(trainer.preparation(waves, n)), n)
    timed([], step, 0)
    times, ends = [], time.perf_counter() + budget_seconds
    while not times or time.perf_counter() < ends:
        timed(times, step, len(times))
    return times


def try_stage(dataset: SpeechDataset, stage: str, plan: DevicePlan) -> tuple[float, float] | None:
    """Estimates the step time of a stage by timing eager steps on one noise clip and on a batch of noise clips.

    Returns:
        None if the stage cannot be trained on the data, else `(eager, batch)` in seconds. `eager` is the time of an
        eager step on one clip (mostly Python overhead). `batch` is the estimated time of a training step. Both are
        means over the stage's phases. If batches take too long to time, `batch` is extrapolated from single clips.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainer = noise_trainer(dataset.config, plan, folder, stage)
    if trainer.stage.nothing_to_learn(dataset):
        return None
    clips = trainer.stage_config.batch_size
    some = min(clips, max(4, clips // 4)) if clips > 1 else 2
    cpu = read_processor()
    scale = 1.8 if min(cpu.cores, cpu.quota or cpu.cores) <= 1 else 1.0  # fitted; on one core nothing runs in parallel
    was_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        alone, each = [], []
        for phase, count in Counter(trainer.stage.phase(step, PHASE_STEPS) for step in range(PHASE_STEPS)).items():
            trainer.train_step.phase = phase
            taken, ends = {}, 0.0
            for size in (1, 1, some, some):  # the first call of each size loads kernels
                fits = int((ends - time.perf_counter()) / sum(taken[1])) if taken else 1
                if fits < size and (fits < 2 or len(taken) > 1):
                    break
                size = min(size, fits)
                taken[size] = []  # seconds of preparation and of training
                timed(taken[size], take_step, trainer, timed(taken[size], trainer.noise, dataset, size, median_low), 0)
                ends = ends or time.perf_counter() + PHASE_SECONDS  # the first call, which loads kernels, is extra
            alone.append(sum(taken[1]))
            most, one = max(taken), taken[1] if len(taken) > 1 else (0.0, 0.0)
            more = sum(share * max(0.0, b - a) for share, a, b in zip(COMPILED_SHARES, one, taken[most]))
            each += [scale * more * clips / (most - (len(taken) > 1))] * count
    finally:
        tf.config.run_functions_eagerly(was_eager)
    return fmean(alone), fmean(each)


def product_rates(device: str) -> dict[str, float]:
    """Measures the speed of matrix products on a device. Returns floating-point operations per second, by dtype."""
    rates, product = {}, tf.function(tf.matmul)
    with tf.device(device):
        for dtype in ("float32", "bfloat16", "float16"):
            x = tf.cast(tf.random.stateless_normal((PRODUCT_SIZE, PRODUCT_SIZE), (0, 0)), dtype)
            timed([], product, x, x)
            count, seconds = timeit.Timer(lambda x=x: timed([], product, x, x)).autorange()
            rates[dtype] = 2 * PRODUCT_SIZE**3 * count / seconds
    return rates


def seconds_of_sum(strategy: tf.distribute.Strategy, num_bytes: int, repeats: int) -> float:
    """Times an all-reduce of `num_bytes` bytes (float32). Returns the median in seconds. All workers must call this."""
    with tf.device(strategy.extended.worker_devices[0]):
        values = tf.ones((num_bytes // 4,))

        @tf.function(autograph=False)
        def total():
            sums = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", values))
            return strategy.experimental_local_results(sums)[0][0]

        float(total())  # traces and connects
        return median(timeit.repeat(lambda: float(total()), number=1, repeat=repeats))

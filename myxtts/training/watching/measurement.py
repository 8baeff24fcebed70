"""Timing of a training step: each phase alone, then the pipeline with its phases overlapping."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from statistics import fmean, median, pstdev

import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.batch import WaveBatch, noise_batch
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.memory.estimates import TOKENS_PER_SECOND
from myxtts.models.xtts import XTTS
from myxtts.training.stage_trainer import StageTrainer

WARMUP_STEPS = 5
"""Steps left out at the start of each measurement: they trace and fill caches."""
PRODUCT_SIZE = 1024
"""Rows and columns of the matrices whose product is timed in each number format."""


@dataclass(frozen=True)
class PhaseTimes:
    """Mean seconds per step of each phase, nothing else running.

    `load` is reading, decoding and padding on the host, with the copy to the data device; `preprocess` is mel
    spectrograms, codes and augmentation there; `transfer` the copy to the model device; `train` the step there.
    """

    load: float
    preprocess: float
    transfer: float
    train: float

    @property
    def data(self) -> float:
        """Seconds of data work per step."""
        return self.load + self.preprocess + self.transfer

    @property
    def total(self) -> float:
        """Seconds of a step without overlap."""
        return self.data + self.train

    @property
    def ceiling(self) -> float:
        """The greatest speed-up that overlapping can bring."""
        return self.total / max(self.data, self.train)


@dataclass
class PipelineTimes:
    """Steps of the pipeline as a whole.

    `step_times` are the seconds of each step, in which the model device waited `wait_seconds` for data. `spans` are
    `(phase, start, end)` in seconds since the first step, of `preprocess`, `transfer` and `train`.
    """

    step_times: list[float] = field(default_factory=list)
    wait_seconds: float = 0.0
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean seconds of a step."""
        return fmean(self.step_times)

    @property
    def variation(self) -> float:
        """Standard deviation over mean of the step times."""
        return pstdev(self.step_times) / self.mean

    @property
    def stall(self) -> float:
        """Share of the time that the model device waited for data."""
        return min(1.0, self.wait_seconds / sum(self.step_times))

    def busy(self, phases: Sequence[str]) -> float:
        """Share of the time in which one of `phases` ran."""
        whole = sum(self.step_times)
        spans = ((max(start, 0.0), min(end, whole)) for phase, start, end in self.spans if phase in phases)
        return sum(max(0.0, end - start) for start, end in spans) / whole


def open_trainer(config: XTTSConfig, plan: DevicePlan, folder: PathLike) -> tuple[StageTrainer, SpeechDataset]:
    """A fresh GPT trainer, without accumulation, and its data set, for measurements; what a run writes is in `folder`.

    The DVAE is untrained, which costs the same time.
    """
    dataset = SpeechDataset.open(_without_history(config, folder))
    return _trainer(dataset.config, plan), dataset


def _without_history(config, folder):
    training = replace(config.training, checkpoint_dir=str(folder), reset_training=True, gradient_accumulation=1)
    return replace(config, training=training)


def _trainer(config, plan):
    with tf.device(plan.data_device):
        dvae_model = XTTS(config.model, parts=("dvae",))
    return StageTrainer(config, "gpt", plan, {"dvae": dvae_model})


def measure_phases(trainer: StageTrainer, dataset: SpeechDataset, num_steps: int) -> PhaseTimes:
    """Times every phase alone, with the devices synchronized after each call. Trains the model.

    `WARMUP_STEPS` come before the `num_steps` that count; the trainer must not accumulate.
    """
    times, kept = ([], [], []), []
    for _ in trainer.stream(dataset, 0, WARMUP_STEPS):
        pass  # the first reads import what decodes and resamples
    # Readers work in parallel and ahead: the time of one read says little, the rate of all how long a step waits.
    began = time.perf_counter()
    for wave in trainer.stream(dataset, WARMUP_STEPS, WARMUP_STEPS + num_steps):
        kept = [*kept, wave][-8:]
    tf.test.experimental.sync_devices()
    load = (time.perf_counter() - began) / num_steps
    for position in range(WARMUP_STEPS + num_steps):
        batch = _timed(times[0], trainer.preparation, kept[position % len(kept)], position)
        batch = _timed(times[1], trainer.replicas.transfer, batch)
        _timed(times[2], take_step, trainer, batch, position)
    return PhaseTimes(load, *(fmean(of_phase[WARMUP_STEPS:]) for of_phase in times))


def measure_pipeline(trainer: StageTrainer, dataset: SpeechDataset, num_steps: int, start: int = 0) -> PipelineTimes:
    """Times the pipeline as a run has it, overlapping if `trainer.enable_async_pipeline`; trains the model."""
    spans, found = [], PipelineTimes()

    def recorded(phase, call):
        def timed(*arguments):
            began = time.perf_counter()
            result = call(*arguments)
            spans.append((phase, began, time.perf_counter()))
            return result

        return timed

    step = recorded("train", take_step)
    with trainer.pipeline(dataset, start, start + WARMUP_STEPS + num_steps, recorded) as batches:
        batches.wait_until_filled()
        for position, batch in enumerate(batches):
            if position == WARMUP_STEPS:
                origin = began = time.perf_counter()
                waited = batches.wait_seconds
            step(trainer, batch, position)
            tf.test.experimental.sync_devices()
            if position >= WARMUP_STEPS:
                now = time.perf_counter()
                found.step_times.append(now - began)
                began = now
                # Not after the last step: what the end of the data takes is no stall.
                found.wait_seconds = batches.wait_seconds - waited
    found.spans = [(phase, start - origin, end - origin) for phase, start, end in spans]
    return found


def take_step(trainer: StageTrainer, batch: tuple, position: int) -> dict[str, tf.Tensor]:
    """One step of the trainer's own train step, at a learning rate that changes next to nothing."""
    return trainer.train_step([batch], 1e-6, (0, position))


def _timed(times, call, *arguments):
    began = time.perf_counter()
    result = call(*arguments)
    tf.test.experimental.sync_devices()
    times.append(time.perf_counter() - began)
    return result


def synthetic_waves(config: XTTSConfig, seconds: float, batch_size: int) -> WaveBatch:
    """Noise, `seconds` long or as long as the model takes, with text of the usual length."""
    samples = min(int(seconds * MODEL_SAMPLE_RATE), config.max_samples) // CODE_STRIDE_SAMPLES * CODE_STRIDE_SAMPLES
    tokens = min(int(TOKENS_PER_SECOND * seconds), config.data.max_text_length)
    conditioning = int(config.data.conditioning_seconds[1] * MODEL_SAMPLE_RATE)
    noise = noise_batch(batch_size, samples, tokens, conditioning, config.model.num_text_tokens)
    return tf.nest.map_structure(tf.constant, noise)


def measure_training(
    config: XTTSConfig, plan: DevicePlan, folder: PathLike, clip_seconds: float, budget_seconds: float
) -> list[float]:
    """Times whole training steps on noise, data work included, one after the other: seconds of each, at least one.

    It ends after the step in which `budget_seconds` have passed since the first one, which traces and does not count.
    """
    trainer = _trainer(_without_history(config, folder), plan)
    waves = synthetic_waves(config, clip_seconds, trainer.stage_config.batch_size)

    def step(position):
        take_step(trainer, trainer.replicas.transfer(trainer.preparation(waves, position)), position)

    _timed([], step, 0)
    times, ends = [], time.perf_counter() + budget_seconds
    while not times or time.perf_counter() < ends:
        _timed(times, step, len(times))
    return times


def product_rates(device: str) -> dict[str, float]:
    """Floating-point operations per second of a product of square matrices on a device, by number format."""
    rates, product = {}, tf.function(tf.matmul)
    with tf.device(device):
        for dtype in ("float32", "bfloat16", "float16"):
            x = tf.cast(tf.random.stateless_normal((PRODUCT_SIZE, PRODUCT_SIZE), (0, 0)), dtype)
            _timed([], product, x, x)
            times = []
            while sum(times) < 0.3:
                _timed(times, product, x, x)
            rates[dtype] = 2 * PRODUCT_SIZE**3 / fmean(times)
    return rates


def seconds_of_sum(strategy: tf.distribute.Strategy, num_bytes: int, repeats: int) -> float:
    """Median seconds of an all-reduce of so many bytes of float32, as of gradients; to be called on all workers."""
    with tf.device(strategy.extended.worker_devices[0]):
        values = tf.ones((num_bytes // 4,))

        @tf.function
        def total():
            sums = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", values))
            return strategy.experimental_local_results(sums)[0][0]

        float(total())  # traced, and connections made
        times = []
        for _ in range(repeats):
            _timed(times, lambda: float(total()))
    return median(times)

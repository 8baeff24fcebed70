"""Finds the largest batch size that fits in memory and splits batches if memory runs out in a step."""

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.machine import peak_resident_bytes, read_memory, reset_peak, resident_bytes, runs_on_cpu
from myxtts.training.loop.device_pipeline import Replicas
from myxtts.training.loop.step import TrainStep

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

MB = 2**20
_FIX = "Use a smaller --model-size or data.max_seconds"


class Batching:
    """Takes optimizer steps. If memory runs out in a step, splits the batches into more parts and repeats the step.

    Checkpoints contain batch size, accumulation and number of parts. If `automatic` is True (`--batch-size auto`), a
    resumed run restores all three. Otherwise it restores the number of parts, but only for an unchanged batch size.
    """

    def __init__(self, train_step: TrainStep, replicas: Replicas, batch_size: int, accumulation: int, automatic=False):
        self.train_step, self._replicas, self.automatic = train_step, replicas, automatic
        self.batch_size, self.accumulation, self.parts = batch_size, accumulation, 1
        """In this order: clips per batch (over all replicas), batches per optimizer step, and parts per batch."""

    @property
    def clips(self) -> int:
        """Number of clips per forward pass, on all devices together."""
        return self.batch_size // self.parts

    def take_step(self, group: list, learning_rate: float, seed: tuple[int, int]) -> dict[str, tf.Tensor]:
        """Takes an optimizer step on the batches in `group` and returns the losses. If memory runs out, splits each
        batch into more parts and repeats the step. Raises `ConfigError` if the step cannot be split or repeated."""
        while True:
            batches = [part for batch in group for part in self._replicas.split(batch, self.parts)]
            try:
                return self.train_step(batches, learning_rate, seed)
            except tf.errors.ResourceExhaustedError as error:
                reason = error.message.splitlines()[0]
            del batches
            before, share = self.clips, self.batch_size // self._replicas.count
            if not (smaller := [parts for parts in range(self.parts + 1, share + 1) if share % parts == 0]):
                raise ConfigError(f"One clip at a time does not fit on {self._replicas.devices[0]} ({reason}). {_FIX}.")
            step = seed[1] + 1
            if self._replicas.workers.count > 1 or not self.train_step.forget_partial_step():
                flags = f"--batch-size {self.batch_size // smaller[0]} --grad-accum {self.accumulation * smaller[0]}"
                raise ConfigError(f"Memory ran out at step {step} with {before} clips ({reason}). Resume with {flags}.")
            self.parts = smaller[0]
            logger.warning(
                "Memory ran out at step %d with %d clips at once. The step is repeated with %d at once, in %d parts of "
                "the same batch of %d. TensorFlow: %s",
                *(step, before, self.clips, self.parts, self.batch_size, reason),
            )

    def state(self) -> dict:
        return {"batch_size": self.batch_size, "parts": self.parts, "accumulation": self.accumulation}

    def restore(self, state: dict) -> None:
        """Restores all of `state` if `automatic`; if not, only its `parts`, provided the batch size is unchanged."""
        batch_size, accumulation, parts = (int(state[name]) for name in ("batch_size", "accumulation", "parts"))
        if min(batch_size, accumulation, parts) < 1 or batch_size % parts:
            raise ValueError(f"a batch of {batch_size} clips cannot be split into {parts} parts")
        if self.automatic:
            self.batch_size, self.accumulation = batch_size, accumulation
        share = self.batch_size // self._replicas.count  # smaller if the run now has more devices
        if self.batch_size == batch_size:
            self.parts = next((more for more in range(parts, share) if share % more == 0), share)


def with_batch(config: XTTSConfig, stage: str, batch_size: int, accumulation: int) -> XTTSConfig:
    """Returns a copy of a configuration with a new batch size for `stage` and a new gradient accumulation."""
    stages = {**config.training.stages, stage: replace(config.training.stages[stage], batch_size=batch_size)}
    return replace(config, training=replace(config.training, stages=stages, gradient_accumulation=accumulation))


def fit_batch_size(trainer: "StageTrainer", dataset: SpeechDataset) -> SpeechDataset:
    """Sets a new run's batch size to the largest that fits in memory. Returns `dataset` with the trainer's config."""
    batching = trainer.batching
    if trainer.step == 0:
        effective = batching.batch_size * batching.accumulation
        batching.batch_size = _largest_that_fits(trainer, dataset, effective)
        batching.accumulation = effective // batching.batch_size
        trainer.adopt_batching()
    else:
        sizes = batching.batch_size, batching.accumulation
        logger.info("Batch size auto: a resumed run keeps %d clips at once, %d times per update.", *sizes)
    return replace(dataset, config=trainer.config)


def peak_bytes(trainer: "StageTrainer", dataset: SpeechDataset, size: int, parts: int) -> int:
    """Returns the peak memory in bytes of a step on `parts` batches of `size` maximum-length clips. Undoes the step."""
    step = trainer.train_step
    variables = trainer.placed_variables().values()
    before = [variable.numpy() for variable in variables]
    try:
        earlier = reset_peak()
        float(step([trainer.noise(dataset, size)] * parts, 0.0, (0, 0))["loss"])  # reading it waits for the device
        peak = peak_resident_bytes()
        return peak if peak > earlier else resident_bytes()  # an earlier peak stays where it cannot be reset
    finally:
        for variable, value in zip(variables, before):
            variable.assign(value)
        step.forget_partial_step()
        step.drop_accumulators()


def _largest_that_fits(trainer, dataset, effective):
    """Returns the largest batch size that fits in memory. Tries a few divisors of `effective`, the clips per step."""
    # A CPU has swap instead of a hard limit, so its sizes must fit the budget, as extrapolated from the last two sizes.
    replicas = trainer.replicas.count
    sizes = [size for size in range(replicas, effective + 1, replicas) if effective % size == 0]
    trials, reason, base, budget = {}, "", resident_bytes(), math.inf
    if runs_on_cpu(trainer.model_device):
        megabytes = trainer.config.training.memory_budget_mb
        budget = 0.5 * read_memory().usable if megabytes is None else megabytes * MB
    for size in sizes:
        if trials and size < 2 * max(trials):
            continue
        if len(trials) > 1:
            (few, less), (many, more) = list(trials.items())[-2:]
            if (expected := more + max(0.0, (more - less) / (many - few)) * (size - many)) > budget:
                reason = f"{size} would take about {expected / MB:.0f} MB of the budget of {budget / MB:.0f} MB"
                break
        try:
            taken = peak_bytes(trainer, dataset, size, min(2, effective // size)) - base
        except tf.errors.ResourceExhaustedError as error:
            reason = f"{size} does not fit: {error.message.splitlines()[0]}"
            break
        if taken > budget:
            reason = f"{size} takes {taken / MB:.0f} MB, more than the budget of {budget / MB:.0f} MB"
            break
        trials[size] = taken
    if not trials:
        raise ConfigError(f"--batch-size auto: a batch of {reason}. {_FIX}; on a CPU, raise --memory-budget.")
    best = max(trials)
    tried = (f"{one} ({taken / MB:.0f} MB)" if budget < math.inf else str(one) for one, taken in trials.items())
    found = best, effective // best, effective, ", ".join(tried) + (f"; {reason}" if reason else "")
    logger.info("Batch size auto: %d clips at once, %d times per update of %d. Tried: %s", *found)
    return best

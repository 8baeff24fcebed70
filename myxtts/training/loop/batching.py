"""How many clips are trained on at once: found by trial, and made fewer when memory runs out.

The batch that counts, whose tokens have one mean, stays what it is: what does not fit at once is summed up in parts.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from myxtts.config.checks import ConfigError, require
from myxtts.config.config import XTTSConfig
from myxtts.data.batch import WaveBatch, noise_batch
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.kinds import runs_on_cpu
from myxtts.devices.machine import read_memory
from myxtts.devices.memory_use import PeakMemory, resident_bytes
from myxtts.training.loop.replicas import Replicas
from myxtts.training.loop.step import TrainStep
from myxtts.training.stages.base import Stage

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

FREE_SHARE = 0.5
"""Share of the free main memory that trials on a CPU may take where no budget is set."""
MB = 2**20
Trial = Callable[[int, int], int | None]
"""`(size, parts) -> bytes at the peak`: takes a step on `parts` batches of `size` of the longest clips; undoes it."""


class OutOfMemory(ConfigError):
    """Memory runs out even for the smallest batch, or ran out where a step cannot be taken again."""


class Batching:
    """How a batch is trained on: how many clips make one, how many batches an update, in how many parts each.

    An error for lack of memory halves what is trained on at once, and the step is taken again: its batches are still
    there, and no weight has changed. A checkpoint keeps how a batch was split, so a resumed run splits it alike.

    `automatic` says whether sizes are found by trial; a resumed run then keeps those of its checkpoint.
    """

    def __init__(
        self, train_step: TrainStep, replicas: Replicas, batch_size: int, accumulation: int, automatic: bool = False
    ):
        count = replicas.count
        rule = f"a multiple of the number of training devices, {count}"
        require(batch_size % count == 0, "--batch-size", rule, batch_size)
        self.train_step, self._replicas, self.automatic = train_step, replicas, automatic
        self.batch_size, self.accumulation = batch_size, accumulation
        """Clips per batch, a multiple of the number of replicas, and batches per update."""
        self.parts = 1
        """Parts that each batch is split into."""

    @property
    def clips(self) -> int:
        """Clips that are trained on at once, on all devices together."""
        return self.batch_size // self.parts

    def use(self, batch_size: int, accumulation: int) -> None:
        """Takes batches of another size from here on, and this many for an update; the data set must, too."""
        self.batch_size, self.accumulation = batch_size, accumulation
        self.train_step.drop_accumulators()
        if accumulation > 1:
            self.make_accumulators()

    def make_accumulators(self) -> None:
        """Makes what several batches an update need, on the model device."""
        with self._replicas.scope():
            self.train_step.make_accumulators()

    def trace_for(self, examples: list) -> None:
        """Lets the step trace for batches like these, in the parts that they are trained on in."""
        self.train_step.trace_for([self._replicas.split(example, self.parts)[0] for example in examples])

    def take_step(self, group: list, learning_rate: float, seed: tuple[int, int]) -> dict[str, tf.Tensor]:
        """Takes one optimizer step, as `TrainStep` does; `seed` ends in the steps taken so far.

        Raises:
            OutOfMemory: A single clip does not fit, or weights were being changed when memory ran out.
        """
        while True:
            batches = [part for batch in group for part in self._replicas.split(batch, self.parts)]
            try:
                return self.train_step(batches, learning_rate, seed)
            except tf.errors.ResourceExhaustedError as error:
                reason = error.message.splitlines()[0]
                if self._replicas.workers.count > 1:
                    raise self._out_of_memory("Workers cannot take smaller parts", reason) from error
            del batches
            self._back_off(reason, seed[1] + 1)

    def _back_off(self, reason, step):
        if not self.train_step.forget_partial_step():
            raise self._out_of_memory(f"Step {step} was changing the weights; the checkpoints are untouched", reason)
        before, share = self.clips, self.batch_size // self._replicas.count
        smaller = [parts for parts in range(self.parts + 1, share + 1) if share % parts == 0]
        if not smaller:
            raise OutOfMemory(
                f"{self._replicas.devices[0]} has no memory for even one clip at a time ({reason}). Take a smaller "
                "--model-size or a smaller data.max_seconds."
            )
        self.parts = smaller[0]
        self.make_accumulators()
        logger.warning(
            "Memory ran out at step %d with %d clips at once: from here on %d at once, in %d parts that make the same "
            "batch of %d. The step is taken again, nothing is lost. TensorFlow: %s",
            *(step, before, self.clips, self.parts, self.batch_size, reason),
        )

    def _out_of_memory(self, why, reason):
        advice = f"Run the command again with --batch-size {self.clips // 2} and twice the --grad-accum."
        return OutOfMemory(f"Memory ran out with {self.clips} clips at once ({reason}). {why}. {advice}")

    def fit(self, budget: float | None, trial: Trial) -> None:
        """Takes the most clips at once that `largest_that_fits` finds; the effective batch stays what it is."""
        clips = self.batch_size * self.accumulation
        best = largest_that_fits(clips, self._replicas.count, budget, trial)
        self.use(best, clips // best)

    def state(self) -> dict:
        """What goes into a checkpoint, as JSON values."""
        return {"batch_size": self.batch_size, "parts": self.parts, "accumulation": self.accumulation}

    def restore(self, state: dict) -> None:
        """Takes up what `state` gave. A size found by trial is kept: the order of the data rests on it."""
        batch_size, accumulation, parts = (int(state[name]) for name in ("batch_size", "accumulation", "parts"))
        if min(batch_size, accumulation, parts) < 1 or batch_size % parts:
            raise ValueError(f"{batch_size} clips cannot be trained on {accumulation} times in {parts} parts")
        if self.automatic:
            self.use(batch_size, accumulation)
        if self.batch_size == batch_size:
            self.parts = parts
            if self.parts > 1:
                self.make_accumulators()


def with_batch(config: XTTSConfig, stage: str, batch_size: int, accumulation: int) -> XTTSConfig:
    """A copy of an `XTTSConfig` with these batches in one stage."""
    stages = {**config.training.stages, stage: replace(config.training.stages[stage], batch_size=batch_size)}
    return replace(config, training=replace(config.training, stages=stages, gradient_accumulation=accumulation))


def largest_that_fits(effective: int, replicas: int, budget: float | None, trial: Trial) -> int:
    """Finds the most clips that fit at once, by trial.

    The effective batch stays what it is: sizes that divide it are tried, each at least twice the one before. On a CPU,
    where nothing would end a step that takes too much, a size is only tried while its memory, foreseen from those
    before, is in the budget.

    Args:
        effective: Clips per update.
        budget: Bytes that a trial may take; None where the device itself refuses.

    Raises:
        OutOfMemory: Not even the smallest batch fits.
    """
    sizes = [size for size in range(replicas, effective + 1, replicas) if effective % size == 0]
    trials, reason, base, size = {}, "", resident_bytes(), sizes[0]
    limit = math.inf if budget is None else budget
    while size is not None:
        foreseen = _foreseen(trials, size)
        if foreseen > limit:
            reason = f"{size} would take some {foreseen / MB:.0f} MB, and the budget is {limit / MB:.0f} MB"
            break
        try:
            peak = trial(size, min(2, effective // size))
        except tf.errors.ResourceExhaustedError as error:
            reason = f"{size} does not fit: {error.message.splitlines()[0]}"
            break
        taken = peak - base if peak is not None else 0
        if taken > limit:
            reason = f"{size} takes {taken / MB:.0f} MB, and the budget is {limit / MB:.0f} MB"
            break
        trials[size] = taken
        size = next((larger for larger in sizes if larger >= 2 * size), None)
    if not trials:
        raise OutOfMemory(
            f"--batch-size auto: not even {sizes[0]} clip{'s' * (sizes[0] > 1)} at once can be trained on. {reason}. "
            "Take a smaller --model-size or data.max_seconds, or raise --memory-budget."
        )
    best = max(trials)
    tried = (f"{one} ({taken / MB:.0f} MB)" if budget is not None else str(one) for one, taken in trials.items())
    tried = ", ".join(tried) + (f"; {reason}" if reason else "")
    found = best, effective // best, effective, tried
    logger.info("Batch size auto: %d clips at once, %d times an update of %d. Tried %s", *found)
    return best


def memory_budget(megabytes: int | None, device: str) -> float | None:
    """Bytes that trials on `device` may take: what was asked for, else a share of what is free; None on a GPU."""
    if not runs_on_cpu(device):
        return None
    if megabytes is not None:
        return megabytes * MB
    usable = read_memory().usable
    if usable is None:
        unknown = "this system does not tell how much memory is free"
        raise ConfigError(f"--batch-size auto needs --memory-budget here: {unknown}.")
    return FREE_SHARE * usable


def _foreseen(trials, size):
    """Bytes that a trial of `size` clips will take, on the line through the last two; 0 before there are two."""
    if len(trials) < 2:
        return 0.0
    (few, less), (many, more) = sorted(trials.items())[-2:]
    return more + max(0.0, (more - less) / (many - few)) * (size - many)


def measured_trial(batching: Batching, stage: Stage, make_batch: Callable[[int], NamedTuple]) -> Trial:
    """A trial, on so many of the longest clips as `make_batch` makes them, that leaves all variables as they were."""
    train_step = batching.train_step

    def trial(size, parts):
        if parts > 1:
            batching.make_accumulators()
        variables = {**stage.all_weights(), **train_step.state_variables(), **train_step.averages()}.values()
        before = [variable.numpy() for variable in variables]
        try:
            with PeakMemory() as memory:
                losses = train_step([make_batch(size)] * parts, 0.0, (0, 0))
                float(losses["loss"])  # waits for the device
        finally:
            for variable, value in zip(variables, before):
                variable.assign(value)
            train_step.forget_partial_step()
            train_step.forget_traces()
        return memory.peak

    return trial


def fit_batch_size(trainer: "StageTrainer", dataset: SpeechDataset) -> SpeechDataset:
    """The data set with the largest batches that fit, found by trial; a resumed run keeps its own."""
    name, batching, stage = trainer.stage.name, trainer.batching, trainer.stage
    if trainer.step == 0:
        trainer.train_step.phase = stage.phase(1, 1)  # the last, which takes most
        budget = memory_budget(trainer.config.training.memory_budget_mb, trainer.model_device)
        batching.fit(budget, measured_trial(batching, stage, partial(trainer.noise, dataset)))
        trainer.adopt_batching()
    return replace(dataset, config=with_batch(dataset.config, name, batching.batch_size, batching.accumulation))


def noise_waves(dataset: SpeechDataset, stage: str, size: int, pick: Callable = max) -> WaveBatch:
    """A `WaveBatch` of noise of the greatest (by `min`: least) padded length in samples and in tokens of a stage."""
    loader = dataset.train_loader(stage)
    num_samples, num_tokens = (pick(lengths) for lengths in zip(*loader.order.shapes))
    conditioning = loader.conditioning.max_samples if loader.conditioning else 0
    widths = num_samples, num_tokens, conditioning
    noise = noise_batch(size, *widths, dataset.config.model.num_text_tokens, loader.targets)
    return tf.nest.map_structure(tf.constant, noise)

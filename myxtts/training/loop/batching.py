"""How many clips are trained on at once: found by trial, and fewer when memory runs out.

The effective batch, whose tokens have one mean, stays the same: what does not fit at once is summed up in parts.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import tensorflow as tf

from myxtts.config.checks import ConfigError, require
from myxtts.config.config import XTTSConfig
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.kinds import runs_on_cpu
from myxtts.devices.machine import PeakMemory, read_memory, resident_bytes
from myxtts.training.loop.replicas import Replicas
from myxtts.training.loop.step import TrainStep

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

FREE_SHARE = 0.5
"""Share of the free main memory that trials on a CPU may take where no budget is set."""
MB = 2**20
Trial = Callable[[int, int], int | None]
"""`(size, parts) -> bytes at the peak` of a step on `parts` batches of `size` clips, which changes no variable."""


class OutOfMemory(ConfigError):
    """Memory runs out for the smallest batch, or where a step cannot be taken again."""


class Batching:
    """How a batch is trained on: clips in a batch, batches in an update, parts of each batch.

    When memory runs out, each batch is split into more parts, and the step is taken again: its batches are still there,
    and no weight has changed. Checkpoints keep the sizes, so a resumed run splits its batches alike. `automatic` says
    whether sizes are found by trial; a resumed run then keeps those of its checkpoint.
    """

    def __init__(
        self, train_step: TrainStep, replicas: Replicas, batch_size: int, accumulation: int, automatic: bool = False
    ):
        count = replicas.count
        rule = f"a multiple of the number of training devices, {count}"
        require(batch_size % count == 0, "--batch-size", rule, batch_size)
        self.train_step, self._replicas, self.automatic = train_step, replicas, automatic
        self.batch_size, self.accumulation, self.parts = batch_size, accumulation, 1
        """Clips per batch, a multiple of the number of replicas; batches per update; parts of each batch."""

    @property
    def clips(self) -> int:
        """Clips that are trained on at once, on all devices together."""
        return self.batch_size // self.parts

    def use(self, batch_size: int, accumulation: int) -> None:
        """Changes the size of batches, and how many make an update; the data set must change, too."""
        self.batch_size, self.accumulation = batch_size, accumulation
        self.train_step.drop_accumulators()
        if accumulation > 1:
            self.make_accumulators()

    def make_accumulators(self) -> None:
        """Creates the gradient accumulators on the model device."""
        with self._replicas.scope():
            self.train_step.make_accumulators()

    def trace_for(self, examples: list) -> None:
        """Traces the step for batches like these, in their parts."""
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

    def state(self) -> dict:
        """JSON values for a checkpoint."""
        return {"batch_size": self.batch_size, "parts": self.parts, "accumulation": self.accumulation}

    def restore(self, state: dict) -> None:
        """Inverse of `state`. A size found by trial is kept, because the order of the data depends on it."""
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


def fit_batch_size(trainer: "StageTrainer", dataset: SpeechDataset) -> SpeechDataset:
    """The data set with the largest batches that fit, found by trial; a resumed run keeps its own."""
    batching = trainer.batching
    if trainer.step == 0:
        trainer.train_step.phase = trainer.stage.phase(1, 1)  # the last, which takes most
        budget = _memory_budget(trainer.config.training.memory_budget_mb, trainer.model_device)
        clips = batching.batch_size * batching.accumulation
        best = _largest_that_fits(clips, trainer.replicas.count, budget, measured_trial(trainer, dataset))
        batching.use(best, clips // best)
        trainer.adopt_batching()
    sizes = batching.batch_size, batching.accumulation
    return replace(dataset, config=with_batch(dataset.config, trainer.stage.name, *sizes))


def _memory_budget(megabytes, device):
    """Bytes that trials on `device` may take: those asked for, else a share of what is free; infinite on a GPU."""
    if not runs_on_cpu(device):
        return math.inf
    if megabytes is not None:
        return megabytes * MB
    return FREE_SHARE * read_memory().usable


def measured_trial(trainer: "StageTrainer", dataset: SpeechDataset) -> Trial:
    """A `Trial` on the longest clips of the data set."""
    batching, step = trainer.batching, trainer.train_step

    def trial(size, parts):
        if parts > 1:
            batching.make_accumulators()
        variables = {**trainer.stage.all_weights(), **step.state_variables(), **step.averages()}.values()
        before = [variable.numpy() for variable in variables]
        try:
            with PeakMemory() as memory:
                losses = step([trainer.noise(dataset, size)] * parts, 0.0, (0, 0))
                float(losses["loss"])  # waits for the device
        finally:
            for variable, value in zip(variables, before):
                variable.assign(value)
            step.forget_partial_step()
            step.forget_traces()
        return memory.peak

    return trial


def _largest_that_fits(effective, replicas, budget, trial):
    """The largest number of clips at once that fits, with an effective batch of `effective` clips.

    Sizes that divide it are tried, each at least twice the one before. On a CPU, where nothing would end a step that
    takes too much, a size is only tried while its memory, on the line through the last two, is within the budget.
    """
    sizes = [size for size in range(replicas, effective + 1, replicas) if effective % size == 0]
    trials, reason, base = {}, "", resident_bytes()
    for size in sizes:
        if trials and size < 2 * max(trials):
            continue
        if len(trials) > 1:
            (few, less), (many, more) = list(trials.items())[-2:]
            expected = more + max(0.0, (more - less) / (many - few)) * (size - many)
            if expected > budget:
                reason = f"{size} would take some {expected / MB:.0f} MB, and the budget is {budget / MB:.0f} MB"
                break
        try:
            peak = trial(size, min(2, effective // size))
        except tf.errors.ResourceExhaustedError as error:
            reason = f"{size} does not fit: {error.message.splitlines()[0]}"
            break
        taken = peak - base
        if taken > budget:
            reason = f"{size} takes {taken / MB:.0f} MB, and the budget is {budget / MB:.0f} MB"
            break
        trials[size] = taken
    if not trials:
        raise OutOfMemory(
            f"--batch-size auto: not even {sizes[0]} clip{'s' * (sizes[0] > 1)} at once can be trained on. {reason}. "
            "Take a smaller --model-size or data.max_seconds, or raise --memory-budget."
        )
    best = max(trials)
    tried = (f"{one} ({taken / MB:.0f} MB)" if budget < math.inf else str(one) for one, taken in trials.items())
    found = best, effective // best, effective, ", ".join(tried) + (f"; {reason}" if reason else "")
    logger.info("Batch size auto: %d clips at once, %d times an update of %d. Tried %s", *found)
    return best

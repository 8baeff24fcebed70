"""How many clips are trained on at once: found by trial, and made fewer when memory runs out.

The batch that counts, whose tokens have one mean, stays what it is: what does not fit at once is summed up in parts.
"""

import copy
import logging
from dataclasses import replace

import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.data.batch import noise_batch
from myxtts.devices.kinds import runs_on_cpu
from myxtts.devices.machine import read_memory
from myxtts.devices.memory_use import PeakMemory, resident_bytes
from myxtts.models.xtts import named_weights

logger = logging.getLogger(__name__)

FREE_SHARE = 0.5
"""Share of the free main memory that trials on a CPU may take where no budget is set."""
MB = 2**20


class OutOfMemory(ConfigError):
    """Memory runs out even for the smallest batch, or ran out where a step cannot be taken again."""


class MicroBatches:
    """Takes train steps, in parts of a batch where a whole one does not fit in memory.

    An error for lack of memory halves what is trained on at once, and the step is taken again: its batches are still there,
    and no weight has changed. What a checkpoint keeps of it lets a resumed run split in the same way.

    Args:
        trainer: `XTTSTrainer`.
    """

    def __init__(self, trainer):
        self._trainer = trainer
        self.parts = 1
        """Parts that each batch is split into."""

    @property
    def clips(self):
        """Clips that are trained on at once, on all devices together."""
        return self._trainer.stage_config.batch_size // self.parts

    def step(self, group, learning_rate, seed):
        """Takes one optimizer step; arguments and result are those of `TrainStep`.

        Raises:
            OutOfMemory: A single clip does not fit, or weights were being changed when memory ran out.
        """
        while True:
            batches = [part for batch in group for part in self._split(batch)]
            try:
                return self._trainer.train_step(batches, learning_rate, seed)
            except tf.errors.ResourceExhaustedError as error:
                reason = error.message.splitlines()[0]
            del batches
            self._back_off(reason)

    def _split(self, batch):
        if self.parts == 1:
            return [batch]
        strategy, pieces = self._trainer.strategy, []
        for local, device in zip(strategy.experimental_local_results(batch), self._trainer.model_devices):
            with tf.device(device):
                pieces.append(list(zip(*(tf.split(field, self.parts) for field in local))))
        pieces = [[type(batch)(*piece) for piece in shard] for shard in pieces]
        if len(pieces) == 1:
            return pieces[0]
        return [
            strategy.experimental_distribute_values_from_function(
                lambda context, part=part: pieces[context.replica_id_in_sync_group][part]
            )
            for part in range(self.parts)
        ]

    def _back_off(self, reason):
        trainer = self._trainer
        if not trainer.train_step.forget_partial_step():
            raise OutOfMemory(
                f"Memory ran out while step {trainer.step + 1} changed the weights ({reason}). The checkpoints "
                f"are untouched: the same command goes on from the last one; --batch-size {self.clips // 2} "
                "with twice the --grad-accum needs less."
            )
        replicas, before = len(trainer.model_devices), self.clips
        share = trainer.stage_config.batch_size // replicas
        smaller = [parts for parts in range(self.parts + 1, share + 1) if share % parts == 0]
        if not smaller:
            raise OutOfMemory(
                f"{trainer.model_device} has no memory for one clip at a time ({reason}). Take a smaller "
                "--model-size or a smaller data.max_seconds."
            )
        self.parts = smaller[0]
        trainer.make_accumulators()
        logger.warning(
            "Memory ran out at step %d with %d clips at once: from here on %d at once, in %d parts that make the "
            "same batch of %d. The step is taken again, nothing is lost. TensorFlow: %s",
            trainer.step + 1,
            before,
            self.clips,
            self.parts,
            trainer.stage_config.batch_size,
            reason,
        )

    def state(self):
        """What goes into a checkpoint, as JSON values."""
        return {
            "batch_size": self._trainer.stage_config.batch_size,
            "parts": self.parts,
            "accumulation": self._trainer.config.training.gradient_accumulation,
        }

    def restore(self, state):
        """Takes up what `state` gave. An automatic batch size is the one found then: the order of the data rests on it."""
        if self._trainer.config.training.automatic_batch_size:
            self._trainer.use_batch(state["batch_size"], state["accumulation"])
        if self._trainer.stage_config.batch_size == state["batch_size"]:
            self.parts = state["parts"]
            if self.parts > 1:
                self._trainer.make_accumulators()


def with_batch(config, stage, batch_size, accumulation):
    """A copy of an `XTTSConfig` with these batches in one stage."""
    stage_config = replace(getattr(config.training, stage), batch_size=batch_size)
    return replace(
        config, training=replace(config.training, **{stage: stage_config}, gradient_accumulation=accumulation)
    )


def fit_batch_size(trainer, dataset):
    """Finds the most clips that fit at once, by trial, and makes trainer and data set use them; a resumed run keeps its own.

    The effective batch, `batch_size` times `gradient_accumulation`, stays what it is. A trial is a whole train step on a
    batch as long as the data set has; afterwards every weight, slot and counter is put back. On a CPU, where nothing would
    end a step that takes too much, a trial is only made while its memory, foreseen from those before, is in the budget.

    Args:
        trainer: `XTTSTrainer` before its first step in this process.
        dataset: `LJSpeechDataset`.

    Returns:
        The data set with batches of the size found.

    Raises:
        OutOfMemory: Not even the smallest batch fits.
    """
    if trainer.step == 0:
        best, effective = _largest_that_fits(trainer, dataset)
        trainer.use_batch(best, effective // best)
    dataset = copy.copy(dataset)
    dataset.config = with_batch(
        dataset.config, trainer.stage, trainer.stage_config.batch_size, trainer.config.training.gradient_accumulation
    )
    return dataset


def _largest_that_fits(trainer, dataset):
    """Most clips that fit at once, and the effective batch that is a multiple of them."""
    effective = trainer.stage_config.batch_size * trainer.config.training.gradient_accumulation
    replicas = len(trainer.model_devices)
    sizes = [size for size in range(replicas, effective + 1, replicas) if effective % size == 0]
    budget = _budget(trainer.config.training.memory_budget_mb) if runs_on_cpu(trainer.model_device) else None
    trials, reason, base = {}, "", resident_bytes()
    size = sizes[0]
    while size is not None:
        foreseen = _foreseen(trials, size)
        if budget is not None and foreseen is not None and foreseen > budget:
            reason = f"{size} would take some {foreseen / MB:.0f} MB, and the budget is {budget / MB:.0f} MB"
            break
        try:
            peak = _trial(trainer, dataset, size, parts=min(2, effective // size))
        except tf.errors.ResourceExhaustedError as error:
            reason = f"{size} does not fit: {error.message.splitlines()[0]}"
            break
        taken = peak - base if peak is not None else 0
        if budget is not None and taken > budget:
            reason = f"{size} takes {taken / MB:.0f} MB, and the budget is {budget / MB:.0f} MB"
            break
        trials[size] = taken
        size = next((larger for larger in sizes if larger >= 2 * size), None)
    if not trials:
        raise OutOfMemory(
            f"--batch-size auto: not even {sizes[0]} clip{'s' * (sizes[0] > 1)} at once can be trained on. "
            f"{reason}. Take a smaller --model-size or data.max_seconds, or raise --memory-budget."
        )
    best = max(trials)
    logger.info(
        "Batch size auto: %d clips at once, %d times an update of %d. Tried %s%s",
        best,
        effective // best,
        effective,
        ", ".join(
            f"{tried} ({taken / MB:.0f} MB)" if budget is not None else str(tried) for tried, taken in trials.items()
        ),
        f"; {reason}" if reason else "",
    )
    return best, effective


def _budget(megabytes):
    if megabytes is not None:
        return megabytes * MB
    usable = read_memory().usable
    if usable is None:
        raise ConfigError(
            "--batch-size auto needs --memory-budget here: this system does not tell how much memory is free."
        )
    return FREE_SHARE * usable


def _foreseen(trials, size):
    """Bytes that a trial of `size` clips will take, on the line through the last two; None before there are two."""
    if len(trials) < 2:
        return None
    (few, less), (many, more) = sorted(trials.items())[-2:]
    return more + max(0.0, (more - less) / (many - few)) * (size - many)


def _trial(trainer, dataset, size, parts):
    """Takes one step on `parts` batches of `size` of the longest clips and undoes it; returns the peak memory in bytes."""
    step = trainer.train_step
    if parts > 1:
        trainer.make_accumulators()
    variables = [
        *named_weights(trainer.model).values(),
        *step.state_variables().values(),
        *(step.averages.variables().values() if step.averages else ()),
    ]
    before = [variable.numpy() for variable in variables]
    try:
        with PeakMemory() as memory:
            batch = trainer.transfer(trainer.preparation(longest_batch(dataset, trainer.stage, size)))
            losses = step([batch] * parts, 0.0, (0, 0))
            float(losses["loss"])  # waits for the device
    finally:
        for variable, value in zip(variables, before):
            variable.assign(value)
        step.forget_partial_step()
        step.forget_traces()
    return memory.peak


def longest_batch(dataset, stage, size):
    """A `WaveBatch` of noise of the greatest length in samples and in tokens that the stage's batches have."""
    loader = dataset.train_loader(stage)
    num_samples, num_tokens = (max(lengths) for lengths in zip(*loader.plan.shapes))
    conditioning = loader.conditioning.max_samples if loader.conditioning else 0
    noise = noise_batch(size, num_samples, num_tokens, conditioning, dataset.config.model.num_text_tokens)
    return tf.nest.map_structure(tf.constant, noise)

"""The training loop: time, validation, checkpoints and reports around the one train step."""

import logging
import math
import threading
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import islice

import keras
import numpy as np
import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.devices.configuration import current_plan, require_placement
from myxtts.models.xtts import XTTS, named_weights
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.checkpoint_writer import CheckpointWriter
from myxtts.training.batch_size import MicroBatches, fit_batch_size, with_batch
from myxtts.training.device_pipeline import DevicePipeline, SynchronousPipeline, copy_to
from myxtts.training.divergence import DivergenceGuard, TrainingDiverged, go_back, write_divergence
from myxtts.training.ledger import LedgerKeeper
from myxtts.training.lora import LoRA
from myxtts.training.objectives import DVAEObjective, GPTObjective
from myxtts.training.optimizations import settle_switches
from myxtts.training.overtraining import OvertrainingDetector, end_at_best
from myxtts.training.preparation import Preparation
from myxtts.training.run_state import data_digest, restore, snapshot
from myxtts.training.schedules import warmup_cosine
from myxtts.training.step import TrainStep
from myxtts.training.step_clock import StepClock

logger = logging.getLogger(__name__)


class XTTSTrainer:
    """Trains one stage of XTTS.

    Args:
        config: `XTTSConfig`, with `model.num_text_tokens` set.
        model: `XTTS` with the stage's part, made on the model device; None makes one.
        resume_checkpoint: Folder of the run to resume from; None takes `training.checkpoint_dir`, and starts fresh
            where that has no checkpoint of this stage.
        model_device: Device of the model; None takes the plan's.
        stage: `dvae` or `gpt`.
        tokenizer_model: GPT stage: `XTTS` with a trained `dvae` part on the data device, which makes the codes.
        plan: `DevicePlan`; None takes the one applied in this process.
        mel_stats: DVAE stage from scratch: what `measure_mel_stats` returns.
        starting_weights: `{weight name: array}` of the stage's part that a fresh start takes instead of random ones.
        lineage: What this stage builds on, as JSON values; a checkpoint made on something else is not resumed.
    """

    def __init__(
        self,
        config,
        model=None,
        resume_checkpoint=None,
        model_device=None,
        *,
        stage="gpt",
        tokenizer_model=None,
        plan=None,
        mel_stats=None,
        starting_weights=None,
        lineage=None,
    ):
        self.config = config
        self.stage = stage
        self.plan = plan or current_plan()
        self.stage_config = config.stage(stage)
        self.data_device = self.plan.data_device
        self.model_devices = (model_device,) if model_device else self.plan.model_devices
        self.model_device = self.model_devices[0]
        if self.stage_config.batch_size % len(self.model_devices):
            raise ConfigError(
                f"--batch-size must be a multiple of the number of training devices, "
                f"{len(self.model_devices)}. Received: {self.stage_config.batch_size}."
            )
        self.pipeline_depth = config.training.pipeline_depth
        self.enable_async_pipeline = True
        """False prepares each batch in the training loop, when it is asked for."""
        self.strategy = (
            tf.distribute.OneDeviceStrategy(self.model_device)
            if len(self.model_devices) == 1
            else tf.distribute.MirroredStrategy(list(self.model_devices), tf.distribute.ReductionToOneDevice())
        )
        self.switches = settle_switches(config.training, config.model if stage == "gpt" else None, self.model_device)
        self.ledger = None
        """What the switches do, seen at the first step: `ledger.Ledger`."""
        self.lineage = lineage or {}
        self.step = 0
        self.position = 0
        """Batches trained on, which is the place in the order of the data."""
        self.data_digest = None
        """Identifies the training clips that the position counts in."""
        self.finished = False
        self.divergence = DivergenceGuard(config.training.max_bad_steps)
        self.overtraining = OvertrainingDetector(config.training.overtraining_patience)
        self.micro_batches = MicroBatches(self)
        self.saved_parts = {
            "divergence": self.divergence,
            "overtraining": self.overtraining,
            "micro_batches": self.micro_batches,
        }
        """What else a checkpoint keeps, by name; see `run_state.py`."""
        self.stop_requested = threading.Event()
        """Set from another thread or a signal handler: the step in progress is finished and a checkpoint written."""
        self.under_way = False
        """Whether a step was taken since this trainer was made; before that there is nothing to lose."""
        self.history = []
        self.best = None
        """`(main validation loss, step)` so far."""
        self.clock = StepClock()
        # Here and not once per run: a stage starts from the same weights whether or not another ran before it.
        keras.utils.set_random_seed(config.training.seed)
        with self._model_scope():
            self.model = model or XTTS(config.model, parts=(stage,), precision=self.switches.precision)
            if stage == "dvae" and mel_stats is not None:
                scale, mean = mel_stats
                self.model.mel_stats.assign(scale)
                self.model.dvae.decoder_output.bias.assign(mean)
            if stage == "gpt":
                self.model.gpt.set_memory_use(self.switches.attention, self.switches.gradient_checkpointing)
            if starting_weights is not None:
                assign_by_name(self.model.part_weights(stage), starting_weights, "--init-from")
            self.lora = None
            if stage == "gpt" and config.training.lora_rank:
                self.lora = LoRA(self.model.gpt, config.training.lora_rank, config.data.extend_vocabulary)
            self.objective = (
                GPTObjective(self.model, config, self.lora) if stage == "gpt" else DVAEObjective(self.model, config)
            )
            self.train_step = TrainStep(
                self.objective,
                self.strategy,
                self.stage_config,
                config.training.gradient_accumulation,
                self.switches.precision,
                xla=self.switches.xla,
                ema=self.switches.ema,
            )
        self.store = CheckpointStore(f"{config.training.checkpoint_dir}/{stage}", config.training.keep_checkpoints)
        self.writer = CheckpointWriter(self.store)
        self.tokenizer_model = self.model if stage == "dvae" and not self.plan.is_dual else tokenizer_model
        if stage == "dvae" and self.plan.is_dual:
            with tf.device(self.data_device):
                # The DVAE stage needs the mel scale alone on the data device.
                self.tokenizer_model = XTTS(config.model, parts=())
                self.tokenizer_model.mel_stats.assign(self.model.mel_stats.numpy())
        if self.tokenizer_model is None:
            raise ValueError("The GPT stage needs tokenizer_model, an XTTS with a trained DVAE on the data device.")
        if resume_checkpoint or not config.training.reset_training:
            self._resume(resume_checkpoint)
        self.preparation = Preparation(
            stage, self.tokenizer_model, self.data_device, config.data.augment, config.training.seed
        )
        self._evaluate = None

    def use_batch(self, batch_size, accumulation):
        """Takes batches of another size from here on, and this many for an update; the data set must, too."""
        self.config = with_batch(self.config, self.stage, batch_size, accumulation)
        self.stage_config = self.config.stage(self.stage)
        self.train_step.drop_accumulators()
        if accumulation > 1:
            self.make_accumulators()

    def make_accumulators(self):
        """Makes what several batches an update need, on the model device."""
        with self._model_scope():
            self.train_step.make_accumulators()

    def _model_scope(self):
        stack = ExitStack()
        stack.enter_context(self.strategy.scope())
        if len(self.model_devices) == 1:
            stack.enter_context(tf.device(self.model_device))
        return stack

    def total_steps(self, batches_per_epoch):
        """Optimizer steps of the whole stage."""
        if self.stage_config.max_steps is not None:
            return self.stage_config.max_steps
        return max(1, self.config.training.epochs * batches_per_epoch // self.config.training.gradient_accumulation)

    def train(self, dataset, callbacks=()):
        """Trains until the stage's last step.

        Args:
            dataset: `LJSpeechDataset`.
            callbacks: Objects with any of the methods of `callbacks.Callback`.

        Returns:
            The last validation losses by name.
        """
        if self.config.training.automatic_batch_size:
            dataset = fit_batch_size(self, dataset)
        total = self.total_steps(dataset.plan(self.stage).batches_per_epoch)
        validation_loader = dataset.validation_loader(self.stage)
        placement = require_placement(self._placed_variables(), self._placement_plan())
        self._call(callbacks, "on_start", self, total, placement)
        self._take_up(dataset, total)
        self._keeper = LedgerKeeper(self, len(dataset.plan(self.stage).shapes))
        validation = {}
        if self.step >= total or self.overtraining.stopped:
            return validation
        with self.writer:
            while self.step < total and not (self.overtraining.stopped or self.stop_requested.is_set()):
                try:
                    validation = self._train_until(total, dataset, callbacks, validation_loader)
                except TrainingDiverged as error:
                    self.writer.wait()
                    go_back(self, error)
            if self.overtraining.stopped:
                self.writer.wait()
                end_at_best(self)
        self._call(callbacks, "on_end", self)
        return validation

    def _take_up(self, dataset, total):
        self.store.clear_leftovers()
        digest = data_digest(dataset.train)
        if self.data_digest not in (None, digest):
            logger.warning(
                "The training set is not the one of the checkpoint: its order is another one, and in this epoch "
                "clips may come twice or not at all."
            )
        self.data_digest = digest
        if self.step >= total and not self.finished:
            # Fewer steps were asked for than before: what there is counts as finished from now on.
            self.save(last=True, finished=True)

    def _train_until(self, total, dataset, callbacks, validation_loader):
        """Trains to the last step or until asked to stop; the last checkpoint is written when it returns."""
        settings = self.config.training
        accumulation = settings.gradient_accumulation
        stop = self.position + (total - self.step) * accumulation
        validation = {}
        with self.pipeline(dataset, self.position, stop) as batches:
            if self.plan.is_dual:
                print(f"Multi-GPU Mode: Waiting {self.config.data.model_start_delay}s for data pipeline to warm up...")
                batches.wait_until_filled(self.config.data.model_start_delay)
                print("Model training starting now")
            recent, at_end, stopping = [], False, False
            self.clock.start(batches)
            while not (at_end or stopping):
                group = list(islice(batches, accumulation))
                if len(group) < accumulation:
                    raise RuntimeError(f"The data ended at step {self.step} of {total}.")
                with tf.device(self.model_device):
                    self.objective.prepare_step(self._local(group[0]), self.step, (settings.seed, -1 - self.step))
                losses = self.micro_batches.step(group, self._learning_rate(total), (settings.seed, self.step))
                self.under_way = True
                self.step += 1
                self.position += accumulation
                if self.ledger is None and losses["finite"]:
                    self._open_ledger(callbacks, losses)
                recent.append(losses)
                self.clock.tick()
                self.writer.poll()
                self._watch(group, losses, dataset)
                self._call(callbacks, "on_step", self.step)
                at_end = self.step == total
                if self.step % settings.log_every_steps == 0 or at_end:
                    self._log(callbacks, recent, total)
                    recent = []
                is_best = False
                if self.step % settings.validate_every_steps == 0 or at_end:
                    validation, is_best = self._validate(callbacks, validation_loader)
                if self.overtraining.stopped:
                    break
                stopping = self.stop_requested.is_set()
                if self.step % settings.checkpoint_every_steps == 0 or is_best or at_end or stopping:
                    self.save(last=at_end or stopping, finished=at_end)
                if settings.sample_every_steps and (self.step % settings.sample_every_steps == 0 or at_end):
                    with self.clock.paused(), self.averaged_weights():
                        self._call(callbacks, "on_sample", self)
        return validation

    def _open_ledger(self, callbacks, losses):
        self.ledger = self._keeper.ledger(float(losses["gradient_norm"]))
        self._call(callbacks, "on_ledger", self.ledger)
        if self.config.training.strict:
            self.ledger.require()

    def averaged_weights(self):
        """A `with` block in which the model has the weights that are validated and spoken with: under `--ema` their
        averages, else its own."""
        averages = self.train_step.averages
        return averages.in_place_of_weights() if averages else nullcontext()

    def _learning_rate(self, total):
        stage = self.stage_config
        rate = stage.learning_rate * self.divergence.rate_scale
        return warmup_cosine(self.step, rate, total, stage.warmup_steps, stage.final_learning_rate)

    def pipeline(self, dataset, start, stop, watch=lambda phase, call: call):
        """Prepared batches `start` to `stop` of a dataset on the model device, to be used in a `with` block.

        Args:
            dataset: `LJSpeechDataset`.
            start: Position of the first batch.
            stop: Position after the last one.
            watch: `(phase, call) -> call`, put around `preprocess` and `transfer` by whoever wants to time them.
        """
        make = DevicePipeline if self.enable_async_pipeline else SynchronousPipeline
        # One buffer is being prepared and one trained on; a step with accumulation takes several batches from the rest.
        capacity = (self.pipeline_depth - 2) * self.config.training.gradient_accumulation
        return make(
            self.stream(dataset, start, stop),
            watch("preprocess", self.preparation),
            watch("transfer", self.transfer),
            capacity,
            start,
        )

    def stream(self, dataset, start, stop):
        """`WaveBatch`es `start` to `stop` of a dataset on the data device."""
        return dataset.stream(self.stage, self.data_device, start, stop)

    def transfer(self, batch):
        """A prepared batch on the model device; on several, split into equal shards."""
        if len(self.model_devices) == 1:
            return copy_to(batch, self.model_device)
        with tf.device(self.data_device):
            shards = zip(*(tf.split(field, len(self.model_devices)) for field in batch))
        placed = [copy_to(type(batch)(*shard), device) for shard, device in zip(shards, self.model_devices)]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: placed[context.replica_id_in_sync_group]
        )

    def _local(self, batch):
        return self.strategy.experimental_local_results(batch)[0]

    def _log(self, callbacks, recent, total):
        # The means of the steps that counted; those that were skipped are counted beside them.
        counted = [step for step in recent if bool(step["finite"])] or recent
        losses = {
            name: float(np.mean([float(step[name]) for step in counted])) for name in recent[0] if name != "finite"
        }
        report = {
            **losses,
            "learning_rate": self._learning_rate(total),
            **self.objective.report(),
            "skipped_steps": int(self.train_step.bad_steps.numpy()),
        }
        self._call(callbacks, "on_log", self.step, report, self.clock.report())

    def _watch(self, group, losses, dataset):
        clips = [part.index for batch in group for part in self.strategy.experimental_local_results(batch)]
        self.overtraining.watch(losses[self.objective.main_loss], losses["finite"])
        bad_steps = self.divergence.watch(self.step, clips, losses)
        if bad_steps is not None:
            found = write_divergence(self, bad_steps, dataset.train)
            raise TrainingDiverged(
                f"{self.config.training.max_bad_steps} steps in a row had a loss or gradient that is not "
                f"finite; step {self.step} was the last. The clips and the terms that broke stand in "
                f"{found}. Lower --lr, train in float32, or take the clips out; the last good "
                "checkpoint is untouched."
            )

    def evaluate(self, loader):
        """Validation losses by name: means over every token of at most `training.max_validation_batches` batches."""
        batches = loader.plan.batches_per_epoch
        limit = min(batches, self.config.training.max_validation_batches)
        totals, counts = {}, {}
        # Validation goes from short clips to long ones: fewer batches than there are still show all lengths.
        with self.averaged_weights():
            for position in np.linspace(0, batches - 1, limit).round().astype(int):
                wave = tf.nest.map_structure(tf.constant, loader(position))
                batch = copy_to(self.preparation(wave), self.model_device)
                with tf.device(self.model_device):
                    sums, number = self._evaluation(batch)(batch)
                for name in sums:
                    totals[name] = totals.get(name, 0.0) + float(sums[name])
                    counts[name] = counts.get(name, 0.0) + float(number[name])
        return {name: totals[name] / max(counts[name], 1.0) for name in totals}

    def _evaluation(self, example):
        """Traced sums and counts of a batch of any sizes."""
        if self._evaluate is None:
            signature = type(example)(
                *(tf.TensorSpec([None] * min(2, field.shape.rank) + field.shape[2:], field.dtype) for field in example)
            )
            self._evaluate = tf.function(
                lambda b: (self.objective.loss_sums(b)[0], self.objective.counts(b)), input_signature=[signature]
            )
        return self._evaluate

    def _validate(self, callbacks, loader):
        with self.clock.paused():
            losses = self.evaluate(loader)
        main = losses[self.objective.main_loss]
        is_best = math.isfinite(main) and (self.best is None or main < self.best[0])
        if is_best:
            self.best = (main, self.step)
        self.history.append({"step": self.step, **losses})
        self._call(callbacks, "on_validation", self.step, losses, is_best)
        advice = self.overtraining.update(self.step, main)
        if advice:
            logger.warning("%s", advice)
        return losses, is_best

    def save(self, last=False, finished=False):
        """Writes a checkpoint of this step; it is marked best when the last validation was the best so far.

        Args:
            last: Return when it is on the disk, with several tries if need be. Else training waits only for the copy to
                the host, and a write that fails is reported by the next call.
            finished: The stage's last step has been taken.
        """
        with self.clock.paused():
            self.writer.wait()  # before the copy: no more than one is held
            self.finished = finished
            best = self.best is not None and self.best[1] == self.step
            (self.writer.write_last if last else self.writer.start)(self.step, *snapshot(self, finished), best)

    def _resume(self, folder):
        store = CheckpointStore(f"{folder}/{self.stage}") if folder else self.store
        step = store.newest_sound(logger.warning)
        if step is None:
            if folder:
                raise CheckpointError(f"{folder} has no checkpoint of the {self.stage} stage to resume from.")
            return
        restore(self, store, step)
        logger.info("Resumed the %s stage at step %d from %s", self.stage, step, store.path(step))

    def _placed_variables(self):
        yield from named_weights(self.model).items()
        yield from self.train_step.state_variables().items()
        yield from self.train_step.accumulators().items()
        if self.train_step.averages is not None:
            yield from self.train_step.averages.variables().items()

    def _placement_plan(self):
        return replace(self.plan, model_devices=self.model_devices)

    @staticmethod
    def _call(callbacks, method, *arguments):
        for callback in callbacks:
            handler = getattr(callback, method, None)
            if handler is not None:
                handler(*arguments)

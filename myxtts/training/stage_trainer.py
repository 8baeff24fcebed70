"""Training loop of a stage: train steps, validation, checkpoints, timing and reports."""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

import keras
import tensorflow as tf

from myxtts.config.checks import UserError, require
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES, StageConfig
from myxtts.data.batch import noise_batch
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import runs_on_cpu
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import remove_leftovers
from myxtts.storage.run_folder import is_start
from myxtts.training.loop.batching import Batching, fit_batch_size, with_batch
from myxtts.training.loop.device_pipeline import LOST_WORKER, DevicePipeline, Replicas, StepClock, prefetch_depth
from myxtts.training.loop.step import TrainStep
from myxtts.training.loop.switches import Ledger, LedgerKeeper, settle_switches
from myxtts.training.loop.updates import learning_rate, total_steps
from myxtts.training.resuming import Checkpointer, TrainingState
from myxtts.training.stages.base import Stage
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.watch import TrainingDiverged, Watch

logger = logging.getLogger(__name__)


class StageTrainer:
    """Trains one stage of XTTS, given the trained models that the stage depends on.

    Args:
        config: The `config` of a `SpeechDataset`, in which values such as `model.num_text_tokens` are filled in.
        plan: Devices that prepare data and train.
        foundations: Frozen models of the stages that this stage depends on, by stage name, on the data device.
        lineage: Digests of the weights of `foundations`, by stage name. Checkpoints with other digests are rejected.
        model, resume_checkpoint: See `XTTSTrainer`.

    Raises `UserError` if a setting, the model or a checkpoint cannot be used.
    """

    def __init__(
        self,
        config: XTTSConfig,
        stage: str,
        plan: DevicePlan,
        foundations: dict[str, XTTS] | None = None,
        lineage: dict | None = None,
        *,
        model: XTTS | None = None,
        resume_checkpoint: str | None = None,
    ):
        self.config, self.plan, self.replicas = config, plan, Replicas(plan)
        self.data_device, self.model_device, self.workers = plan.data_device, plan.model_device, self.replicas.workers
        """In this order: the device that prepares batches, the first training device, and the processes that train."""
        self.stage: Stage = STAGE_CLASSES[stage](config, foundations or {})
        self.store = CheckpointStore(f"{config.training.checkpoint_dir}/{stage}", config.training.keep_checkpoints)
        resumed = None if config.training.reset_training else self.store
        if resume_checkpoint:
            resumed = CheckpointStore(f"{resume_checkpoint}/{stage}")
        self._build(model, resumed)
        sizes = self.stage_config.batch_size, config.training.gradient_accumulation
        self.batching = Batching(self.train_step, self.replicas, *sizes, config.training.automatic_batch_size)
        self.ledger: Ledger | None = None
        """Report on the effects of the training switches; None until the first step that changed the weights."""
        self.clock, self.watch = StepClock(), Watch(self)
        parts = {"divergence": self.watch.divergence, "overtraining": self.watch.overtraining}
        parts["micro_batches"] = self.batching
        best_by = config.training.best_by if STAGES[stage].speaks else "loss"
        self.state = TrainingState(lineage or {}, STAGES[stage].follows, best_by=best_by, parts=parts)
        self.checkpointer = Checkpointer(self)
        if resumed is not None:
            self.checkpointer.resume(resumed)
        self.adopt_batching()
        self.preparation = self.stage.make_preparation(self.data_device)
        self.stop_requested = threading.Event()
        """Event that ends training with a checkpoint after the current step. A thread or signal handler may set it."""
        self.pipeline_depth: int = config.training.pipeline_depth
        """Number of batches in the pipeline: one in preparation, one in training, and the others ready in a buffer."""
        self.enable_async_pipeline = True
        """Whether a thread prepares batches during training. If False, each batch is prepared when it is needed."""

    def _build(self, model, resumed):
        """Settles the training switches, and builds the stage's model and its `TrainStep`. `resumed` is the checkpoint
        store to resume from, or None. The store's newest checkpoint may have only starting weights, see `is_start`."""
        config, settings, workers, stage = self.config.training, self.stage_config, self.workers, self.stage
        joined = tuple(filter(None, workers.addresses))
        rule, hint = "the workers that this process has joined", "Use myxtts.train(config), which connects them."
        require(config.workers == joined, "training.workers", rule, config.workers, hint)
        before = (resumed.newest_state() if resumed else None) or {}
        if before and resumed.folder.resolve() != self.store.folder.resolve():
            # Otherwise, checkpoints of two runs would mix, and new ones would be removed if old ones have more steps.
            rule = f"the run to resume, or a folder without checkpoints of the {stage.name}"
            require(not self.store.steps(), "training.checkpoint_dir", rule, config.checkpoint_dir)
        has_one_shape = self.config.data.static_shapes or settings.crop_seconds or hasattr(settings, "frames")
        steps = (settings.max_steps or 0) / (1 if has_one_shape else self.config.data.num_buckets)
        known = dict(before=before.get("switches"), stage=stage.name, steps_per_shape=steps)
        switches = settle_switches(config, self.config.model, self.model_device, stage.switches, **known)
        workers.require_equal("optimization switches", switches.applied(), "Name them instead of auto.")
        if model is not None:
            name, precision = model.dtype_policy.name, switches.precision
            require(precision == name, "training.precision", f"{name}, as in the given model", precision)
            self.replicas.adopt(model)
        starting = resumed.open(before["step"]) if is_start(before) else None
        self.switches = switches
        # Seeded per stage, so that its initial weights do not depend on the stages before it.
        keras.utils.set_random_seed(config.seed)
        with self.replicas.scope():
            stage.build(model, switches, starting)
            options = dict(xla=switches.xla, ema=switches.ema)
            strategy, precision = self.replicas.strategy, switches.precision
            self.train_step = TrainStep(stage.updates(), strategy, settings, precision, **options)
        self.train_step.phase = stage.phase(999, 1000)  # until training sets it: the last phase takes the most memory
        self.model: XTTS = stage.model

    @property
    def stage_config(self) -> StageConfig:
        """Settings of the stage, with default values filled in."""
        return self.config.stage(self.stage.name)

    @property
    def step(self) -> int:
        """Number of optimizer steps taken so far, including those before the run was resumed."""
        return self.state.step

    @property
    def under_way(self) -> bool:
        """Whether this trainer has taken a step. False after resuming, until the next step."""
        return self.clock.skipped > 0

    def train(self, dataset: SpeechDataset, callbacks: Iterable = ()) -> dict[str, float]:
        """Trains to the last step. Calls `callbacks` (see `Callback`). Returns the last validation losses by name."""
        if reason := self.stage.nothing_to_learn(dataset):
            logger.warning("Stage %s: nothing to train. %s", self.stage.name, reason)
            if not self.state.finished:
                self.checkpointer.save(last=True, finished=True)
            return {}
        record = self.state.record
        dataset = self.stage.choose_clips(dataset, {*record[0]["identity"].tolist()} if record else ())
        if self.config.training.automatic_batch_size:
            dataset = fit_batch_size(self, dataset)
        if self.watch.speech_judge is None:
            self.state.best_by = "loss"
        order, epochs = dataset.order(self.stage.name), self.config.training.epochs
        total = total_steps(self.stage_config.max_steps, epochs, order.batches_per_epoch, self.batching.accumulation)
        if self.batching.parts * self.batching.accumulation > 1:
            self.train_step.make_accumulators()
        self.watch.start(callbacks, total)
        self.train_step.on_micro_batch = partial(self.watch.call, "on_micro_batch", "computed")
        if self.workers.is_chief:
            remove_leftovers(self.store.folder)
        dataset = self.state.take_up(dataset, self.stage.name)
        if self.step == 0:
            self.stage.measure(dataset)
            self.train_step.restart_averages()
        if STAGES[self.stage.name].speaks:
            self.checkpointer.companions = dataset.what_speaking_needs()
        if self.step >= total and not self.state.finished:
            # A run that is resumed with a smaller number of steps than it has taken is finished.
            self.checkpointer.save(last=True, finished=True)
        if self.step >= total or (self.watch.ended_early and self.state.finished):
            return {}
        self.watch.ledger_keeper = LedgerKeeper(self)
        if len(order.shapes) > 1:
            examples = [self.noise(dataset, pick=pick) for pick in (min, max)]
            self.train_step.trace_for([self.replicas.split(one, self.batching.parts)[0] for one in examples])
        with self.checkpointer.writer:
            validation = self._train_and_go_back(total, dataset)
        self.watch.end()
        return validation

    def _train_and_go_back(self, total, dataset):
        """Trains to step `total` and returns the last validation losses by name. If training diverges, continues from
        the last good checkpoint. If the stage ends early, restores the best checkpoint."""
        loader, validation = dataset.validation_loader(self.stage.name), {}
        while self.step < total and not (self.watch.ended_early or self.workers.agree(self.stop_requested)):
            try:
                validation = self._train_until(total, dataset, loader)
            except TrainingDiverged as error:
                self.workers.watch(None)  # returning takes longer than a step
                self.checkpointer.go_back(error)
                dataset = self.state.take_up(dataset, self.stage.name)
            except tf.errors.ResourceExhaustedError as error:  # in data preparation, validation or samples
                reason = error.message.splitlines()[0]
                raise UserError(f"Memory ran out: lower --batch-size or raise --data-gpu-memory. {reason}") from error
            except LOST_WORKER as error:
                self.workers.raise_lost(error)  # names the lost worker, if there are several
                raise
        if self.watch.ended_early:
            self.checkpointer.go_back_to_best()
            self.state.take_up(dataset, self.stage.name)
            self.checkpointer.save(last=True, finished=True)
        return validation

    def _train_until(self, total, dataset, validation_loader):
        """Trains until step `total`, early stopping or a stop request. Returns the last validation losses by name."""
        settings, state, watch = self.config.training, self.state, self.watch
        accumulation, validation = self.batching.accumulation, {}
        stop = state.position + (total - state.step) * accumulation
        at_end = stopping = False
        is_due = lambda every: every and (state.step == total or state.step % every == 0)
        watch.forget_steps()
        with self.pipeline(dataset, state.position, stop) as batches:
            if self.plan.is_dual:
                watch.call("on_waiting", self.config.data.model_start_delay)
                batches.wait_until_filled(self.config.data.model_start_delay)
                watch.call("on_running")
            self.clock.start(batches)
            while not (at_end or stopping or watch.ended_early):
                group = []
                for batch in islice(batches, accumulation):
                    group.append(batch)
                    if accumulation > 1:
                        watch.call("on_micro_batch", "read", len(group), accumulation)
                # Workers may wait for each other here without limit, but not within the step.
                stopping = self.workers.agree(self.stop_requested)
                self.workers.watch(settings.worker_timeout_seconds if self.under_way else None)  # the first step traces
                with tf.device(self.model_device):
                    self.stage.prepare_step(group[0], state.step, (settings.seed, -1 - state.step))
                self.train_step.phase = self.stage.phase(state.step, total)
                losses = self.batching.take_step(group, self._learning_rate(total), (settings.seed, state.step))
                state.step += 1
                state.position += len(group)
                self.clock.tick()
                self.checkpointer.writer.poll()
                watch.after_step(losses, len(group))
                self.workers.watch(None)
                watch.call("on_step", state.step)
                at_end, is_best = state.step == total, False
                if is_due(settings.log_every_steps):
                    watch.log(self._learning_rate(total))
                if is_due(settings.validate_every_steps):
                    validation, is_best = watch.validate(validation_loader)
                if watch.speech_judge and is_due(settings.evaluate_every_steps):
                    is_best |= watch.evaluate_speech()
                stopping = stopping or (self.workers.count == 1 and self.stop_requested.is_set())
                if is_best or (stopping or is_due(settings.checkpoint_every_steps)) and not watch.ended_early:
                    self.checkpointer.save(last=at_end or stopping, finished=at_end)
                if is_due(settings.sample_every_steps) and not watch.ended_early:
                    with self.clock.paused(), self.train_step.averaged_weights():
                        watch.call("on_sample", state.step)
        return validation

    def _learning_rate(self, total):
        return learning_rate(self.stage_config, self.step, total) * self.watch.divergence.rate_scale

    def pipeline(
        self, dataset: SpeechDataset, start: int, stop: int, watch: Callable = lambda phase, call: call
    ) -> DevicePipeline:
        """Returns a `DevicePipeline`, which prepares batches `start` to `stop - 1` and copies them to the model device.

        `watch(phase, call)` returns `call` or a timed version of it. The phases are `preprocess` and `transfer`.
        """
        # Number of batches that are ready in the buffer. With accumulation, each step uses several batches.
        capacity = max(0, self.pipeline_depth - 2) * self.batching.accumulation * self.enable_async_pipeline
        prepare, transfer = watch("preprocess", self._prepare_whole), watch("transfer", self.replicas.transfer)
        return DevicePipeline(self.stream(dataset, start, stop), prepare, transfer, capacity, start)

    def _prepare_whole(self, wave, position):
        """Prepares a batch. If there is a separate data GPU, waits until that GPU has computed the batch."""
        batch = self.preparation(wave, position)
        if self.plan.is_dual and not runs_on_cpu(self.data_device):
            # The call has only queued kernels; reading a value waits for them. (Integer fields are on the host.)
            with tf.device(self.data_device):
                float(tf.reshape(next(field for field in batch if field.dtype.is_floating), (-1,))[0])
        return batch

    def stream(self, dataset: SpeechDataset, start: int, stop: int) -> Iterable:
        """Returns an iterable of the `WaveBatch`es `start` to `stop - 1`, on the data device and not yet prepared."""
        depth = prefetch_depth(self.config, self.plan, self.stage.name)
        return dataset.stream(self.stage.name, self.data_device, start, stop, depth)

    def noise(self, dataset: SpeechDataset, size: int | None = None, pick: Callable = max):
        """Returns a prepared batch of noise with the shape of a training batch, to measure time and memory.

        `size` is the number of clips (default: this worker's part of a batch). The function `pick` selects the length
        of the audio and the length of the text from the lengths of all training batches (default: the maximum).
        """
        size = size or self.batching.batch_size // self.workers.count
        loader = dataset.train_loader(self.stage.name)
        shape = size, *(pick(lengths) for lengths in zip(*loader.order.shapes)), loader.conditioning_samples
        noise = noise_batch(*shape, dataset.config.model.num_text_tokens, loader.targets)
        return self.replicas.transfer(self.preparation(tf.nest.map_structure(tf.constant, noise), 0))

    def placed_variables(self) -> dict:
        """Returns the variables that must be on the model devices (weights, optimizer state and others), by name."""
        step = self.train_step
        return {**self.stage.all_weights(), **step.state_variables, **step.averages, **step.accumulators()}

    def adopt_batching(self) -> None:
        """Copies batch size and accumulation from `batching` to `config`, because `fit_batch_size` or a checkpoint may
        have changed them. Raises `ConfigError` if the batch cannot be divided equally among the training devices."""
        size, accumulation = self.batching.batch_size, self.batching.accumulation
        rule = f"a multiple of the number of training devices, {self.replicas.count}"
        hint = "Give a number instead of auto." if self.batching.automatic else ""
        require(size % self.replicas.count == 0, "--batch-size", rule, size, hint)
        if (size, accumulation) != (self.stage_config.batch_size, self.config.training.gradient_accumulation):
            self.config = with_batch(self.config, self.stage.name, size, accumulation)

"""The training loop: time, validation, checkpoints and reports around the one train step."""

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import islice

import keras
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import remove_leftovers
from myxtts.storage.provenance import is_start
from myxtts.training.loop.batching import Batching, fit_batch_size, longest_batch, shortest_batch, with_batch
from myxtts.training.loop.device_pipeline import DevicePipeline, SynchronousPipeline
from myxtts.training.loop.divergence import DivergenceGuard, TrainingDiverged
from myxtts.training.loop.optimizations import settle_switches
from myxtts.training.loop.replicas import Replicas
from myxtts.training.loop.schedules import learning_rate, total_steps
from myxtts.training.loop.step import TrainStep
from myxtts.training.resuming.checkpointer import Checkpointer
from myxtts.training.resuming.state import TrainingState
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.ledger import LedgerKeeper
from myxtts.training.watching.overtraining import OvertrainingDetector
from myxtts.training.watching.stage_reports import end_report, report_divergence, start_report
from myxtts.training.watching.step_clock import StepClock, timing_of_all
from myxtts.training.watching.validation import Evaluator, mean_losses

logger = logging.getLogger(__name__)


class StageTrainer:
    """Trains one stage of XTTS on recordings and frozen models that it is given.

    Args:
        config: With what a `SpeechDataset` settles, such as `model.num_text_tokens`.
        stage: Its name.
        plan: The devices.
        foundations: The frozen models of the stages it builds on, on the data device: `{"dvae": XTTS}` for the GPT.
        lineage: What this stage builds on, as JSON values; a checkpoint made on something else is not resumed.
        model: With the stage's part, made on the model device, which is then trained; None makes one.
        resume_checkpoint: Folder of the run to resume from; None takes `training.checkpoint_dir`, and starts fresh
            where that has no checkpoint of this stage, or only the weights to start from.
        measured: What `Stage.measure` returned; None measures when training starts.

    Raises:
        UserError: Something that is needed cannot be had.
    """

    def __init__(
        self,
        config: XTTSConfig,
        stage: str,
        plan: DevicePlan,
        foundations: dict[str, XTTS],
        lineage: dict | None = None,
        *,
        model: XTTS | None = None,
        resume_checkpoint: str | None = None,
        measured=None,
    ):
        self.plan = plan
        self.replicas = Replicas(self.plan)
        self.workers = self.replicas.joined(config.training.workers)
        self.data_device, self.model_device = self.plan.data_device, self.plan.model_device
        self.config = config
        self.stage = STAGE_CLASSES[stage](config, foundations)
        resumed_folder = resume_checkpoint or (not config.training.reset_training and config.training.checkpoint_dir)
        self._make_model(model, measured, resumed_folder)
        self._make_watchers(lineage or {})
        self.model: XTTS = self.stage.model
        self.checkpointer = Checkpointer(self.state, self.stage, self.train_step, lambda: self.config, self.switches)
        self.store: CheckpointStore = self.checkpointer.store
        if resumed_folder:
            self.checkpointer.resume(resume_checkpoint)
            self.adopt_batching()
        self.preparation = self.stage.make_preparation(self.data_device, self.data_device == self.model_device)
        objectives = self.stage.validated([rule.objective for rule in self.train_step.rules])
        self.evaluator = Evaluator(self.stage, objectives, self.replicas)

    def _make_model(self, model, measured, resumed_folder):
        training, stage_config = self.config.training, self.stage_config
        store = CheckpointStore(f"{resumed_folder}/{self.stage.name}")
        before = store.newest_state() if resumed_folder else None
        starting_weights = store.read(before["step"], ["model"])[0]["model"] if is_start(before) else None
        asked = training, self.config.model, self.model_device, self.stage.switches
        self.switches = settle_switches(*asked, (before or {}).get("switches"), self.stage.default_ema)
        self.workers.require_equal("optimization switches", self.switches.applied(), "Name them instead of auto.")
        # Here and not once per run: a stage starts from the same weights whether or not another ran before it.
        keras.utils.set_random_seed(training.seed)
        if model is not None:
            rule, name = "that of the model given", model.dtype_policy.name
            require(self.switches.precision == name, "training.precision", f"{name}, {rule}", self.switches.precision)
            self.replicas.adopt(model)
        with self.replicas.scope():
            self.stage.build(model, self.switches, measured, starting_weights)
            updates, options = self.stage.updates(stage_config), dict(xla=self.switches.xla, ema=self.switches.ema)
            settings = stage_config, training.gradient_accumulation, self.switches.precision
            self.train_step = TrainStep(updates, self.replicas.strategy, *settings, **options)
        if self.workers.count > 1:
            self.replicas.share(self.stage.all_weights().values(), training.worker_timeout_seconds)
            self.train_step.restart_averages()

    def _make_watchers(self, lineage):
        training, batch_size = self.config.training, self.stage_config.batch_size
        self.divergence = DivergenceGuard(training.max_bad_steps)
        self.overtraining = OvertrainingDetector(training.overtraining_patience)
        accumulation, is_automatic = training.gradient_accumulation, training.automatic_batch_size
        self.batching = Batching(self.train_step, self.replicas, batch_size, accumulation, is_automatic)
        self.speech_judge = None
        """`(step) -> figures` of what is heard every `training.evaluate_every_steps`, with their `score`, lower is
        better; none where it could not be heard. Set by whoever can let the model speak."""
        parts = {"divergence": self.divergence, "overtraining": self.overtraining, "micro_batches": self.batching}
        best_by = training.best_by if self.stage.speaks else "loss"
        self.state = TrainingState(lineage, STAGES[self.stage.name].follows, best_by=best_by, parts=parts)
        self.ledger = None
        """What the switches do, seen at the first step: `ledger.Ledger`."""
        self.stop_requested = threading.Event()
        """Set from another thread or a signal handler: the step in progress is finished and a checkpoint written."""
        self.under_way = False
        """Whether a step was taken since this trainer was made; before that there is nothing to lose."""
        self.clock = StepClock()
        self.pipeline_depth = training.pipeline_depth
        self.enable_async_pipeline = True
        """False prepares each batch in the training loop, when it is asked for."""

    @property
    def stage_config(self):
        """`StageConfig` of the stage, with nothing left out."""
        return self.config.stage(self.stage.name)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.state.step

    def total_steps(self, batches_per_epoch: int) -> int:
        """Optimizer steps of the whole stage."""
        epochs, accumulation = self.config.training.epochs, self.batching.accumulation
        return total_steps(self.stage_config.max_steps, epochs, batches_per_epoch, accumulation)

    def train(self, dataset: SpeechDataset, callbacks: Iterable = ()) -> dict[str, float]:
        """Trains until the stage's last step; returns the last validation losses by name.

        Args:
            callbacks: Objects with any of the methods of `callbacks.Callback`.
        """
        if reason := self.stage.nothing_to_learn(dataset):
            return self._end_at_once(reason)
        dataset = self.stage.choose_clips(dataset)
        if self.config.training.automatic_batch_size:
            dataset = fit_batch_size(self, dataset)
        if self.speech_judge is None:
            self.state.best_by = "loss"
        order, self._callbacks = dataset.order(self.stage.name), list(callbacks)
        total = self.total_steps(order.batches_per_epoch)
        self._call("on_start", start_report(self, total))
        if self.workers.is_chief:
            remove_leftovers(self.store.folder)
        dataset = self.state.take_up(dataset, self.stage.name)
        self._measure(dataset)
        self.checkpointer.companions = dataset.what_speaking_needs()
        if self.step >= total and not self.state.finished:
            # Fewer steps were asked for than before: what there is counts as finished from now on.
            self.save(last=True, finished=True)
        observed = self.stage, self.train_step, self.switches, self.batching, self.model_device
        self._keeper = LedgerKeeper(*observed, len(order.shapes))
        validation = {}
        if self.step >= total or self._ended_early:
            return validation
        if len(order.shapes) > 1:
            self.batching.trace_for([self.noise(dataset, pick=pick) for pick in (shortest_batch, longest_batch)])
        loader = dataset.validation_loader(self.stage.name)
        with self.checkpointer.writer, self.replicas.naming_who_is_lost():
            while self.step < total and not (self._ended_early or self.workers.agree(self.stop_requested)):
                try:
                    validation = self._train_until(total, dataset, loader)
                except TrainingDiverged as error:
                    self.checkpointer.go_back(error, self.divergence)
                    self.adopt_batching()
                    dataset = self.state.take_up(dataset, self.stage.name)
            if self._ended_early:
                detector = self.overtraining.state()
                self.checkpointer.go_back_to_best()
                self.overtraining.restore(detector)
                self.state.take_up(dataset, self.stage.name)
                self.save(last=True, finished=True)
        self._call("on_end", end_report(self))
        return validation

    def noise(self, dataset: SpeechDataset, size: int | None = None, pick: Callable = longest_batch):
        """A prepared batch of so many clips, or as many as this worker takes, on the model device."""
        size = size or self.batching.batch_size // self.workers.count
        return self.replicas.transfer(self.preparation(pick(dataset, self.stage.name, size), 0))

    def placed_variables(self) -> dict:
        """Every variable that is to live on the model devices, by name."""
        step = self.train_step
        return {**self.stage.all_weights(), **step.state_variables(), **step.averages(), **step.accumulators()}

    def _measure(self, dataset):
        """What a fresh start measures on the recordings, unless it was given."""
        if self.step == 0 and self.stage.lacks_measurement():
            self.stage.begin(self.switches, self.stage.measure(dataset))
            self.train_step.restart_averages()

    def _end_at_once(self, reason):
        """The stage is finished as it is."""
        logger.warning("Stage %s: nothing to train. %s", self.stage.name, reason)
        if not self.state.finished:
            with self.checkpointer.writer:
                self.save(last=True, finished=True)
        return {}

    def _train_until(self, total, dataset, validation_loader):
        """Trains to the last step or until asked to stop; the last checkpoint is written when it returns."""
        settings, state, accumulation = self.config.training, self.state, self.batching.accumulation
        stop = state.position + (total - state.step) * accumulation
        order, validation, recent, at_end, stopping = dataset.order(self.stage.name), {}, [], False, False
        with self.pipeline(dataset, state.position, stop) as batches:
            self._warm_up(batches)
            self.clock.start(batches)
            while not (at_end or stopping):
                if len(group := list(islice(batches, accumulation))) < accumulation:
                    raise RuntimeError(f"The data ended at step {state.step} of {total}.")
                # Before the step, which waits for a worker that is late no longer than an operation of all may take.
                stopping = self.workers.agree(self.stop_requested)
                self.workers.watch(settings.worker_timeout_seconds if self.under_way else None)  # the first is traced
                losses = self._take_step(group, total)
                recent.append(losses)
                self.clock.tick()
                self.checkpointer.writer.poll()
                self._watch(len(group), losses, dataset, order)
                self.workers.watch(None)
                self._call("on_step", state.step)
                at_end, is_best = state.step == total, False
                if self._is_due(settings.log_every_steps) or at_end:
                    self._log(recent, total)
                    recent = []
                if self._is_due(settings.validate_every_steps) or at_end:
                    validation, is_best = self._validate(validation_loader)
                if self.speech_judge and (self._is_due(settings.evaluate_every_steps) or at_end):
                    is_best |= self._evaluate_speech()
                if self._ended_early:
                    break
                stopping = stopping or self.workers.count == 1 and self.stop_requested.is_set()
                if self._is_due(settings.checkpoint_every_steps) or is_best or at_end or stopping:
                    self.save(last=at_end or stopping, finished=at_end)
                if settings.sample_every_steps and (self._is_due(settings.sample_every_steps) or at_end):
                    with self.clock.paused(), self.train_step.averaged_weights():
                        self._call("on_sample", state.step)
        return validation

    def _is_due(self, every):
        return self.state.step % every == 0

    def _warm_up(self, batches):
        if self.plan.is_dual:
            delay = self.config.data.model_start_delay
            self._call("on_waiting", delay)
            batches.wait_until_filled(delay)
            self._call("on_running")

    def _take_step(self, group, total):
        seed, state = self.config.training.seed, self.state
        with tf.device(self.model_device):
            self.stage.prepare_step(group[0], state.step, (seed, -1 - state.step))
        self.train_step.phase = self.stage.phase(state.step, total)
        losses = self.batching.take_step(group, self._learning_rate(total), (seed, state.step))
        self.under_way = True
        state.step += 1
        state.position += len(group)
        is_whole = self.train_step.rules[-1].has_turn(self.train_step.phase)
        if self.ledger is None and losses["finite"] and is_whole:
            self.ledger = self._keeper.ledger(losses)
            self._call("on_ledger", self.ledger)
            if self.config.training.strict:
                self.ledger.require()
        return losses

    def _learning_rate(self, total):
        return learning_rate(self.stage_config, self.step, total) * self.divergence.rate_scale

    def pipeline(
        self, dataset: SpeechDataset, start: int, stop: int, watch: Callable = lambda phase, call: call
    ) -> DevicePipeline | SynchronousPipeline:
        """Prepared batches `start` to `stop` of a dataset on the model device, to be used in a `with` block.

        `watch` is `(phase, call) -> call`, put around `preprocess` and `transfer` by whoever wants to time them.
        """
        make = DevicePipeline if self.enable_async_pipeline else SynchronousPipeline
        # One buffer is being prepared and one trained on; a step with accumulation takes several batches from the rest.
        capacity = (self.pipeline_depth - 2) * self.batching.accumulation
        prepare, transfer = watch("preprocess", self.preparation), watch("transfer", self.replicas.transfer)
        return make(self.stream(dataset, start, stop), prepare, transfer, capacity, start)

    def stream(self, dataset: SpeechDataset, start: int, stop: int) -> Iterable:
        """`WaveBatch`es `start` to `stop` of a dataset on the data device."""
        return dataset.stream(self.stage.name, self.data_device, start, stop)

    def _log(self, recent, total):
        report = {**mean_losses(recent), "learning_rate": self._learning_rate(total), **self.stage.report()}
        report["skipped_steps"] = self.train_step.bad_steps
        self._call("on_log", self.step, report, timing_of_all(self.clock.report(), self.workers))
        for line in self.stage.advise(report):
            logger.warning("%s", line)

    def _watch(self, batches, losses, dataset, order):
        clips = [order.batch(self.state.position - back).indices for back in range(batches, 0, -1)]
        if self.stage.main_loss in losses:  # not where only another update has its turn
            self.overtraining.watch(losses[self.stage.main_loss], losses["finite"])
        bad_steps = self.divergence.watch(self.step, clips, losses)
        if bad_steps is None:
            return
        raise self.divergence.error(self.step, report_divergence(self, bad_steps, dataset))

    def evaluate(self, loader) -> dict[str, float]:
        """Validation losses by name: means over every token of at most `training.max_validation_batches` batches."""
        with self.train_step.averaged_weights():
            return self.evaluator(loader, self.preparation, self.config.training.max_validation_batches)

    def _validate(self, loader):
        with self.clock.paused():
            losses = self.evaluate(loader)
        is_best = self.state.improves("loss", main := losses[self.stage.main_loss])
        self.state.history.append({"step": self.step, **losses})
        with self.clock.paused(), self.train_step.averaged_weights():
            self._call("on_validation", self.step, losses, is_best)
        if advice := self.overtraining.update(self.step, main):
            logger.warning("%s", advice)
        return losses, is_best

    def _evaluate_speech(self):
        with self.clock.paused(), self.train_step.averaged_weights():
            figures = self.speech_judge(self.step)
        is_best = bool(figures) and self.state.scored(figures["score"])
        if figures:
            self._call("on_evaluation", self.step, figures, is_best)
        return is_best

    @property
    def _ended_early(self):
        return self.overtraining.stopped or self.state.is_stale(self.config.training.evaluation_patience)

    def save(self, last: bool = False, finished: bool = False) -> None:
        """Writes a checkpoint of this step; see `Checkpointer.save`."""
        with self.clock.paused():
            self.checkpointer.save(last, finished, self.ledger and self.ledger.state())

    def adopt_batching(self) -> None:
        """Takes the sizes of batches that are trained with into the configuration."""
        sizes = self.batching.batch_size, self.batching.accumulation
        if sizes != (self.stage_config.batch_size, self.config.training.gradient_accumulation):
            self.config = with_batch(self.config, self.stage.name, *sizes)

    def _call(self, method, *arguments):
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

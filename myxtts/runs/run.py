"""A training run: one folder, its stages in order, and its listeners. All front ends train through `Run`.

TensorFlow is not imported before `Run.train`, so that `Run.open` can configure the devices.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.gpu_monitor import GPUMonitor
from myxtts.distributed.workers import current_workers, leaving_together
from myxtts.runs.setup import quickest_devices, set_up
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import own_run_folder
from myxtts.utils.commons import LOG_FORMAT, LOG_TIME_FORMAT, LOGGER_NAME

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Speech
    from myxtts.runs.samples import Picture


class RunListener:
    """Base class of listeners, whose methods a run calls in the thread of `Run.train` if they exist.

    A run also calls those of `training.watching.callbacks.Callback`, which report the steps of a stage.

    - `on_pipeline(config, plan)`: the run has its folder and its devices.
    - `on_inspection(done, total)`: number of checked recordings.
    - `on_corpus(dataset)`: the recordings were read: a `data.dataset.SpeechDataset`.
    - `on_agenda(works)`: a `runs.agenda.StageWork` for each stage, before anything is changed.
    - `on_needs(needs)`: memory and disk that are needed, a `runs.agenda.Needs`.
    - `on_trial(times)`: seconds of a step and of all work by stage, estimated by a trial.
    - `on_stage(stage, order)`: the stage is next; `order` is the `data.batch.BatchOrder` of its batches.
    - `on_set_aside(stage, folder)`: the stage starts over; its earlier checkpoints were moved to `folder`.
    - `on_stopped(stage)`: the run was stopped in this stage.
    - `on_spoken(spoken)`: sentences of the finished model, as `runs.samples.LastWords`.
    - `on_finished(dataset)`: all requested stages are trained.
    """


class Run:
    """Trains the stages of XTTS in one folder, or resumes them.

    Args:
        config: Settings with `data.train_data`; `training.checkpoint_dir` is the folder.
        callbacks: Objects with any methods of `RunListener` and of `training.watching.callbacks.Callback`. More can be
            added to `callbacks` before `train`. With several workers, only worker 0 calls them.
    """

    def __init__(self, config: XTTSConfig, plan: DevicePlan, callbacks: Sequence = ()):
        self.config: XTTSConfig = config
        """Settings as requested; `train` fills in what depends on recordings and origin, such as the vocabulary."""
        self.plan: DevicePlan = plan
        self.callbacks: list = list(callbacks)
        self.folder: Path = Path(config.training.checkpoint_dir)
        self.monitor: GPUMonitor = GPUMonitor(plan.visible_ids or None)
        """Monitor of the plan's GPUs, active during training."""
        self.trainer = None
        """`StageTrainer` of the current or last stage."""
        self.finished: bool = False
        """Whether the last `train` trained all requested stages, rather than being stopped."""
        self._stop = threading.Event()
        self._dataset, self._synthesizer, self._early = None, None, None

    @classmethod
    def open(cls, config: XTTSConfig, callbacks: Sequence = (), device_plan: str | None = None, **options) -> "Run":
        """Makes a run on the requested devices, or with `device_plan="auto"` on the fastest; see `setup.set_up`."""
        early = MemoryHandler(10**5)  # keeps the log lines until the run's log file can be written
        with _logging_to(early):
            if device_plan == "auto":
                config, options = quickest_devices(config, options)
            run = cls(*set_up(config, **options), callbacks)
        run._early = early
        return run

    @property
    def last_steps(self) -> dict[str, int]:
        """Step of the newest checkpoint by stage."""
        steps = {stage: CheckpointStore(self.folder / stage).steps() for stage in STAGES}
        return {stage: found[-1] for stage, found in steps.items() if found}

    @property
    def history(self) -> dict[str, list[dict[str, float]]]:
        """Validation losses by stage up to its newest checkpoint, each with its `step`."""
        last = self.last_steps.items()
        return {stage: CheckpointStore(self.folder / stage).read_state(step).get("history", []) for stage, step in last}

    @property
    def best(self) -> dict[str, int]:
        """Step of the best checkpoint by stage."""
        steps = {stage: CheckpointStore(self.folder / stage).best_step() for stage in STAGES}
        return {stage: step for stage, step in steps.items() if step is not None}

    @property
    def pictures(self) -> dict[str, "Picture"]:
        """Pictures by file name: the loss curves, `curves`, and samples of validation clips."""
        from myxtts.runs.samples import Picture

        paths = (*self.folder.glob("curves.png"), *sorted((self.folder / "samples").glob("*.png")))
        return {path.stem: Picture(path) for path in paths}

    def __repr__(self) -> str:
        done = ", ".join(f"{stage} step {step}" for stage, step in self.last_steps.items())
        methods = ".speak(text), .evaluate(), .export(folder), .history, .best" if done else ".train()"
        return f"<Run in {self.folder}: {done or 'nothing trained yet'}; {methods}>"

    def evaluate(self, **options) -> dict:
        """Evaluates the best checkpoint; options and result as in `myxtts.evaluate`."""
        import myxtts

        return myxtts.evaluate(self.folder, **options)

    def export(self, output: str | Path, weights: str = "float32", which: str = "best") -> Path:
        """Writes ONNX files that speak without this project into a new or empty folder; returns the folder.

        Args:
            weights: `float32`, or `int8` for the GPT's matrices.
            which: `best` or `last` checkpoint.

        Raises:
            UserError: No stage that speaks is trained yet, or the folder is not empty.
        """
        from myxtts.interchange.onnx.exporting import export_model

        export_model(self.folder, Path(output), weights=weights, which=which)
        return Path(output)

    def speak(self, text: str, voice=None, language: str | None = None, seed: int = 0, **options) -> "Speech":
        """Speaks with the best checkpoint.

        Args:
            voice: As in `Synthesizer.speak`. By default a held-out recording, with more of its speaker if it is
                shorter than the conditioning clips in training.
            language: Language code of the text; by default that of the speaker or the held-out recording.
            seed: Sampling seed.
            options: Other arguments of `Synthesizer.speak`, such as `temperature`.

        Raises:
            UserError: No stage that speaks is trained yet, or there is no recording for the voice.
        """
        from myxtts.interchange.onnx.engines import load_synthesizer
        from myxtts.runs.samples import held_out_voice

        if self._dataset is None and voice is None:
            raise UserError("run.speak() needs voice= until run.train() has read the recordings.")
        if self._synthesizer is None:
            self._synthesizer = load_synthesizer(self.folder)
        if voice is None:
            clips = held_out_voice(self._dataset, language)
            voice, language = [clip.wav_path for clip in clips], language or clips[0].language
        elif language is None and self._dataset and voice not in self._synthesizer.speakers:
            language = held_out_voice(self._dataset)[0].language
        return self._synthesizer.speak(text, voice, language, seed=seed, **options)

    def stop(self):
        """Makes `train`, in another thread, finish its step, write a checkpoint and return."""
        self._stop.set()
        if trainer := self.trainer:
            trainer.stop_requested.set()

    def train(self, guard: Callable[..., AbstractContextManager] = nullcontext) -> bool:
        """Trains the stages in `training.stage`. Call it again to continue after a stop.

        Args:
            guard: Called with the trainer of each stage; returns a context manager for its training, such as
                `stops_on_signals`.

        Returns:
            True if all are trained, False after a stop.
        """
        workers = current_workers()
        try:
            with leaving_together(workers), ExitStack() as stack:
                if workers.is_chief:
                    stack.enter_context(own_run_folder(self.folder))
                    stack.enter_context(_logging_to(log := _LogFile(self.folder / "train.log")))
                    if self._early:
                        self._early.setTarget(log)
                        self._early.flush()
                self.finished = self._train(guard, workers)
                workers.close()
                return self.finished
        finally:
            self._stop.clear()

    def _train(self, guard, workers):
        from myxtts.runs.agenda import TimeLeft
        from myxtts.runs.opening import open_together
        from myxtts.runs.samples import speak_last_words, write_curves
        from myxtts.training.stages.classes import STAGE_CLASSES

        self.time_left = TimeLeft(self.config)
        self._notify("on_pipeline", self.config, self.plan)
        dataset, stages = open_together(self.config, workers, self._notify)
        self.config, self._dataset, self._synthesizer = dataset.config, dataset, None
        self._notify("on_corpus", dataset)
        stopped_in = None
        with self.monitor:
            for stage in stages:
                if workers.agree(self._stop) or not self._train_stage(stage, dataset, guard, workers):
                    stopped_in = stage
                    break
        if stages and workers.is_chief:
            write_curves(self.folder, self.history)
        if stopped_in is not None:
            self._notify("on_stopped", stopped_in)
            return False
        speaks = any(STAGE_CLASSES[name].speaks for name in self.history)
        if stages and speaks and self.config.training.sample_every_steps and workers.is_chief:
            self.trainer = None  # frees the memory of its model
            self._notify("on_spoken", speak_last_words(self.config, dataset, self.plan.model_device))
        self._notify("on_finished", dataset)
        return True

    def _train_stage(self, stage, dataset, guard, workers):
        """Trains one stage; returns False if it was stopped."""
        from myxtts.runs.opening import open_stage

        self._notify("on_stage", stage, dataset.order(stage))
        self.trainer = None  # frees the memory of its model
        self.trainer, writers = open_stage(stage, self.plan, dataset)
        if self._stop.is_set():
            self.trainer.stop_requested.set()
        self.trainer.watch.monitor = self.monitor
        callbacks = [self.time_left, *self.callbacks, *writers] if workers.is_chief else []
        with guard(self.trainer):
            self.trainer.train(dataset, callbacks)
        if self.trainer.stop_requested.is_set() and not self.trainer.under_way:
            workers.leave("was stopped before its first step", 0)
            return False
        return not workers.agree(self.trainer.stop_requested)

    def _notify(self, event, *facts):
        for callback in (self.time_left, *self.callbacks) if current_workers().is_chief else ():
            if handler := getattr(callback, event, None):
                handler(*facts)


class _LogFile(logging.FileHandler):
    """Log file that survives a full or broken disk: lost lines are reported once, to the other handlers."""

    _failed = False

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(LOG_FORMAT, LOG_TIME_FORMAT))

    def emit(self, record):
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)

    def handleError(self, record):  # noqa: N802
        if not self._failed:
            self._failed = True
            logging.getLogger(LOGGER_NAME).error("%s cannot be written to: %s", self.baseFilename, sys.exc_info()[1])

    def close(self):
        with suppress(OSError):  # flushing its buffer can fail
            super().close()


@contextmanager
def stops_on_signals(trainer) -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM set the trainer's `stop_requested`; a second signal stops at once.

    The trainer then finishes its step and writes a checkpoint. Before its first step, the signal ends the block.
    """
    NoStepYet = type("NoStepYet", (KeyboardInterrupt,), {})

    def request(number, frame):
        if trainer.stop_requested.is_set():
            raise KeyboardInterrupt
        trainer.stop_requested.set()
        last = "finishing the step and writing a checkpoint; press again to stop at once"
        follows = last if trainer.under_way else "stopping before the first step"
        # Not `print`, which is not reentrant: the signal may have interrupted one.
        os.write(sys.__stdout__.fileno(), f"\n{signal.Signals(number).name}: {follows}\n".encode())
        if not trainer.under_way:
            raise NoStepYet

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (NoStepYet, Exception):
        # TensorFlow may raise an error of its own instead of the interrupt.
        if trainer.under_way or not trainer.stop_requested.is_set():
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging_to(handler) -> Iterator[None]:
    """Adds a handler to the package's logger for a `with` block."""
    logger = logging.getLogger(LOGGER_NAME)
    level = logger.level
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()

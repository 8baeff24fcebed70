"""A training run: one folder, its stages in their order, and its listeners. All front ends train through this.

Nothing here imports TensorFlow before `Run.train`, so that `Run.open` can still configure the devices.
"""

import logging
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
from myxtts.runs.setup import set_up
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import own_run_folder
from myxtts.utils.commons import LOG_FORMAT, LOG_TIME_FORMAT, LOGGER_NAME

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Speech
    from myxtts.runs.figures import Picture


class RunListener:
    """Base of listeners. A run calls those of these methods that a listener has, in the thread of `Run.train`, and
    those of `training.watching.callbacks.Callback`, which report the steps of each stage:

    - `on_pipeline(config, plan)`: the run has its folder and its devices.
    - `on_inspection(done, total)`: so many of the recordings have been checked.
    - `on_corpus(dataset)`: the recordings have been read: a `data.dataset.SpeechDataset`.
    - `on_agenda(works)`: what it is about to do, a `runs.agenda.StageWork` for each stage; nothing is changed yet.
    - `on_needs(needs)`: what memory and disk that takes, a `runs.forecast.Needs`.
    - `on_stage(stage, order)`: the stage is next; `order` is the `data.buckets.BatchOrder` of its batches.
    - `on_set_aside(stage, folder)`: it starts over; earlier checkpoints were moved into a folder with all of their run.
    - `on_stopped(stage)`: the run stops in this stage, as requested.
    - `on_spoken(spoken)`: new sentences by the finished model, as `runs.samples.LastWords`.
    - `on_finished(dataset)`: all stages that were asked for are trained.
    """


class Run:
    """Trains the stages of XTTS in one folder, or resumes them where an earlier run stopped there.

    Args:
        config: With `data.train_data` set; `training.checkpoint_dir` is the folder.
        callbacks: Objects with any methods of `RunListener` and of `training.watching.callbacks.Callback`. More can be
            added to `callbacks` before `train`. Of several workers, only those of worker 0 are called.
    """

    def __init__(self, config: XTTSConfig, plan: DevicePlan, callbacks: Sequence = ()):
        self.config: XTTSConfig = config
        """As asked for; `train` adds what recordings and the run that it starts from settle, such as the vocabulary."""
        self.plan: DevicePlan = plan
        self.callbacks: list = list(callbacks)
        self.folder: Path = Path(config.training.checkpoint_dir)
        self.monitor: GPUMonitor = GPUMonitor(plan.visible_ids or None)
        """Of the plan's GPUs; samples while stages are trained."""
        self.trainer = None
        """`StageTrainer` of the stage that is trained, or was trained last."""
        self.finished: bool = False
        """Whether the last `train` trained all that was asked for, rather than being stopped."""
        self._stop = threading.Event()
        self._dataset, self._synthesizer, self._early = None, None, None

    @classmethod
    def open(cls, config: XTTSConfig, callbacks: Sequence = (), device_plan: str | None = None, **options) -> "Run":
        """A run on the devices and recordings that are asked for, or with `auto` the quickest; see `setup.set_up`."""
        early = MemoryHandler(10**5)  # keeps what is said before the run's log can be written
        with _logging_to(early):
            if device_plan == "auto":
                from myxtts.runs.device_choice import quickest_devices

                config, options = quickest_devices(config, options)
            run = cls(*set_up(config, **options), callbacks)
        run._early = early
        return run

    @property
    def history(self) -> dict[str, list[dict[str, float]]]:
        """Validation losses by stage, up to its newest checkpoint, with the `step` of each."""
        stores = {stage: CheckpointStore(self.folder / stage) for stage in STAGES}
        trained = {stage: store for stage, store in stores.items() if store.steps()}
        return {stage: store.read_state(store.steps()[-1]).get("history", []) for stage, store in trained.items()}

    @property
    def best(self) -> dict[str, int]:
        """Step of the best checkpoint by stage."""
        steps = {stage: CheckpointStore(self.folder / stage).best_step() for stage in STAGES}
        return {stage: step for stage, step in steps.items() if step is not None}

    @property
    def pictures(self) -> dict[str, "Picture"]:
        """The loss curves, `curves`, and what was made of validation clips, by the names of their files."""
        from myxtts.runs.figures import Picture

        paths = (*self.folder.glob("curves.png"), *sorted((self.folder / "samples").glob("*.png")))
        return {path.stem: Picture(path) for path in paths}

    def __repr__(self) -> str:
        steps = {stage: CheckpointStore(self.folder / stage).steps() for stage in STAGES}
        done = ", ".join(f"{stage} step {found[-1]}" for stage, found in steps.items() if found)
        way_on = ".speak(text), .evaluate(), .export(folder), .history, .best" if done else ".train()"
        return f"<Run in {self.folder}: {done or 'nothing trained yet'}; {way_on}>"

    def evaluate(self, **options) -> dict:
        """Evaluates the best checkpoint as `myxtts evaluate` does; options and result as of `myxtts.evaluate`."""
        import myxtts  # the door, which knows the apps

        return myxtts.evaluate(self.folder, **options)

    def export(self, output: str | Path, weights: str = "float32", which: str = "best") -> Path:
        """Writes ONNX files that speak without this project into a folder that is empty or not there; returns it.

        Args:
            weights: `float32`, or `int8` for the GPT's matrices.
            which: `best` or `last` checkpoint.

        Raises:
            UserError: Nothing that speaks is trained yet, or the folder holds something.
        """
        from myxtts.interchange.onnx.exporting import export_model

        export_model(self.folder, Path(output), weights=weights, which=which)
        return Path(output)

    def speak(self, text: str, voice=None, language: str | None = None, seed: int = 0, **options) -> "Speech":
        """Speaks with the best checkpoint.

        Args:
            voice: As of `Synthesizer.speak`; None takes a recording that was held out of training, and more of its
                speaker where it is shorter than those that conditioned the model.
            language: Code of the text's language; None takes that of the held-out recording, or of the speaker named.
            seed: Of the draws.
            options: Others of `Synthesizer.speak`, such as `temperature`.

        Raises:
            UserError: Nothing that speaks is trained yet, or there is no recording to take the voice from.
        """
        from myxtts.interchange.onnx.engines import load_synthesizer
        from myxtts.runs.samples import held_out_voice

        if self._dataset is None and voice is None:
            raise UserError("run.speak() needs voice= before run.train(), which reads the recordings.")
        if self._synthesizer is None:
            self._synthesizer = load_synthesizer(self.folder)
        if voice is None:
            clips = held_out_voice(self._dataset, language)
            voice, language = [clip.wav_path for clip in clips], language or clips[0].language
        elif language is None and self._dataset and voice not in self._synthesizer.speakers:
            language = held_out_voice(self._dataset)[0].language
        return self._synthesizer.speak(text, voice, language, seed=seed, **options)

    def stop(self):
        """Lets `train`, in another thread, finish its step, write a checkpoint and return."""
        self._stop.set()
        if trainer := self.trainer:
            trainer.stop_requested.set()

    def train(self, guard: Callable[..., AbstractContextManager] = nullcontext) -> bool:
        """Trains the stages that `training.stage` asks for. After a stop it can be called again.

        Args:
            guard: Called with the trainer of each stage, for a `with` block around its training: `stops_on_signals`.

        Returns:
            Whether all are trained; False after a stop.
        """
        workers = current_workers()
        try:
            with leaving_together(workers), ExitStack() as stack:
                if workers.is_chief:  # who alone writes
                    stack.enter_context(own_run_folder(self.folder))
                    stack.enter_context(_logging_to(log := _log_file(self.folder / "train.log")))
                    if self._early:
                        self._early.setTarget(log)
                        self._early.flush()
                self.finished = self._train(guard, workers)
                workers.close()
                return self.finished
        finally:
            self._stop.clear()

    def _train(self, guard, workers):
        from myxtts.runs.figures import write_curves
        from myxtts.runs.forecast import TimeLeft
        from myxtts.runs.opening import open_together
        from myxtts.runs.samples import speak_last_words
        from myxtts.training.stages.classes import STAGE_CLASSES

        self.time_left = TimeLeft(self.config)
        """Tells the steps' listeners how long the whole run still takes."""
        self._notify("on_pipeline", self.config, self.plan)
        dataset, works = open_together(self.config, workers, self._notify)
        self.config, self._dataset, self._synthesizer = dataset.config, dataset, None
        self.time_left.config = dataset.config
        self._notify("on_corpus", dataset)
        stopped_in = None
        with self.monitor:
            for stage, is_fresh in works:
                if workers.agree(self._stop) or not self._train_stage(stage, dataset, is_fresh, guard, workers):
                    stopped_in = stage
                    break
        if works and workers.is_chief:
            write_curves(self.folder, self.history)
        if stopped_in is not None:
            self._notify("on_stopped", stopped_in)
            return False
        speaks = any(STAGE_CLASSES[name].speaks for name in self.history)
        if works and speaks and self.config.training.sample_every_steps and workers.is_chief:
            self.trainer = None  # not two models at a time
            self._notify("on_spoken", speak_last_words(self.config, dataset, self.plan.model_device))
        self._notify("on_finished", dataset)
        return True

    def _train_stage(self, stage, dataset, fresh, guard, workers):
        """Trains one stage; returns whether nobody stopped it."""
        from myxtts.runs.stage import open_stage

        self._notify("on_stage", stage, dataset.order(stage))
        self.trainer = None  # not two models at a time
        self.trainer, writers = open_stage(self.config, stage, self.plan, dataset, fresh)
        if self._stop.is_set():
            self.trainer.stop_requested.set()
        self.trainer.watch.monitor = self.monitor
        callbacks = [self.time_left, *self.callbacks, *writers] if workers.is_chief else []
        with guard(self.trainer):
            self.trainer.train(dataset, callbacks)
        if self.trainer.stop_requested.is_set() and not self.trainer.under_way:
            workers.leave("was stopped before its first step", 0)  # the signal may have struck anywhere
            return False
        return not workers.agree(self.trainer.stop_requested)

    def _notify(self, event, *facts):
        for callback in (self.time_left, *self.callbacks) if current_workers().is_chief else ():
            if handler := getattr(callback, event, None):
                handler(*facts)


class _LogFile(logging.FileHandler):
    """Loses lines that a full or broken disk does not take, and reports the first of them to the other handlers."""

    _failed = False

    def handleError(self, record):  # noqa: N802  the base class's name
        if not self._failed:
            self._failed = True
            logging.getLogger(LOGGER_NAME).error("%s cannot be written to: %s", self.baseFilename, sys.exc_info()[1])

    def close(self):
        with suppress(OSError):  # what is left in its buffer
            super().close()


def _log_file(path):
    try:
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        logging.getLogger(LOGGER_NAME).error("%s cannot be written to: %s", path, error.strerror)
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(LOG_FORMAT, LOG_TIME_FORMAT))
    return handler


@contextmanager
def _logging_to(handler) -> Iterator[None]:
    """Inside, the package's log goes to a handler as well."""
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

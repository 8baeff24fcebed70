"""`Run`, which trains all stages in one folder, for the command line, the Python API and the web page.

TensorFlow is imported only by `Run.train`, so that `Run.open` can configure the devices first.
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
from myxtts.storage.run_folder import own_run_folder, stores_in
from myxtts.utils.commons import LOG_FORMATTER, LOGGER_NAME

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Speech
    from myxtts.runs.samples import Picture


class RunListener:
    """Base class of objects that are notified of the events of a run.

    Subclasses define any of the methods below, which a run calls in the thread of `Run.train`. A run also calls the
    methods of `training.watching.callbacks.Callback`, which report the steps of a stage.

    - `on_pipeline(config, plan)`: the folder is locked and the devices are known.
    - `on_inspection(done, total)`: `done` of `total` recordings were checked.
    - `on_corpus(dataset)`: the recordings were read into a `data.dataset.SpeechDataset`.
    - `on_agenda(works)`: the agenda, a `runs.agenda.StageWork` per stage, is known; nothing was trained or reset yet.
    - `on_needs(needs)`: the needed memory and disk, a `runs.agenda.Needs`, were estimated.
    - `on_no_trial(why)`: there are no trial steps, and therefore no time estimates; `why` is the reason.
    - `on_trial_start(stages)`: trial steps of these stages are about to start.
    - `on_trial(times)`: the trial steps gave these estimates, `{stage: (seconds per step, seconds of the stage)}`.
    - `on_stage(stage, order)`: the stage is about to start; `order` is the `data.batch.BatchOrder` of its batches.
    - `on_set_aside(stage, folder)`: the stage starts over, and its checkpoints were moved to `folder`.
    - `on_stopped(stage)`: the run was stopped in this stage.
    - `on_spoken(spoken)`: the trained model synthesized `spoken`, a list of `runs.samples.LastWords`.
    - `on_finished(dataset)`: all requested stages are trained.
    """


class Run:
    """Trains the stages of XTTS in one folder, or resumes their training.

    Args:
        config: Settings with `data.train_data`; `training.checkpoint_dir` is the folder.
        plan: Devices that prepare data and train. `Run.open` configures them and creates the run.
        callbacks: Objects with methods of `RunListener` or `training.watching.callbacks.Callback`; worker 0 calls them.
    """

    def __init__(self, config: XTTSConfig, plan: DevicePlan, callbacks: Sequence = ()):
        self.config: XTTSConfig = config
        """Settings as requested until `train` has read the recordings, then the complete settings of the run."""
        self.plan: DevicePlan = plan
        self.callbacks: list = list(callbacks)
        self.folder: Path = Path(config.training.checkpoint_dir)
        self._home = self.folder.absolute()  # the program may change its working folder
        self.monitor: GPUMonitor = GPUMonitor(plan.visible_ids)
        """Measures memory and utilization of the GPUs in use during training."""
        self.trainer = None
        """`StageTrainer` of the current or last stage; None before the first stage and after the final samples."""
        self.finished: bool = False
        """Whether the last call of `train` trained all requested stages and was not stopped."""
        self._stop = threading.Event()
        self._dataset, self._synthesizer, self._early = None, None, None

    @classmethod
    def open(cls, config: XTTSConfig, callbacks: Sequence = (), device_plan: str | None = None, **options) -> "Run":
        """Configures the devices and creates a run. `options` are keyword arguments of `setup.set_up`.
        `device_plan="auto"` measures the speed of training to select the fastest devices."""
        early = MemoryHandler(10**5)  # log lines until the run's log file exists
        with _logging_to(early):
            if device_plan == "auto":
                config, options = quickest_devices(config, options)
            run = cls(*set_up(config, **options), callbacks)
        run._early = early
        return run

    @property
    def last_steps(self) -> dict[str, int]:
        """Step of each stage's newest checkpoint, by stage. Stages without a checkpoint are omitted."""
        return {stage: store.steps()[-1] for stage, store in stores_in(self._home).items()}

    @property
    def history(self) -> dict[str, list[dict[str, float]]]:
        """Validation losses of each stage up to its newest checkpoint. Each dictionary has a `step` and its losses."""
        states = {stage: store.read_state(store.steps()[-1]) for stage, store in stores_in(self._home).items()}
        return {stage: state.get("history", []) for stage, state in states.items()}

    @property
    def best(self) -> dict[str, int]:
        """Step of each stage's best checkpoint, by stage. Stages without a best checkpoint are omitted."""
        steps = {stage: store.best_step() for stage, store in stores_in(self._home).items()}
        return {stage: step for stage, step in steps.items() if step is not None}

    @property
    def pictures(self) -> dict[str, "Picture"]:
        """Pictures for notebooks, by file name without suffix: loss curves (`curves`) and mel plots of samples."""
        from myxtts.runs.samples import Picture

        paths = (*self._home.glob("curves.png"), *sorted((self._home / "samples").glob("*.png")))
        return {path.stem: Picture(path) for path in paths}

    def __repr__(self) -> str:
        done = ", ".join(f"{stage} step {step}" for stage, step in self.last_steps.items())
        methods = ".speak(text), .evaluate(), .export(folder), .history, .best" if done else ".train()"
        return f"<Run in {self.folder}: {done or 'nothing trained yet'}; {methods}>"

    def evaluate(self, **options) -> dict:
        """Evaluates the speech of the best checkpoint. Options and result are those of `myxtts.evaluate`."""
        import myxtts

        return myxtts.evaluate(self._home, **options)

    def export(self, output: str | Path, weights: str | None = None, which: str = "best", format: str = "onnx") -> Path:
        """Exports the `best` or `last` checkpoint to ONNX, for synthesis without MyXTTS; returns the folder.

        `weights` is the number format of the GPT's matrices, `float32` or `int8`; None is the default for `format`
        (`onnx` or `web`). Raises `UserError` if the GPT is not trained yet, or if `output` is not empty.
        """
        from myxtts.interchange.onnx.exporting import export_model

        export_model(self._home, Path(output), format, weights, which)
        return Path(output)

    def speak(self, text: str, voice=None, language: str | None = None, seed: int = 0, **options) -> "Speech":
        """Synthesizes a text with the best checkpoint.

        Args:
            voice: Voice as in `Synthesizer.speak`. If None, `runs.samples.held_out_voice` selects recordings.
            language: Code or name. None: the recordings' language or, if `voice` is given, as in `Synthesizer.speak`.
            seed: Sampling seed.
            options: Other arguments of `Synthesizer.speak`, such as `temperature`.

        Raises `UserError` if the GPT is not trained yet, or if `voice` is None and `train` has not read the recordings.
        """
        from myxtts.interchange.onnx.engines import load_synthesizer
        from myxtts.runs.samples import held_out_voice
        from myxtts.text.languages import get_language

        if self._dataset is None and voice is None:
            raise UserError("run.speak() needs voice= until run.train() has read the recordings.")
        if self._synthesizer is None:
            self._synthesizer = load_synthesizer(self._home)
        if voice is None:
            with suppress(ValueError):  # a language that `speak` refuses
                language = language and get_language(language).code
            clips = held_out_voice(self._dataset, language)
            voice, language = [clip.wav_path for clip in clips], language or clips[0].language
        return self._synthesizer.speak(text, voice, language, seed=seed, **options)

    def stop(self):
        """Stops the training that another thread runs: `train` finishes the step, writes a checkpoint and returns."""
        self._stop.set()

    def train(self, guard: Callable[..., AbstractContextManager] = nullcontext) -> bool:
        """Trains the stages in `training.stage`, or resumes their training. Returns False if training was stopped.

        `guard(trainer)` returns a context manager for the training of a stage, such as `stops_on_signals`.
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

        self.time_left = TimeLeft(self.config)
        self._notify("on_pipeline", self.config, self.plan)
        dataset, stages = open_together(self.config, workers, self._notify)
        self.config, self._dataset, self._synthesizer = dataset.config, dataset, None
        self._notify("on_corpus", dataset)
        ends = lambda stage: not workers.agree(self._stop) and self._train_stage(stage, dataset, guard, workers)
        with self.monitor:
            stopped_in = next((stage for stage in stages if not ends(stage)), None)
        if stages and workers.is_chief:
            write_curves(self.folder, self.history)
        if stopped_in is not None:
            self._notify("on_stopped", stopped_in)
            return False
        speaks = any(STAGES[name].speaks for name in self.history)
        newest = lambda paths: max((path.stat().st_mtime_ns for path in paths), default=0)
        trained = newest(store.path(store.steps()[-1]) for store in stores_in(self.folder).values())
        is_new = stages or newest(self.folder.glob("samples/final_*.wav")) <= trained  # after a stop in the last step
        if is_new and speaks and self.config.training.sample_every_steps and workers.is_chief:
            self.trainer = None  # frees the memory of its model
            self._notify("on_spoken", speak_last_words(self.config, dataset, self.plan.model_device))
        self._notify("on_finished", dataset)
        return True

    def _train_stage(self, stage, dataset, guard, workers):
        """Trains one stage. Returns False if the run was stopped in this stage."""
        from myxtts.runs.opening import open_stage

        self._notify("on_stage", stage, dataset.order(stage))
        self.trainer = None  # frees the memory of its model
        self.trainer, writers = open_stage(stage, self.plan, dataset)
        self.trainer.stop_requested, self.trainer.watch.monitor = self._stop, self.monitor
        callbacks = [self.time_left, *self.callbacks, *writers] if workers.is_chief else []
        with guard(self.trainer):
            self.trainer.train(dataset, callbacks)
        if self._stop.is_set() and not self.trainer.under_way:
            workers.leave("was stopped before its first step", 0)
            return False
        return not workers.agree(self._stop)

    def _notify(self, event, *facts):
        for callback in (self.time_left, *self.callbacks) if current_workers().is_chief else ():
            if handler := getattr(callback, event, None):
                handler(*facts)


class _LogFile(logging.FileHandler):
    """Log file handler that reports its first write error, such as a full disk, to the logger's other handlers."""

    _failed = False

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(LOG_FORMATTER)

    def emit(self, record):
        try:
            super().emit(record)
        except OSError:  # while opening the file
            self.handleError(record)

    def handleError(self, record):  # noqa: N802
        if not self._failed:
            self._failed = True
            logging.getLogger(LOGGER_NAME).error("%s cannot be written to: %s", self.baseFilename, sys.exc_info()[1])

    def close(self):
        with suppress(OSError):  # while flushing the buffer
            super().close()


@contextmanager
def stops_on_signals(trainer) -> Iterator[None]:
    """Context manager in which Ctrl-C or SIGTERM makes `trainer` finish the step, write a checkpoint and stop.

    A second signal raises `KeyboardInterrupt`. A signal before the first step ends the block without an exception.
    """
    NoStepYet = type("NoStepYet", (KeyboardInterrupt,), {})

    def request(number, frame):
        if trainer.stop_requested.is_set():
            raise KeyboardInterrupt
        trainer.stop_requested.set()
        last = "finishing the step and writing a checkpoint; press again to stop at once"
        follows = last if trainer.under_way else "stopping before the first step"
        # Not `print`, which is not reentrant. Ctrl-C also ends `tee`, and there may be no standard output.
        with suppress(OSError, ValueError, AttributeError):
            os.write(sys.__stdout__.fileno(), f"\n{signal.Signals(number).name}: {follows}\n".encode())
        if not trainer.under_way:
            raise NoStepYet

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (NoStepYet, Exception):
        # TensorFlow may convert the interrupt to an error of its own.
        if trainer.under_way or not trainer.stop_requested.is_set():
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging_to(handler) -> Iterator[None]:
    """Sends log messages (INFO and above) to `handler` during a `with` block, and then closes `handler`."""
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

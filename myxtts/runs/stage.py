"""One stage of a run: its trainer, on the finished models it builds on, and what writes into the run's folder."""

from contextlib import suppress
from functools import cache
from pathlib import Path

from myxtts.config.config import XTTSConfig
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.runs.figures import MetricsFile
from myxtts.runs.samples import Copier, SampleSpeaker
from myxtts.runs.speech_judge import SpeechJudge
from myxtts.training.resuming.foundations import load_foundations
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.callbacks import TensorBoardWriter


def open_stage(
    config: XTTSConfig, stage: str, plan: DevicePlan, dataset: SpeechDataset, fresh: bool
) -> tuple[StageTrainer, list]:
    """Makes the trainer of a stage, resumed or fresh, and the callbacks that write logs and samples, on the chief.

    A `fresh` stage has no training to continue: its folder is empty, or has the weights to start from as step 0.
    """
    kind, settings = STAGE_CLASSES[stage], config.training
    foundations, lineage = load_foundations(config, stage, plan.data_device)
    measured = kind.measure(dataset) if fresh else None
    trainer = StageTrainer(config, stage, plan, foundations, lineage, measured=measured)
    make_synthesizer = _synthesizer_of(trainer, foundations, dataset) if kind.speaks else None
    if kind.speaks and settings.evaluate_every_steps:
        trainer.watch.speech_judge = SpeechJudge(dataset, make_synthesizer, trainer.model_device, config)
    if not trainer.workers.is_chief:
        return trainer, []
    logs = Path(settings.tensorboard_log_dir or f"{settings.checkpoint_dir}/tensorboard")
    with suppress(OSError):  # which its files will tell, and train without them
        logs.mkdir(parents=settings.tensorboard_log_dir is not None, exist_ok=True)
    callbacks = [TensorBoardWriter(logs, config), MetricsFile(settings.checkpoint_dir)]
    samples, log_folder = Path(settings.checkpoint_dir) / "samples", logs / "samples"
    if settings.sample_every_steps:
        callbacks.append(Copier(dataset, trainer, samples, log_folder))
    if kind.speaks:
        device = trainer.model_device
        callbacks.append(SampleSpeaker(dataset, make_synthesizer, device, samples, log_folder, config))
    return trainer, callbacks


def _synthesizer_of(trainer, foundations, dataset):
    """A call that gives the synthesizer of the model in training, made once: tracing costs seconds."""

    @cache
    def make_synthesizer():
        model = XTTS.assemble(trainer.config.model, *foundations.values(), trainer.model)
        return Synthesizer(model, dataset.tokenizer, trainer.config)

    return make_synthesizer

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

    @cache  # tracing costs seconds
    def synthesizer():
        """That of the model in training."""
        model = XTTS.assemble(trainer.config.model, *foundations.values(), trainer.model)
        return Synthesizer(model, dataset.tokenizer, trainer.config)

    if kind.speaks and settings.evaluate_every_steps:
        trainer.watch.speech_judge = SpeechJudge(dataset, synthesizer, trainer.model_device, config)
    if not trainer.workers.is_chief:
        return trainer, []
    home = Path(settings.checkpoint_dir)
    logs = Path(settings.tensorboard_log_dir or home / "tensorboard")
    with suppress(OSError):  # its files will log that, and training does without them
        logs.mkdir(parents=settings.tensorboard_log_dir is not None, exist_ok=True)
    callbacks = [TensorBoardWriter(logs, config), MetricsFile(home)]
    if settings.sample_every_steps:
        callbacks.append(Copier(dataset, trainer, home / "samples", logs / "samples"))
    if kind.speaks:
        folders = home / "samples", logs / "samples"
        callbacks.append(SampleSpeaker(dataset, synthesizer, trainer.model_device, *folders, config))
    return trainer, callbacks

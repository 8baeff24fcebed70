"""`XTTSTrainer`, the public class for training one stage. Only user code imports this module."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config.checks import require
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_for
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import device_named
from myxtts.models.xtts import XTTS
from myxtts.runs.opening import write_settings
from myxtts.runs.setup import holds_run, run_in
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import VOCABULARY, own_run_folder
from myxtts.training.resuming import load_foundations, untrained_foundations
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.classes import STAGE_CLASSES

logger = logging.getLogger(__name__)


class XTTSTrainer(StageTrainer):
    """Trains one stage of XTTS on the recordings in `data.train_data`.

    Loads the recordings and creates the tokenizer. `train` first trains the models that this stage depends on, unless
    they are in `training.checkpoint_dir` or in `model`.

    Args:
        config: Configuration. `data.data_gpu` and `data.model_gpu` select the devices.
        model: Model to train, on the model device. It must contain the part that the stage trains. The run uses the
            model's shape and, if `model.preset` is set, the preset's vocabulary. None creates a model.
        resume_checkpoint: Folder of the run to resume. None resumes the run in `training.checkpoint_dir`, if it has a
            checkpoint of the stage and `training.reset_training` is False.
        model_device: TensorFlow name of the device that trains; None means the model device in `plan`.
        stage: Name of the stage; None means `training.stage`, or `gpt` if `training.stage` is `all`.
        plan: Devices that prepare data and train; None means the devices in the configuration.
        options: Arguments `foundations` and `lineage` of `StageTrainer`. With `foundations`, `config` must be the
            configuration of a `SpeechDataset`, and `train` must be called with that data set.

    Raises `DeviceError` if a configured device is missing, and `UserError` if a setting, recording or file is unusable.
    """

    def __init__(
        self,
        config: XTTSConfig,
        model: XTTS | None = None,
        resume_checkpoint: str | None = None,
        model_device: str | None = None,
        *,
        stage: str | None = None,
        plan: DevicePlan | None = None,
        **options,
    ):
        plan = plan or plan_for(config.data.data_gpu, config.data.model_gpu)
        if model_device is not None:
            plan = replace(plan, model_devices=(device_named(model_device, "model_device"),))
        stage = stage or ("gpt" if config.training.stage == "all" else config.training.stage)
        self._home, self._given = Path(config.training.checkpoint_dir), model
        self._dataset, self._missing = None, []  # `_missing` lists the stages to train first
        if "foundations" not in options and (STAGES[stage].builds_on or not config.model.num_text_tokens):
            self._dataset = self._open(config)
            config = self._dataset.config
            for name in STAGES[stage].builds_on:
                store = CheckpointStore(self._home / name)
                last = store.newest_sound(logger.warning)
                if last is None or not store.read_state(last)["finished"]:
                    self._missing.append(name)
            if self._missing:  # all are random until `train`
                options["foundations"] = untrained_foundations(config, stage, plan.data_device)
            else:
                options["foundations"], options["lineage"] = load_foundations(config, stage, plan.data_device)
        super().__init__(config, stage, plan, model=model, resume_checkpoint=resume_checkpoint, **options)

    def _open(self, config):
        """Opens the data set. Raises `ConfigError` if no data set is configured, if its vocabulary is too large for the
        given model, if `training.init_from` is set, or if `training.reset_training` is set and the run exists."""
        home, training, model = self._home, config.training, self._given
        hint = "myxtts.train() makes a sample corpus without one."
        require(config.data.train_data is not None, "data.train_data", "a training set", None, hint)
        rule, hint = "None in a trainer of one stage", "Use myxtts.train(config), or XTTS.from_preset and model=."
        require(training.init_from is None, "training.init_from", rule, training.init_from, hint)
        is_reset, rule = training.reset_training and holds_run(home), f"False, because {home} has a run"
        hint = "Use myxtts.train(config), or another training.checkpoint_dir."
        require(not is_reset, "training.reset_training", rule, True, hint)
        if began := run_in(home):
            origin = {"init_from": began.training.init_from, "tune": began.training.tune}
            config = replace(config, training=replace(training, **origin))
        if model is None:
            return SpeechDataset.open(config)
        if model.preset is not None and config.data.g2p is None and not (home / "config.json").is_file():
            config = replace(config, data=replace(config.data, g2p=model.preset[0].g2p))
        if model.preset is not None and not (home / VOCABULARY).is_file():
            home.mkdir(parents=True, exist_ok=True)
            model.preset[0].save(home / VOCABULARY)
        dataset = SpeechDataset.open(replace(config, model=model.config))
        rows, needed = model.config.num_text_tokens, dataset.config.model.num_text_tokens
        hint = f"Make the model with ModelConfig(num_text_tokens={needed}), or lower data.vocabulary_size."
        require(needed <= rows, "The vocabulary", f"at most {rows} tokens, as in the model", needed, hint)
        shape = replace(dataset.config.model, num_text_tokens=rows)  # it may have more embedding rows than tokens
        dataset.config = replace(dataset.config, model=shape)
        return dataset

    def train(self, dataset: SpeechDataset | None = None, callbacks: Iterable = ()) -> dict[str, float]:
        """Trains to the stage's last step. Returns the last validation losses by name.

        Args:
            dataset: Data set; None means the data set in the configuration.
            callbacks: Objects with any of the methods of `callbacks.Callback`.
        """
        if self._dataset is None:
            return super().train(dataset or SpeechDataset.open(self.config), callbacks)
        with own_run_folder(self._home):
            write_settings(self._dataset)
            if not self._train_missing(callbacks):
                return {}
            losses = super().train(dataset or self._dataset, callbacks)
        if self._given is not None:  # what `save_to_preset` needs
            self._given.preset, self._given.origin = (self._dataset.tokenizer, self.config), str(self._home.absolute())
            if self.state.finished:
                self.train_step.use_averages()
        return losses

    def _train_missing(self, callbacks):
        """Trains the stages in `_missing` and loads their models as foundations. Returns False after a stop request."""
        config, device, model = self._dataset.config, self.data_device, self._given
        for name in self._missing:
            part = STAGE_CLASSES[name].part
            own = model if model is not None and part in model.parts else None
            # Parts of a preset count as trained, and so does a DVAE whose mel scale was measured.
            if own is not None and (own.preset or (part == "dvae" and np.any(own.mel_stats.numpy() != 1))):
                weights = {"model": arrays_of(own.part_weights(part))}
                CheckpointStore(self._home / name).write(0, weights, {"finished": True}, best=True)
                continue
            logger.info("Training the %s first, because the %s stage depends on it.", name, self.stage.name)
            trainer = StageTrainer(config, name, self.plan, *load_foundations(config, name, device), model=own)
            trainer.stop_requested = self.stop_requested
            trainer.train(self._dataset, callbacks)
            if self.stop_requested.is_set():
                return False
            trainer.train_step.use_averages()
        if self._missing:
            _, self.state.lineage = load_foundations(config, self.stage.name, device, self.stage.foundations)
            self._missing = []
        return True

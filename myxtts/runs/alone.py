"""One stage trained from Python: its recordings, and the stages that it builds on, trained first where they lack."""

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.models.xtts import XTTS
from myxtts.runs.opening import write_settings
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointStore, assign_by_name
from myxtts.storage.provenance import VOCABULARY
from myxtts.training.resuming.foundations import load_foundations
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.classes import STAGE_CLASSES

logger = logging.getLogger(__name__)


class StageAlone:
    """What a trainer of one stage needs.

    Args:
        config: With `data.train_data`.
        model: The one to be trained, whose shape and vocabulary are then those of the run; or None.

    Raises:
        ConfigError: There are no recordings, the model does not fit them, or the settings ask for what only a whole run
            does.
    """

    def __init__(self, config: XTTSConfig, stage: str, plan: DevicePlan, model: XTTS | None):
        self._stage, self._plan, self._model = stage, plan, model
        self._home = Path(config.training.checkpoint_dir)
        _require_plain_start(config, self._home)
        if model is not None:
            config = replace(config, model=model.config)
            if model.preset is not None and not (self._home / VOCABULARY).is_file():
                self._home.mkdir(parents=True, exist_ok=True)
                model.preset[0].save(self._home / VOCABULARY)
        self.dataset: SpeechDataset = SpeechDataset.open(config)
        """Its `config` is that of the run."""
        if model is not None:
            self._fit_text_table(model.config.num_text_tokens)
        below = set(STAGES[stage].builds_on)
        for name in reversed(STAGES):
            below |= set(STAGES[name].builds_on) if name in below else set()
        self._missing = [name for name in STAGES if name in below and not _is_finished(self._home / name)]
        self.foundations: dict[str, XTTS] = {}
        """By stage, on the data device; with random weights until `train_missing` unless all are trained."""
        self.lineage: dict[str, str] = {}
        """Digests of their weights."""
        if not self._missing:
            self.foundations, self.lineage = load_foundations(self.dataset.config, stage, plan.data_device)
            return
        with tf.device(plan.data_device):
            for name in STAGES[stage].builds_on:
                self.foundations[name] = XTTS(self.dataset.config.model, parts=(STAGE_CLASSES[name].part,))

    def _fit_text_table(self, rows):
        """Lets the run's text table be that of the model, which may have rows that no token uses."""
        config = self.dataset.config
        needed = config.model.num_text_tokens
        if needed > rows:
            rule = f"The vocabulary must fit the model's {rows} rows for text tokens. Received: {needed} tokens"
            hint = f"Make the model with ModelConfig(num_text_tokens={needed}), or lower data.vocabulary_size"
            raise ConfigError(f"{rule}. {hint}.")
        self.dataset.config = replace(config, model=replace(config.model, num_text_tokens=rows))

    def train_missing(self, callbacks: Iterable, stop_requested: threading.Event) -> bool:
        """Writes the run's settings, trains what is missing, and gives the foundations their weights.

        Returns:
            Whether nobody stopped it.
        """
        config, device = self.dataset.config, self._plan.data_device
        write_settings(self.dataset)
        for name in self._missing:
            part = STAGE_CLASSES[name].part
            model = self._model if self._model is not None and part in self._model.parts else None
            # A preset's part is trained; so is a DVAE that knows its mel scale.
            if model is not None and (model.preset or (part == "dvae" and np.any(model.mel_stats.numpy() != 1))):
                weights = {"model": arrays_of(model.part_weights(part))}
                CheckpointStore(self._home / name).write(0, weights, {"finished": True}, best=True)
                continue
            logger.info("The %s stage needs a trained %s: it is trained first.", self._stage, name)
            trainer = StageTrainer(config, name, self._plan, *load_foundations(config, name, device), model=model)
            trainer.stop_requested = stop_requested
            trainer.train(self.dataset, callbacks)
            if stop_requested.is_set():
                return False
        if self._missing:
            loaded, self.lineage = load_foundations(config, self._stage, device)
            for name, trained in loaded.items():
                part = STAGE_CLASSES[name].part
                assign_by_name(self.foundations[name].part_weights(part), arrays_of(trained.part_weights(part)), name)
            self._missing = []
        return True

    def hand_over(self, config: XTTSConfig) -> None:
        """Gives the model that was trained its tokenizer, settings and folder, so that it can be saved."""
        if self._model is not None:
            self._model.preset, self._model.origin = (self.dataset.tokenizer, config), str(self._home)


def _require_plain_start(config, home):
    if config.data.train_data is None:
        raise ConfigError("data.train_data must name a training set; myxtts.train() makes a sample corpus without one.")
    if config.training.init_from is not None:
        raise ConfigError("training.init_from is for a whole run. Use myxtts.train(config), or XTTS.from_preset here.")
    if config.training.reset_training and holds_run(home):
        raise ConfigError(
            "training.reset_training sets a whole run aside. Use myxtts.train(config), or another "
            f"training.checkpoint_dir than {home}."
        )


def _is_finished(folder):
    store = CheckpointStore(folder)
    step = store.newest_sound(logger.warning)
    return step is not None and store.read_state(step)["finished"]

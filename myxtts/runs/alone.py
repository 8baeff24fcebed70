"""Training of one stage from Python, with the stages that it depends on, which are trained first if needed."""

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.device_plan import DevicePlan
from myxtts.models.xtts import XTTS
from myxtts.runs.opening import write_settings
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointStore, assign_by_name
from myxtts.storage.provenance import VOCABULARY
from myxtts.training.resuming.checkpointer import load_foundations
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.classes import STAGE_CLASSES

logger = logging.getLogger(__name__)


class StageAlone:
    """Recordings and foundations for a trainer of one stage.

    Args:
        config: Settings with `data.train_data`.
        model: Model to train, which determines shape and vocabulary of the run; None makes one.

    Raises:
        ConfigError: There are no recordings, the model does not fit them, or a setting needs a whole run.
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
        """Recordings, with the settings of the run in `config`."""
        if model is not None:
            rows, needed = model.config.num_text_tokens, self.dataset.config.model.num_text_tokens
            hint = f"Make the model with ModelConfig(num_text_tokens={needed}), or lower data.vocabulary_size."
            require(needed <= rows, "The vocabulary", f"at most {rows} tokens, as in the model", needed, hint)
            shape = replace(self.dataset.config.model, num_text_tokens=rows)  # some rows may be unused
            self.dataset.config = replace(self.dataset.config, model=shape)
        below = set(STAGES[stage].builds_on)
        for name in reversed(STAGES):
            below |= set(STAGES[name].builds_on) if name in below else set()
        self._missing = [name for name in STAGES if name in below and not _is_finished(self._home / name)]
        self.foundations: dict[str, XTTS] = {}
        """Models by stage, on the data device; with random weights until `train_missing` if any is missing."""
        self.lineage: dict[str, str] = {}
        """Digests of their weights."""
        if not self._missing:
            self.foundations, self.lineage = load_foundations(self.dataset.config, stage, plan.data_device)
            return
        with tf.device(plan.data_device):
            for name in STAGES[stage].builds_on:
                self.foundations[name] = XTTS(self.dataset.config.model, parts=(STAGE_CLASSES[name].part,))

    def train_missing(self, callbacks: Iterable, stop_requested: threading.Event) -> bool:
        """Writes the run's settings, trains the missing stages and loads their weights into `foundations`.

        Returns:
            False if it was stopped.
        """
        config, device = self.dataset.config, self._plan.data_device
        write_settings(self.dataset)
        for name in self._missing:
            part = STAGE_CLASSES[name].part
            model = self._model if self._model is not None and part in self._model.parts else None
            # The parts of a preset are trained; so is a DVAE with a measured mel scale.
            if model is not None and (model.preset or (part == "dvae" and np.any(model.mel_stats.numpy() != 1))):
                weights = {"model": arrays_of(model.part_weights(part))}
                CheckpointStore(self._home / name).write(0, weights, {"finished": True}, best=True)
                continue
            logger.info("Training the %s first, because the %s stage depends on it.", name, self._stage)
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
        """Attaches tokenizer, settings and folder to the trained model, so that it can be saved."""
        if self._model is not None:
            self._model.preset, self._model.origin = (self.dataset.tokenizer, config), str(self._home)


def _require_plain_start(config, home):
    """Raises `ConfigError` for settings that need a whole run."""
    source, resets = config.training.init_from, config.training.reset_training
    hint = "myxtts.train() makes a sample corpus without one."
    require(config.data.train_data is not None, "data.train_data", "a training set", None, hint)
    hint = "Use myxtts.train(config), or XTTS.from_preset and model=."
    require(source is None, "training.init_from", "None in a trainer of one stage", source, hint)
    rule, hint = f"False where {home} holds a run", "Use myxtts.train(config), or another training.checkpoint_dir."
    require(not (resets and holds_run(home)), "training.reset_training", rule, resets, hint)


def _is_finished(folder):
    store = CheckpointStore(folder)
    step = store.newest_sound(logger.warning)
    return step is not None and store.read_state(step)["finished"]

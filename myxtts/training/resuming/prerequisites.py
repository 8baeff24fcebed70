"""What a trainer made by hand is not given: recordings, tokenizer and the trained stages that its own builds on."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.data.speaker_clips import keep_speakers
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointStore, assign_by_name
from myxtts.storage.files import write_json
from myxtts.storage.parts import FORMER_HOMES, copy_part
from myxtts.training.resuming.foundations import load_foundations
from myxtts.training.stages.base import arrays_of

logger = logging.getLogger(__name__)


@dataclass
class Prerequisites:
    """What `gather` found."""

    dataset: SpeechDataset
    """Its `config` is that of the run."""
    foundations: dict[str, XTTS]
    """By stage, on the data device; with random weights until `train_missing` unless all are in the run's folder."""
    lineage: dict[str, str]
    missing: tuple[str, ...]
    """Stages to be trained first, in their order."""
    given: tuple[str, ...]
    """Stages whose trained weights are in the model that was given, and not yet in the run's folder."""


def write_settings(dataset: SpeechDataset) -> None:
    """Writes what a run's folder needs besides checkpoints: vocabulary, recordings of the speakers, settings."""
    home = Path(dataset.config.training.checkpoint_dir)
    dataset.tokenizer.save(home / "vocab.json")
    keep_speakers(home, dataset.train)
    write_json(home / "config.json", dataset.config.to_dict())


def gather(config: XTTSConfig, stage: str, device: str, model: XTTS | None) -> Prerequisites | None:
    """Reads the recordings and finds what the stage builds on, in the run's folder or in the model.

    Args:
        config: With `data.train_data`.
        device: The data device.
        model: The one to be trained, whose shape and vocabulary are then those of the run.

    Returns:
        What was found; None where the configuration has all that the stage needs, or names no recordings.

    Raises:
        ConfigError: There are no recordings, the model does not fit them, or the settings ask for what only a whole run
            does.
    """
    if config.model.num_text_tokens and not (config.data.train_data and STAGES[stage].builds_on):
        return None
    home = Path(config.training.checkpoint_dir)
    _require_plain_start(config, home)
    if model is not None:
        config = replace(config, model=model.config)
        if model.preset is not None and not (home / "vocab.json").is_file():
            home.mkdir(parents=True, exist_ok=True)
            model.preset[0].save(home / "vocab.json")
    dataset = SpeechDataset.open(config)
    for part in FORMER_HOMES:
        copy_part(home, home, part)
    if model is not None:
        _fit_text_table(dataset, model)
    needed = _below(stage)
    finished = [name for name in needed if _is_finished(home / name)]
    given = [name for name in needed if name not in finished and _holds_trained(model, name)]
    missing = [name for name in needed if name not in (*finished, *given)]
    ready, lineage = {}, {}
    if set(STAGES[stage].builds_on) <= set(finished):
        ready, lineage = load_foundations(dataset.config, stage, device)
    for name in STAGES[stage].builds_on:
        if name not in ready:
            with tf.device(device):
                ready[name] = XTTS(dataset.config.model, parts=(STAGES[name].load().part,))
    return Prerequisites(dataset, ready, lineage, tuple(missing), tuple(given))


def train_missing(
    found: Prerequisites,
    stage: str,
    device: str,
    model: XTTS | None,
    make_trainer: Callable[..., Any],
    callbacks: Iterable,
    stop_requested: threading.Event,
) -> bool:
    """Writes the run's settings, trains what is missing, and gives the foundations their weights.

    Args:
        found: From `gather`, called with the same stage, device and model.
        make_trainer: Makes an `XTTSTrainer` on the plan of this one.
        callbacks: As in `XTTSTrainer.train`.
        stop_requested: Ends the training below as well.

    Returns:
        Whether nobody stopped it.
    """
    config = found.dataset.config
    home = Path(config.training.checkpoint_dir)
    write_settings(found.dataset)
    for name in found.given:
        weights = arrays_of(model.part_weights(STAGES[name].load().part))
        CheckpointStore(home / name).write(0, {"model": weights}, {"finished": True}, best=True)
    for name in found.missing:
        logger.info("The %s stage needs a trained %s: it is trained first.", stage, name)
        foundations, lineage = load_foundations(config, name, device)
        has_part = model is not None and STAGES[name].load().part in model.parts
        options = dict(stage=name, foundations=foundations, lineage=lineage)
        trainer = make_trainer(config, model if has_part else None, **options)
        trainer.stop_requested = stop_requested
        trainer.train(found.dataset, callbacks)
        if stop_requested.is_set():
            return False
    _take_weights(found, stage, device)
    found.given = found.missing = ()
    return True


def _take_weights(found, stage, device):
    if not (found.given or found.missing):
        return
    loaded, lineage = load_foundations(found.dataset.config, stage, device)
    for name, trained in loaded.items():
        part = STAGES[name].load().part
        assign_by_name(found.foundations[name].part_weights(part), arrays_of(trained.part_weights(part)), name)
    found.lineage.update(lineage)


def _below(stage):
    """All stages that one builds on, directly or not, in their order."""
    found = set()
    for name in reversed(STAGES):
        if name == stage or name in found:
            found |= set(STAGES[name].builds_on)
    return [name for name in STAGES if name in found]


def _require_plain_start(config, home):
    if config.data.train_data is None:
        way_out = "myxtts.train() makes a sample corpus where none is named"
        raise ConfigError(f"data.train_data must name the folder of a training set. Received: None. {way_out}.")
    if config.training.init_from is not None:
        raise ConfigError("training.init_from is for a whole run. Use myxtts.train(config), or XTTS.from_preset here.")
    if config.training.reset_training and any(CheckpointStore(home / name).steps() for name in STAGES):
        rule = "training.reset_training sets a whole run aside, which one trainer cannot"
        raise ConfigError(f"{rule}. Use myxtts.train(config), or name another training.checkpoint_dir than {home}.")


def _is_finished(folder):
    store = CheckpointStore(folder)
    step = store.newest_sound(logger.warning)
    return step is not None and store.read_state(step)["finished"]


def _holds_trained(model, stage):
    """Whether a model has trained weights of a stage's part: those of a preset, or a DVAE that knows its mel scale."""
    part = STAGES[stage].load().part
    if model is None or part not in model.parts:
        return False
    return model.preset is not None or (part == "dvae" and bool(np.any(model.mel_stats.numpy() != 1)))


def _fit_text_table(dataset, model):
    """Lets the run's text table be that of the model, which may have rows that no token uses."""
    rows, needed = model.config.num_text_tokens, dataset.config.model.num_text_tokens
    if needed > rows:
        rule = f"The vocabulary must fit the model's {rows} rows for text tokens. Received: {needed} tokens"
        way_out = f"Make the model with ModelConfig(num_text_tokens={needed}), or lower data.vocabulary_size"
        raise ConfigError(f"{rule}. {way_out}.")
    dataset.config = replace(dataset.config, model=replace(dataset.config.model, num_text_tokens=rows))

"""Foundations of a stage: the finished, frozen models of earlier stages."""

import logging
from pathlib import Path

import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.shards import PreparedClips
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.run_folder import chosen_step
from myxtts.training.stages.classes import STAGE_CLASSES

logger = logging.getLogger(__name__)


def load_foundations(config: XTTSConfig, stage: str, device: str) -> tuple[dict[str, XTTS], dict[str, str]]:
    """Loads the models that a stage depends on from the run's folder.

    Args:
        device: The data device.

    Returns:
        The models and the digests of their weights (the stage's lineage), each by name of their stage.

    Raises:
        CheckpointError: A model is missing or not trained to the end.
        UserError: The prepared codes are of another DVAE.
    """
    models, lineage = {}, {}
    for name in STAGES[stage].builds_on:
        store = CheckpointStore(Path(config.training.checkpoint_dir) / name)
        step = store.newest_sound(logger.warning)
        if step is None:
            raise CheckpointError(
                f"The {stage} stage needs a trained {name}, and {store.folder} has none. Leave out --stage, or train "
                f"it first with --stage {name}."
            )
        part = STAGE_CLASSES[name].part
        tensors, state = store.read(step, ["model"])
        if not state["finished"]:
            raise CheckpointError(
                f"The {stage} stage needs a {name} that is trained to the end. The one in {store.folder} stopped at "
                f"step {step}. Resume it with --stage {name}, or accept it as it is with --stage {name} --max-steps "
                f"{step}."
            )
        if (best := chosen_step(store, part)) != step:
            step, tensors = best, store.read(best, ["model"])[0]  # the best checkpoint is the stage's result
        with tf.device(device):
            models[name] = XTTS(config.model, parts=(part,))
            assign_by_name(models[name].part_weights(part), tensors["model"], str(store.path(step)))
        lineage[name] = store.digest(step)
    if STAGES[stage].codes and not config.data.augment:
        for folder in filter(None, (config.data.prepared, config.data.val_prepared)):
            PreparedClips.open(folder).require_dvae(lineage["dvae"])
    return models, lineage

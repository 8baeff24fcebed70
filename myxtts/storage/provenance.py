"""Finds the checkpoint, settings and vocabulary of a run.

A checkpoint contains the settings and the vocabulary that it was trained with, under its checksums. They take
precedence over `config.json` and `vocab.json` in the run's folder.
"""

import logging
from dataclasses import replace
from pathlib import Path

from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import digest_file, read_json
from myxtts.storage.saved_state import config_of

logger = logging.getLogger(__name__)

VOCABULARY = "vocab.json"
MEL_STATS = "mel_stats"
"""Name of the tensor, and of its file in the GPT's checkpoint of a model without a DVAE."""
JUDGED = ("gpt", "decoder")
"""Parts that speak with their best checkpoint; other parts use the last one, on which the next stages were trained."""
TAKEN_FROM = "taken_from"
"""Key of a checkpoint's state: the folder that the weights were copied from."""
_CONFIG = "config.json"
_OF_OTHER_PARTS = "decoder_", "speaker_", "dropout"
"""Prefixes of model settings that the GPT does not depend on."""


def chosen_step(store: CheckpointStore, part: str, which: str = "best") -> int:
    """Returns the `best` or `last` step of a part in `JUDGED`, and the last step of other parts.

    `store` must have a checkpoint.
    """
    best = store.best_step() if which == "best" and part in JUDGED else None
    return store.steps()[-1] if best is None else best


def is_start(state: dict | None) -> bool:
    """Whether the state belongs to copied weights that a stage starts from, before any training."""
    return bool(state) and TAKEN_FROM in state and not state["finished"]


def read_config(folder: Path) -> XTTSConfig:
    """Reads the settings of a run, with the model shape that its GPT was trained with.

    Raises:
        CheckpointError: The settings are missing or invalid.
    """
    store, path = CheckpointStore(folder / "gpt"), folder / _CONFIG
    state = store.newest_state()
    own = None if state is None else config_of(state, str(store.folder))
    if own is not None and not path.exists():
        logger.warning("%s is missing: using the settings in the checkpoints of %s.", path, store.folder)
        return own
    config = config_from_dict(read_json(path))
    if own is None:  # from before checkpoints contained settings
        return config
    model = {name: value for name, value in vars(own.model).items() if not name.startswith(_OF_OTHER_PARTS)}
    beside = vars(config.model)
    if differing := [f"{name} {beside[name]} for {value}" for name, value in model.items() if beside[name] != value]:
        message = "%s describes another model (%s) than the checkpoints in %s, which are used."
        logger.warning(message, path, "; ".join(differing[:3]), store.folder)
    # The g2p setting belongs to the weights as well: it decides which letters or phonemes the ids mean.
    return replace(config, model=replace(config.model, **model), data=replace(config.data, g2p=own.data.g2p))


def vocabulary_path(folder: Path) -> Path:
    """Returns the vocabulary in the GPT's newest intact checkpoint, else the path of `vocab.json`."""
    store, beside = CheckpointStore(folder / "gpt"), folder / VOCABULARY
    for step in reversed(store.steps()):
        try:
            own = store.file(step, VOCABULARY)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        if own is None:  # from before checkpoints contained it
            break
        if not beside.is_file() or digest_file(beside) != digest_file(own):
            logger.warning("%s is not the vocabulary that the GPT was trained with: using %s.", beside, own)
        return own
    return beside

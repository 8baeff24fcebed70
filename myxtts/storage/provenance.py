"""Which checkpoint of a part of a model counts, and what its weights were made with.

A checkpoint says that under its checksums, and it counts where `config.json` or `vocab.json` beside it say otherwise.
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
"""Name of `mel_stats`, and of the file of the GPT's checkpoint that holds it when a model comes without a DVAE."""
JUDGED = ("gpt", "decoder")
"""Parts whose best checkpoint speaks; the others are built on as they were at the end."""
TAKEN_FROM = "taken_from"
"""Of a checkpoint's state: the folder that the weights were copied from."""
_CONFIG = "config.json"
_SPEAKER = "gpt"
"""The part whose checkpoint says it: it reads the text, and its shape is not all in its weights (attention heads)."""
_OF_OTHER_PARTS = "decoder_", "speaker_", "dropout"
"""How settings begin that belong to other parts, whose weights show them by their shapes, or to training alone."""


def chosen_step(store: CheckpointStore, part: str, which: str = "best") -> int:
    """Step of the checkpoint of a part that counts: the `best` or the `last` of what is `JUDGED`, else the last.

    `store` must have a checkpoint.
    """
    best = store.best_step() if which == "best" and part in JUDGED else None
    return store.steps()[-1] if best is None else best


def is_start(state: dict | None) -> bool:
    """Whether the state of a checkpoint is that of weights to start training from, with no training to continue."""
    return bool(state) and TAKEN_FROM in state and not state["finished"]


def read_config(folder: Path) -> XTTSConfig:
    """The settings of a run, with the model that its GPT was trained as.

    Raises:
        CheckpointError: There are none, or they cannot be read.
    """
    store, path = CheckpointStore(folder / _SPEAKER), folder / _CONFIG
    state = store.newest_state()
    own = None if state is None else config_of(state, str(store.folder))
    if own is not None and not path.exists():
        logger.warning("%s is not there: the settings of the checkpoints in %s count.", path, store.folder)
        return own
    config = config_from_dict(read_json(path))
    if own is None:  # written before checkpoints said it
        return config
    model = {name: value for name, value in vars(own.model).items() if not name.startswith(_OF_OTHER_PARTS)}
    beside = vars(config.model)
    if differing := [f"{name} {beside[name]} for {value}" for name, value in model.items() if beside[name] != value]:
        told = path, "; ".join(differing[:3]), store.folder
        logger.warning("%s describes another model (%s) than the checkpoints in %s are of: theirs counts.", *told)
    # How text is written belongs to the weights as well: other ids would mean the same letters.
    return replace(config, model=replace(config.model, **model), data=replace(config.data, g2p=own.data.g2p))


def vocabulary_path(folder: Path) -> Path:
    """The vocabulary of a run: the copy in its GPT's newest sound checkpoint, else `vocab.json`, be it there or not."""
    store, beside = CheckpointStore(folder / _SPEAKER), folder / VOCABULARY
    for step in reversed(store.steps()):
        try:
            own = store.file(step, VOCABULARY)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        if own is None:
            break  # written before checkpoints had it
        if not beside.is_file() or digest_file(beside) != digest_file(own):
            logger.warning("%s is not the vocabulary that the GPT was trained with: %s counts.", beside, own)
        return own
    return beside

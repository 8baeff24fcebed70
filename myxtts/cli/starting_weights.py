"""`--init-from`: a fresh run that starts from the weights of another run or of an imported checkpoint."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from myxtts.config.config import ConfigError
from myxtts.config.loading import config_from_dict
from myxtts.models.speakers import SPEAKERS_FILE
from myxtts.utils.checkpoint import CheckpointError, CheckpointStore, read_json

GROWING = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
"""Weights with a row (or a column) per text token."""


def adopt(config):
    """Takes shape, sampling settings, vocabulary, DVAE and decoder from `training.init_from` into a fresh run.

    Args:
        config: `XTTSConfig` with `training.init_from` set.

    Returns:
        The configuration with the source's model, sampling settings and, unless it names one, vocabulary.

    Raises:
        CheckpointError: The source lacks something.
        ConfigError: The run's folder is the source's.
    """
    source, home = Path(config.training.init_from), Path(config.training.checkpoint_dir)
    if source.resolve() == home.resolve():
        raise ConfigError("--checkpoint-dir must be another folder than --init-from, which is only read. "
                          f"Received: {home}.")
    if not source.is_dir():
        raise CheckpointError("--init-from must be the folder of a run or of `myxtts convert`. "
                              f"{source} is not a folder.")
    origin = config_from_dict(read_json(source / "config.json"))
    for part in ("dvae", "gpt"):
        if not CheckpointStore(source / part).steps():
            raise CheckpointError(f"--init-from needs a trained {part}, and {source} has none.")
    home.mkdir(parents=True, exist_ok=True)
    for part in ("dvae", "decoder"):
        _copy_newest(CheckpointStore(source / part), CheckpointStore(home / part))
    if (source / SPEAKERS_FILE).is_file():
        shutil.copy(source / SPEAKERS_FILE, home / SPEAKERS_FILE)
    model = dataclasses.replace(origin.model, dropout=config.model.dropout)
    data = config.data
    if data.vocabulary is None:
        data = dataclasses.replace(data, vocabulary=str(source / "vocab.json"))
    return dataclasses.replace(config, model=model, sampling=origin.sampling, data=data)


def _copy_newest(source, target):
    """The newest checkpoint of a part, marked finished so that `--stage all` does not train it again."""
    steps = source.steps()
    if not steps or target.steps():
        return
    folder = source.path(steps[-1])
    names = [file.stem for file in folder.glob("*.safetensors")]
    tensors, state = source.read(steps[-1], names)
    target.write(steps[-1], tensors, {**state, "finished": True})


def starting_weights(folder, num_text_tokens, seed):
    """GPT weights of a run, grown to `num_text_tokens`.

    New tokens get vectors drawn like the old ones (their standard deviation), and heads of zero weight with the lowest
    old bias: the logits of every old token stay what they were.

    Returns:
        `{weight name: array}`.
    """
    store = CheckpointStore(Path(folder) / "gpt")
    best, steps = store.best_step(), store.steps()
    arrays = store.read(best if best in steps else steps[-1], ("model",))[0]["model"]
    new = num_text_tokens - len(arrays["gpt/text_embedding"])
    if new < 0:
        raise CheckpointError(f"The vocabulary has {num_text_tokens} tokens and the GPT in {folder} knows "
                              f"{num_text_tokens - new}. Leave --vocabulary out to take the one that belongs to it.")
    if new:
        table, kernel, bias = (arrays[name] for name in GROWING)
        drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
        arrays["gpt/text_embedding"] = np.concatenate([table, drawn])
        arrays["gpt/text_head/kernel"] = np.concatenate([kernel, np.zeros((len(kernel), new), kernel.dtype)], axis=1)
        arrays["gpt/text_head/bias"] = np.concatenate([bias, np.full(new, bias.min(), bias.dtype)])
    return arrays

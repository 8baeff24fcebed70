"""`--init-from`: a fresh run that starts from the weights of another run or of an imported checkpoint."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from myxtts.config.checks import ConfigError
from myxtts.config.loading import config_from_dict
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, read_json
from myxtts.storage.files import write_whole
from myxtts.storage.speakers import SPEAKERS_FILE

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
        raise ConfigError(
            f"--checkpoint-dir must be another folder than --init-from, which is only read. Received: {home}."
        )
    if not source.is_dir():
        raise CheckpointError(
            f"--init-from must be the folder of a run or of `myxtts convert`. {source} is not a folder."
        )
    origin = config_from_dict(read_json(source / "config.json"))
    for part in ("dvae", "gpt"):
        store = CheckpointStore(source / part)
        if not store.steps():
            raise CheckpointError(f"--init-from needs a trained {part}, and {source} has none.")
        if part == "dvae" and not store.read_state(store.steps()[-1])["finished"]:
            raise CheckpointError(
                f"--init-from needs a DVAE that is trained to the end, and that in {source} is not. Train "
                f"it there with --stage dvae --checkpoint-dir {source}."
            )
    home.mkdir(parents=True, exist_ok=True)
    _refuse_other_dvae(source, home)
    for part in ("dvae", "decoder"):
        _copy_newest(CheckpointStore(source / part), CheckpointStore(home / part))
    if (source / SPEAKERS_FILE).is_file():
        with write_whole(home / SPEAKERS_FILE) as temporary:
            shutil.copyfile(source / SPEAKERS_FILE, temporary)
    model = dataclasses.replace(origin.model, dropout=config.model.dropout)
    data = config.data
    if data.vocabulary is None:
        data = dataclasses.replace(data, vocabulary=str(source / "vocab.json"))
    return dataclasses.replace(config, model=model, sampling=origin.sampling, data=data)


def adopted(config, home):
    """The configuration of a run that has begun with `adopt`, without its source: that may be gone by now."""
    own = config_from_dict(read_json(home / "config.json"))
    model = dataclasses.replace(own.model, dropout=config.model.dropout)
    return dataclasses.replace(config, model=model, sampling=own.sampling)


def _copy_newest(source, target):
    steps = source.steps()
    if not steps or target.steps():
        return
    folder = source.path(steps[-1])
    names = [file.stem for file in folder.glob("*.safetensors")]
    target.write(steps[-1], *source.read(steps[-1], names))


def _refuse_other_dvae(source, home):
    """The GPT of one run must not meet the codes of another run's DVAE."""
    stores = [CheckpointStore(folder / "dvae") for folder in (source, home)]
    if not stores[1].steps():
        return
    theirs, ours = (store.read(store.steps()[-1], ("model",))[0]["model"] for store in stores)
    if theirs.keys() != ours.keys() or not all(np.array_equal(theirs[name], ours[name]) for name in ours):
        raise CheckpointError(
            f"{home} holds a DVAE of its own, whose codes the GPT from --init-from does not know. Give "
            "another --checkpoint-dir."
        )


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
        raise CheckpointError(
            f"The vocabulary has {num_text_tokens} tokens and the GPT in {folder} knows "
            f"{num_text_tokens - new}. Leave --vocabulary out to take the one that belongs to it."
        )
    if new:
        table, kernel, bias = (arrays[name] for name in GROWING)
        drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
        arrays["gpt/text_embedding"] = np.concatenate([table, drawn])
        arrays["gpt/text_head/kernel"] = np.concatenate([kernel, np.zeros((len(kernel), new), kernel.dtype)], axis=1)
        arrays["gpt/text_head/bias"] = np.concatenate([bias, np.full(new, bias.min(), bias.dtype)])
    return arrays

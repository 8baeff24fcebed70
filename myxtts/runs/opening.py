"""How a run begins: resumed, from scratch, or from the weights of another run (`--init-from`)."""

import dataclasses
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.models.xtts import PARTS
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import read_json, write_json
from myxtts.storage.parts import FORMER_HOMES, TAKEN_FROM, copy_part, part_store, read_part
from myxtts.storage.run_folder import set_aside
from myxtts.storage.speakers import SPEAKERS_FILE
from myxtts.training.overtraining import has_stopped

logger = logging.getLogger(__name__)

GROWING = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
"""Weights with a row (or a column) per text token."""
RUN_FILES = ("config.json", "vocab.json", SPEAKERS_FILE, "samples", "tensorboard")
"""What a run has in its folder besides the folders of its parts, and is nothing without or for itself alone."""


def open_dataset(
    config: XTTSConfig, progress: Callable[[int, int], None] | None = None, on_set_aside: Callable | None = None
) -> SpeechDataset:
    """Reads the recordings of a run, sets aside what it is to replace, and writes its `config.json` and `vocab.json`.

    The result's `config` is that of the run: with its origin and vocabulary, and nothing left to reset.
    `progress(done, total)` is called while recordings are checked, `on_set_aside(stage, folder)` for each stage moved.

    Raises:
        UserError: The folder holds another run, --init-from lacks something, or the recordings cannot be used.
    """
    home = Path(config.training.checkpoint_dir)
    config = with_origin(config)
    is_adopted = bool(config.training.init_from) and not has_begun(config)
    if config.training.init_from:
        # A run that has begun does without its source, which may be gone by now.
        config = adopt(config) if is_adopted else _with_shape(config, _stored_config(home))
    dataset = SpeechDataset.open(config, progress)
    check_same_model(dataset.config)
    if config.training.reset_training:
        _set_aside(config, on_set_aside)
        dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    if is_adopted:
        _take_parts(config, home)
    for part in FORMER_HOMES:
        copy_part(home, home, part)  # a folder of its own, so that it can be built on and trained like the others
    dataset.tokenizer.save(home / "vocab.json")
    write_json(home / "config.json", dataset.config.to_dict())
    return dataset


def _kept_stages(training):
    """The stages that a reset does not concern: those before the one that is asked for."""
    names = list(STAGES)
    return [] if training.stage == "all" else names[: names.index(training.stage)]


def _set_aside(config, on_set_aside):
    """Moves the run in the folder out of the way as one, with the settings and the vocabulary that it needs."""
    home, kept = Path(config.training.checkpoint_dir), _kept_stages(config.training)
    if not holds_run(home):
        return
    moved = [name for name in dict.fromkeys((*STAGES, *PARTS)) if name not in kept]
    trained = [name for name in moved if name in STAGES and CheckpointStore(home / name).steps()]
    shared = [name for name in kept if (home / name).is_dir()]
    aside = set_aside(home, (*moved, *RUN_FILES), shared)
    for stage in trained if on_set_aside else ():
        on_set_aside(stage, aside / stage)


def newest_step(folder: Path, stage: str) -> int | None:
    """Step of a stage's newest sound checkpoint in the folder of a run, or None; damaged ones are set aside."""
    return CheckpointStore(folder / stage).newest_sound(logger.warning)


def finished(config: XTTSConfig, stage: str, step: int | None) -> bool:
    """Whether a stage whose newest checkpoint is of this step has nothing left to train."""
    if step is None:
        return False
    state, training = CheckpointStore(Path(config.training.checkpoint_dir) / stage).read_state(step), config.training
    detector, asked = state.get("parts", {}).get("overtraining"), training.stages[stage].max_steps
    ended = detector is not None and has_stopped(detector, training.overtraining_patience)
    # Weights of another run, or of a stage that had nothing to learn: there is no step to go on from.
    given = step == 0 or TAKEN_FROM in state
    return state["finished"] and (asked is None or step >= asked or ended or given)


def tuned_stages(config: XTTSConfig) -> list[str]:
    """The stages that train on from the weights of `--init-from`: the one asked for if it can, else those of `all`."""
    kinds = {name: entry.load() for name, entry in STAGES.items()}
    asked = kinds.get(config.training.stage)
    if asked is not None and asked.takes_init_from:
        return [config.training.stage]
    return [name for name, kind in kinds.items() if kind.takes_init_from and kind.tuned_with_all]


def has_begun(config: XTTSConfig) -> bool:
    """Whether a stage that starts from `--init-from` has begun in the run's folder, and is to be resumed."""
    home = Path(config.training.checkpoint_dir)
    begun = (CheckpointStore(home / name).steps() for name in tuned_stages(config))
    return not config.training.reset_training and any(begun)


def with_origin(config: XTTSConfig) -> XTTSConfig:
    """The configuration with the full path of the run it began from, if any, be it asked for now or in the past.

    Raises:
        ConfigError: The folder holds a run that began otherwise, so that --init-from would be passed over.
    """
    home = Path(config.training.checkpoint_dir)
    asked = config.training.init_from and str(Path(config.training.init_from).resolve())
    for name in tuned_stages(config) if has_begun(config) else ():
        if (step := newest_step(home, name)) is None:
            continue
        state = CheckpointStore(home / name).read_state(step)
        if "position" not in state:
            held = f"{home} holds weights without a run, as `myxtts convert` writes them"
            way_out = f"Start from them with --init-from {home} and another --checkpoint-dir."
            raise ConfigError(f"--checkpoint-dir must be a folder of its own. {held}. {way_out}")
        before = state["config"]["training"]["init_from"]
        if asked not in (None, before):
            held = f"{home} holds one that began from {before or 'scratch'} and is at step {step}"
            way_out = "Leave --init-from out to resume it, give another --checkpoint-dir"
            raise ConfigError(
                f"--init-from starts a fresh run, and {held}. {way_out}, or --reset-training to start anew."
            )
        asked = before
    return replace(config, training=replace(config.training, init_from=asked))


def check_same_model(config: XTTSConfig):
    """Raises `ConfigError` where the folder holds a run of another model, whose `config.json` must stay."""
    home = Path(config.training.checkpoint_dir)
    if config.training.reset_training or not holds_run(home) or not (home / "config.json").is_file():
        return
    before, now = (dataclasses.asdict(model) for model in (_stored_config(home).model, config.model))
    free = {"dropout"}
    if not part_store(home, "decoder").steps():
        free.add("decoder_type")  # not made yet
    differing = [name for name in now if before[name] != now[name] and name not in free]
    if differing:
        told = "; ".join(f"{name} {before[name]} there, {now[name]} here" for name in differing[:3])
        way_out = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training to start anew."
        raise ConfigError(f"{home} holds a run of another model: {told}. {way_out}")


def _stored_config(folder):
    return config_from_dict(read_json(folder / "config.json"))


def adopt(config: XTTSConfig) -> XTTSConfig:
    """The configuration with the model, sampling settings and, unless it names one, vocabulary of `training.init_from`.

    Raises:
        CheckpointError: The source lacks something.
        ConfigError: The run's folder is the source's.
    """
    source, home = Path(config.training.init_from), Path(config.training.checkpoint_dir)
    if source.resolve() == home.resolve():
        rule = "must not be the folder of --init-from, which is only read"
        raise ConfigError(f"--checkpoint-dir {rule}. Received: {home}.")
    if not source.is_dir():
        rule = "must be the folder of a run or of `myxtts convert`"
        raise CheckpointError(f"--init-from {rule}. {source} is not a folder.")
    stored, tuned = _stored_config(source), tuned_stages(config)
    foundations = dict.fromkeys(name for stage in tuned for name in STAGES[stage].builds_on if name not in tuned)
    for name in (*foundations, *tuned):
        _require_trained(source, name, finished=name in foundations)
    for name in foundations:
        if not config.training.reset_training or name in _kept_stages(config.training):
            _refuse_other_weights(source, home, name)
    data = replace(config.data, vocabulary=config.data.vocabulary or str(source / "vocab.json"))
    return replace(_with_shape(config, stored), data=data)


def _take_parts(config, home):
    """Copies finished parts and voices of the run that a fresh one begins from."""
    source, tuned = Path(config.training.init_from), tuned_stages(config)
    for name in dict.fromkeys((*STAGES, *PARTS)):
        if name not in tuned:
            copy_part(source, home, name)
    if (source / SPEAKERS_FILE).is_file():
        shutil.copy(source / SPEAKERS_FILE, home / SPEAKERS_FILE)


def _with_shape(config, stored):
    return replace(config, model=replace(stored.model, dropout=config.model.dropout), sampling=stored.sampling)


def _require_trained(source, name, finished):
    store = part_store(source, name)
    if not store.steps():
        raise CheckpointError(f"--init-from needs a trained {name}, and {source} has none.")
    if finished and not store.read_state(store.steps()[-1])["finished"]:
        needed = f"--init-from needs a {name} that is trained to the end, and the one in {source} is not"
        raise CheckpointError(f"{needed}. Train it there with --stage {name} --checkpoint-dir {source}.")


def _refuse_other_weights(source, home, name):
    """What one run builds on must not be that of another: the codes of another DVAE are another language."""
    stores = [part_store(folder, name) for folder in (source, home)]
    if not all(store.steps() for store in stores):
        return
    theirs, ours = (read_part(store, store.steps()[-1], part=name)[0]["model"] for store in stores)
    if theirs.keys() != ours.keys() or not all(np.array_equal(theirs[key], ours[key]) for key in ours):
        other = f"{home} holds a {name} of its own, which the weights from --init-from do not know"
        raise CheckpointError(f"{other}. Give another --checkpoint-dir.")


def starting_weights(folder: str, stage: str, num_text_tokens: int, seed: int) -> dict[str, np.ndarray]:
    """The best weights of a stage of another run by name, grown to `num_text_tokens`.

    New tokens get vectors drawn like the old ones (their standard deviation), and heads of zero weight with the lowest
    old bias: the logits of every old token stay what they were.

    Raises:
        CheckpointError: The other run knows more tokens than that.
    """
    store = part_store(folder, stage)
    best = store.best_step()
    arrays = read_part(store, store.steps()[-1] if best is None else best, part=stage)[0]["model"]
    if GROWING[0] not in arrays:
        return arrays
    new = num_text_tokens - len(arrays[GROWING[0]])
    if new < 0:
        known = f"the {stage} in {folder} knows {num_text_tokens - new}"
        way_out = "Leave --vocabulary out to take the one that belongs to it."
        raise CheckpointError(f"The vocabulary has {num_text_tokens} tokens and {known}. {way_out}")
    if new:
        table, kernel, bias = (arrays[name] for name in GROWING)
        drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
        kernel = np.pad(kernel, ((0, 0), (0, new)))
        bias = np.pad(bias, (0, new), constant_values=bias.min())
        arrays |= dict(zip(GROWING, (np.concatenate([table, drawn]), kernel, bias)))
    return arrays

"""What a run starts from, settled once, when its folder is created: weights of another run, stages to tune, adapters.

Weights come in as the checkpoint of step 0 of each stage; from then on the run only continues.
"""

import dataclasses
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config.checks import ConfigError, require
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE, TrainingConfig
from myxtts.interchange.hub.fetching import full_name, local_folder
from myxtts.memory.claims import check_claims
from myxtts.models.xtts import PARTS
from myxtts.runs.setup import holds_run, require_source
from myxtts.storage.base_model import is_base, require_model_folder
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import write_whole
from myxtts.storage.provenance import MEL_STATS, TAKEN_FROM, chosen_step, read_config, vocabulary_path
from myxtts.storage.speakers import SPEAKERS_FILE, copy_speaker_clips
from myxtts.text.g2p import ESPEAK
from myxtts.training.stages.classes import STAGE_CLASSES

logger = logging.getLogger(__name__)

ALL_PARTS = tuple(dict.fromkeys((*STAGES, *PARTS)))
"""Folders of checkpoints that a run may have."""


def settle_origin(config: XTTSConfig) -> tuple[XTTSConfig, XTTSConfig | None]:
    """What the run starts from: what is asked for, or what the run in the folder began with.

    Returns:
        The configuration with it; and the settings of the run that is continued, None for one that is created.

    Raises:
        UserError: Something else is asked for than the run in the folder began with; or a source lacks something.
    """
    training = config.training
    tune = tuple(name for name in TUNABLE if name in training.tune)
    _check_tuned(training, tune)
    source = training.init_from and full_name(training.init_from)
    config = replace(config, training=replace(training, tune=tune, init_from=source))
    began = None if training.reset_training else run_in(Path(training.checkpoint_dir))
    return (_created(config) if began is None else _continued(config, began)), began


def run_in(folder: Path) -> XTTSConfig | None:
    """The settings of the run in a folder; None if it holds no run or none with settings."""
    known = (folder / "config.json").is_file() or "config" in (CheckpointStore(folder / "gpt").newest_state() or {})
    return read_config(folder) if known and holds_run(folder) else None


def reset_parts(training: TrainingConfig) -> list[str]:
    """The parts that `reset_training` starts over: all, or those from the stage that is asked for on."""
    if not training.reset_training:
        return []
    kept = [] if training.stage == "all" else list(STAGES)[: list(STAGES).index(training.stage)]
    return [name for name in ALL_PARTS if name not in kept]


def tuned_stages(config: XTTSConfig) -> list[str]:
    """The stages that train on from the weights of `--init-from`: the one asked for if it can, else those of `all`."""
    training = config.training
    if training.tune:
        return [name for name in STAGES if name in training.tune]
    if training.stage != "all" and STAGE_CLASSES[training.stage].takes_init_from:
        return [training.stage]
    return [name for name, kind in STAGE_CLASSES.items() if kind.takes_init_from and kind.tuned_with_all]


def taken_parts(config: XTTSConfig) -> list[str]:
    """The parts that a run that is created takes from its source as they are."""
    reset, home, source = reset_parts(config.training), Path(config.training.checkpoint_dir), _source(config)
    own = [name for name in ALL_PARTS if name not in reset and CheckpointStore(home / name).steps()]
    other = [name for name in ALL_PARTS if name not in (*tuned_stages(config), *own)]
    return [name for name in other if CheckpointStore(source / name).steps()]


def bring_in(config: XTTSConfig, created: bool) -> None:
    """Writes step 0 of each stage that begins with the weights of `training.init_from` and has no checkpoint.

    A run that is `created` takes its finished parts and its voices as well.

    Args:
        config: With the vocabulary settled.

    Raises:
        CheckpointError: The source is gone or lacks something.
    """
    home, training = Path(config.training.checkpoint_dir), config.training
    tuned = [name for name in tuned_stages(config) if name not in training.leave_out]
    taken = taken_parts(config) if created else []
    for name in [name for name in (*taken, *tuned) if not CheckpointStore(home / name).steps()]:
        source = _source(config)
        store = _trained_part(source, name)
        step = chosen_step(store, name)
        has_stats = (store.path(step) / f"{MEL_STATS}.safetensors").is_file()
        tensors, state = store.read(step, ("model", MEL_STATS) if has_stats else ("model",))
        if name in tuned:
            tensors["model"] = with_rows(tensors["model"], name, config.model.num_text_tokens, training.seed)
            state = {"finished": False}
        CheckpointStore(home / name).write(0, tensors, {**state, TAKEN_FROM: str(source)}, best=name in taken)
    if created:
        source = _source(config)
        if (source / SPEAKERS_FILE).is_file():
            with write_whole(home / SPEAKERS_FILE) as temporary:
                shutil.copyfile(source / SPEAKERS_FILE, temporary)
        copy_speaker_clips(source, home)


def with_rows(arrays: dict[str, np.ndarray], stage: str, num_text_tokens: int, seed: int) -> dict[str, np.ndarray]:
    """Weights of a stage by name, grown to `num_text_tokens` where they have a row (or column) per text token.

    New tokens get vectors drawn like the old ones (their standard deviation), and heads of zero weight with the lowest
    old bias: the logits of every old token stay what they were.

    Raises:
        CheckpointError: They know more tokens than that.
    """
    growing = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
    if growing[0] not in arrays:
        return arrays
    table, kernel, bias = (arrays[name] for name in growing)
    if (new := num_text_tokens - len(table)) < 0:
        known = f"The vocabulary has {num_text_tokens} tokens and the {stage} of --init-from knows {len(table)}"
        raise CheckpointError(f"{known}. Leave --vocabulary out to take the one that belongs to it.")
    drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
    grown = (
        np.concatenate([table, drawn]),
        np.pad(kernel, ((0, 0), (0, new))),
        np.pad(bias, (0, new), constant_values=bias.min()),
    )
    return arrays | dict(zip(growing, grown))


def _check_tuned(training, tune):
    """Raises `ConfigError` where the stages to tune contradict other options."""
    fault = ""
    if "dvae" in tune and tune != TUNABLE:
        fault = f"gpt and decoder depend on the dvae as it is. Name all: --tune {','.join(TUNABLE)}"
    elif tune and training.stage not in ("all", *tune):
        fault = f"--stage {training.stage} is not among them. Name it, too, or leave --stage out"
    elif tune and training.gpt.lora_rank and "gpt" not in tune:
        fault = "--lora-rank trains adapters of the gpt. Name it, too, or leave --lora-rank out"
    if fault:
        raise ConfigError(f"training.tune (--tune) is {','.join(tune)}, and {fault}.")


def _continued(config, began):
    """The configuration with what the run in the folder began with; raises `ConfigError` where another is asked for."""
    training, before, home = config.training, began.training, Path(config.training.checkpoint_dir)
    for name in tuned_stages(replace(config, training=replace(training, tune=before.tune))):
        state = CheckpointStore(home / name).newest_state()
        if state is not None and "position" not in state and TAKEN_FROM not in state:
            rule = f"--checkpoint-dir must be a folder of its own. {home} holds weights without a run"
            raise ConfigError(f"{rule}. Start from them with --init-from {home} and another --checkpoint-dir.")
    source = training.init_from
    if source not in (None, before.init_from):
        require_source(source)
    settled = {
        "training.init_from (--init-from)": (source, before.init_from),
        "training.tune (--tune)": (",".join(training.tune), ",".join(before.tune)),
        "training.gpt.lora_rank (--lora-rank)": (training.gpt.lora_rank, before.gpt.lora_rank),
    }
    for name, (asked, own) in settled.items():
        if asked and asked != own:
            rule = f"{name} is settled when a run is created, and {home} holds one that began with {own or 'none'}"
            hint = "Leave it out to resume that, give another --checkpoint-dir, or --reset-training to start over."
            raise ConfigError(f"{rule}. {hint}")
    config = replace(config, training=replace(training, init_from=before.init_from, tune=before.tune))
    if not training.gpt.lora_rank:
        adapters = ("lora_rank", "lora_alpha", "lora_targets", "lora_dropout")
        config.training.gpt = replace(training.gpt, **{name: getattr(before.gpt, name) for name in adapters})
    return _with_shape(config, began) if before.init_from else config


def _created(config):
    """The configuration of a run that is created, with what it takes over from its source, if it has one."""
    training, rank = config.training, config.training.gpt.lora_rank
    if training.init_from:
        if not training.tune and is_base(training.init_from) and training.stage == "all" and not rank:
            config = replace(config, training=replace(training, tune=TUNABLE))
        return adopt(config)
    rule = "0 without --init-from (training.init_from): adapters alone cannot learn what random weights lack"
    require(not rank, "training.gpt.lora_rank (--lora-rank)", rule, rank, "Add --init-from FOLDER.")
    if training.tune:
        rule = "training.tune (--tune) names stages that train on from the weights of --init-from, and there is none"
        raise ConfigError(f"{rule}. Add --init-from FOLDER, or leave --tune out.")
    return config


def adopt(config: XTTSConfig) -> XTTSConfig:
    """The configuration with the model, sampling settings and, unless it names one, vocabulary of `training.init_from`.

    Raises:
        CheckpointError: The source lacks something.
        ConfigError: The run's folder is the source's.
    """
    source, home, data = _source(config), Path(config.training.checkpoint_dir), config.data
    if source.resolve() == home.resolve():
        raise ConfigError(f"--checkpoint-dir must not be the folder of --init-from, which is only read: {home}.")
    require_model_folder(source, "--init-from")
    stored = read_config(source)
    tuned = [name for name in tuned_stages(config) if name not in config.training.leave_out]
    foundations = dict.fromkeys(name for stage in tuned for name in STAGES[stage].builds_on if name not in tuned)
    for name in (*foundations, *tuned):
        store = _trained_part(source, name)
        if name in foundations and not store.read_state(store.steps()[-1])["finished"]:
            needed = f"--init-from needs a {name} that is trained to the end, and the one in {source} is not"
            raise CheckpointError(f"{needed}. Train it there with --stage {name} --checkpoint-dir {source}.")
    stores = {name: CheckpointStore(source / name) for name in ALL_PARTS}
    check_claims(stored.model, {name: store for name, store in stores.items() if store.steps()})
    for name in foundations:
        if name not in reset_parts(config.training):
            _refuse_other_weights(source, home, name)
    reads, asked = stored.data.g2p, data.g2p
    if asked is not None and ESPEAK in (reads or ()) and ESPEAK not in asked:
        rule = f"{config.training.init_from} reads text as it sounds (--g2p {' '.join(reads)}), not as letters"
        raise ConfigError(f"{rule}. Received: --g2p {' '.join(asked) or 'none'}. Leave --g2p out.")
    vocabulary = data.vocabulary or str(vocabulary_path(source))
    data = replace(data, vocabulary=vocabulary, g2p=reads if asked is None else asked)
    return _with_shape(replace(config, data=data), stored)


def _source(config):
    """The folder of `training.init_from`, fetched if it is a model of the hub."""
    return local_folder(config.training.init_from, config.training.accept_licence)


def _with_shape(config, stored):
    """The configuration with another's model, and limits of clips lowered, where they are defaults, to what it reads.

    Limits that were asked for stay, and are refused if the model cannot keep them.
    """
    model, data = replace(stored.model, dropout=config.model.dropout), config.data
    # The base is sampled coldly, for clear synthetic speech; a voice that is learned from minutes repeats itself so.
    sampling = config.sampling if is_base(config.training.init_from) else stored.sampling
    tenths = (model.max_codes * CODE_STRIDE_SAMPLES - 1) // (MODEL_SAMPLE_RATE // 10)
    most = {"max_text_length": model.max_text_tokens, "max_seconds": tenths / 10}
    if data.max_mel_frames is not None:
        del most["max_seconds"]  # the frames are the limit
    defaults = {one.name: one.default for one in dataclasses.fields(data)}
    lower = {name: value for name, value in most.items() if getattr(data, name) == defaults[name] > value}
    for name, value in lower.items():
        message = "data.%s is %s instead of %s, its default: the model reads no more. What is longer is left out."
        logger.warning(message, name, value, defaults[name])
    return replace(config, model=model, data=replace(data, **lower), sampling=sampling)


def _trained_part(source, name):
    """The checkpoints of a part that a run starts from."""
    store = CheckpointStore(source / name)
    if not store.steps():
        raise CheckpointError(f"--init-from needs a trained {name}, and {source} has none.")
    return store


def _refuse_other_weights(source, home, name):
    """What one run builds on must not be that of another: the codes of another DVAE are another language."""
    stores = [CheckpointStore(folder / name) for folder in (source, home)]
    if not all(store.steps() for store in stores):
        return
    theirs, ours = (store.read(store.steps()[-1], ["model"])[0]["model"] for store in stores)
    if theirs.keys() != ours.keys() or not all(np.array_equal(theirs[key], ours[key]) for key in ours):
        other = f"{home} holds a {name} of its own, which the weights from --init-from do not know"
        raise CheckpointError(f"{other}. Give another --checkpoint-dir.")

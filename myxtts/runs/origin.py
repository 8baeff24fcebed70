"""What a run starts from, settled once, when its folder is created: weights of another run, stages to tune, adapters.

Weights come in as the checkpoint of step 0 of each stage; from then on it is a run that only continues.
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
from myxtts.config.training import TUNABLE
from myxtts.interchange.hub.fetching import full_name, is_hub_name, local_folder
from myxtts.memory.claims import check_claims
from myxtts.models.xtts import PARTS
from myxtts.runs.setup import holds_run
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
GROWING = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
"""Weights with a row (or a column) per text token."""
ADAPTERS = ("lora_rank", "lora_alpha", "lora_targets", "lora_dropout")
"""Settings that belong to the adapters of a run."""


def run_in(folder: Path) -> XTTSConfig | None:
    """The settings of the run in a folder; None where there is none, or nothing says them."""
    says = (folder / "config.json").is_file() or "config" in (CheckpointStore(folder / "gpt").newest_state() or {})
    return read_config(folder) if says and holds_run(folder) else None


def settle_origin(config: XTTSConfig) -> tuple[XTTSConfig, XTTSConfig | None]:
    """What the run starts from: what is asked for, or what the run in the folder began with.

    Returns:
        The configuration with it; and the settings of the run that is continued, None for one that is created.

    Raises:
        UserError: Something else is asked for than the run in the folder began with; or a source lacks something.
    """
    training, home = config.training, Path(config.training.checkpoint_dir)
    tune = tuple(name for name in TUNABLE if name in training.tune)
    _check_tuned(training, tune)
    asked = training.init_from and full_name(training.init_from)
    config = replace(config, training=replace(training, tune=tune, init_from=asked))
    began = None if training.reset_training else run_in(home)
    return (_created(config) if began is None else _continued(config, began, home)), began


def tuned_stages(config: XTTSConfig) -> list[str]:
    """The stages that train on from the weights of `--init-from`: the one asked for if it can, else those of `all`."""
    if config.training.tune:
        return [name for name in STAGES if name in config.training.tune]
    kinds = STAGE_CLASSES
    asked = kinds.get(config.training.stage)
    if asked is not None and asked.takes_init_from:
        return [config.training.stage]
    return [name for name, kind in kinds.items() if kind.takes_init_from and kind.tuned_with_all]


def taken_parts(config: XTTSConfig) -> list[str]:
    """The parts that a run that is created takes from its source as they are."""
    tuned, home = tuned_stages(config), Path(config.training.checkpoint_dir)
    kept = kept_stages(config.training) if config.training.reset_training else ALL_PARTS
    own = [name for name in kept if CheckpointStore(home / name).steps()]
    source = _source(config)
    return [name for name in ALL_PARTS if name not in (*tuned, *own) and CheckpointStore(source / name).steps()]


def kept_stages(training) -> list[str]:
    """The stages that a reset does not concern: those before the one that is asked for."""
    names = list(STAGES)
    return [] if training.stage == "all" else names[: names.index(training.stage)]


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
    missing = [name for name in (*taken, *tuned) if not CheckpointStore(home / name).steps()]
    for name in missing:
        source = _source(config)
        if not (store := CheckpointStore(source / name)).steps():
            raise CheckpointError(f"--init-from needs a trained {name}, and {source} has none.")
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
    """Weights of a stage by name, grown to `num_text_tokens` where they have a row per text token.

    New tokens get vectors drawn like the old ones (their standard deviation), and heads of zero weight with the lowest
    old bias: the logits of every old token stay what they were.

    Raises:
        CheckpointError: They know more tokens than that.
    """
    if GROWING[0] not in arrays:
        return arrays
    new = num_text_tokens - len(arrays[GROWING[0]])
    if new < 0:
        known = f"the {stage} of --init-from knows {num_text_tokens - new}"
        way_out = "Leave --vocabulary out to take the one that belongs to it."
        raise CheckpointError(f"The vocabulary has {num_text_tokens} tokens and {known}. {way_out}")
    if new == 0:
        return arrays
    table, kernel, bias = (arrays[name] for name in GROWING)
    drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
    kernel = np.pad(kernel, ((0, 0), (0, new)))
    bias = np.pad(bias, (0, new), constant_values=bias.min())
    return arrays | dict(zip(GROWING, (np.concatenate([table, drawn]), kernel, bias)))


def _check_tuned(training, tune):
    """Raises `ConfigError` where the stages to tune contradict other options."""
    way_out = None
    if "dvae" in tune and tune != TUNABLE:
        way_out = f"gpt and decoder depend on the dvae as it is. Name all: --tune {','.join(TUNABLE)}"
    elif tune and training.stage not in ("all", *tune):
        way_out = f"--stage {training.stage} is not among them. Name it, too, or leave --stage out"
    elif tune and training.gpt.lora_rank and "gpt" not in tune:
        way_out = "--lora-rank trains adapters of the gpt. Name it, too, or leave --lora-rank out"
    if way_out:
        raise ConfigError(f"training.tune (--tune) is {','.join(tune)}, and {way_out}.")


def _continued(config, began, home):
    """The configuration with what the run in the folder began with; raises `ConfigError` where another is asked for."""
    training, before = config.training, began.training
    for name in tuned_stages(replace(config, training=replace(training, tune=before.tune))):
        state = CheckpointStore(home / name).newest_state()
        if state is not None and "position" not in state and TAKEN_FROM not in state:
            rule = f"--checkpoint-dir must be a folder of its own. {home} holds weights without a run"
            raise ConfigError(f"{rule}. Start from them with --init-from {home} and another --checkpoint-dir.")
    if training.init_from not in (None, before.init_from) and not _is_elsewhere(training.init_from):
        require_model_folder(training.init_from, "--init-from")
    settled = {
        "training.init_from (--init-from)": (training.init_from, before.init_from),
        "training.tune (--tune)": (training.tune, before.tune),
        "training.gpt.lora_rank (--lora-rank)": (training.gpt.lora_rank, before.gpt.lora_rank),
    }
    for name, (asked, own) in settled.items():
        if asked and asked != own:
            shown = ",".join(own) if isinstance(own, tuple) else own
            rule = f"{name} is settled when a run is created"
            way_out = "Leave it out to resume that, give another --checkpoint-dir, or --reset-training to start anew."
            raise ConfigError(f"{rule}, and {home} holds one that began with {shown or 'none'}. {way_out}")
    adapters = {} if training.gpt.lora_rank else {name: getattr(before.gpt, name) for name in ADAPTERS}
    config = replace(config, training=replace(training, init_from=before.init_from, tune=before.tune))
    config.training.gpt = replace(training.gpt, **adapters)
    return _with_shape(config, began) if before.init_from else config


def _created(config):
    """The configuration of a run that is created, with what it takes over from its source, if it has one."""
    training = config.training
    needs_origin, way_out = training.gpt.lora_rank and not training.init_from, "Add --init-from FOLDER."
    rule = "0 without --init-from (training.init_from): adapters alone cannot learn what random weights lack"
    require(not needs_origin, "training.gpt.lora_rank (--lora-rank)", rule, training.gpt.lora_rank, way_out)
    if training.tune and not training.init_from:
        rule = "training.tune (--tune) names stages that train on from the weights of --init-from, and there is none"
        raise ConfigError(f"{rule}. Add --init-from FOLDER, or leave --tune out.")
    if not training.init_from:
        return config
    if not training.tune and is_base(training.init_from) and training.stage == "all" and not training.gpt.lora_rank:
        config = replace(config, training=replace(training, tune=TUNABLE))
    return adopt(config)


def adopt(config: XTTSConfig) -> XTTSConfig:
    """The configuration with the model, sampling settings and, unless it names one, vocabulary of `training.init_from`.

    Raises:
        CheckpointError: The source lacks something.
        ConfigError: The run's folder is the source's.
    """
    source, home = _source(config), Path(config.training.checkpoint_dir)
    if source.resolve() == home.resolve():
        rule = "must not be the folder of --init-from, which is only read"
        raise ConfigError(f"--checkpoint-dir {rule}. Received: {home}.")
    require_model_folder(source, "--init-from")
    stored = read_config(source)
    tuned = [name for name in tuned_stages(config) if name not in config.training.leave_out]
    foundations = dict.fromkeys(name for stage in tuned for name in STAGES[stage].builds_on if name not in tuned)
    for name in (*foundations, *tuned):
        _require_trained(source, name, finished=name in foundations)
    stores = {name: CheckpointStore(source / name) for name in ALL_PARTS}
    check_claims(stored.model, {name: store for name, store in stores.items() if store.steps()})
    for name in foundations:
        if not config.training.reset_training or name in kept_stages(config.training):
            _refuse_other_weights(source, home, name)
    config = _with_shape(config, stored)
    data = replace(config.data, vocabulary=config.data.vocabulary or str(vocabulary_path(source)))
    reads = stored.data.g2p
    if data.g2p is not None and ESPEAK in (reads or ()) and ESPEAK not in data.g2p:
        rule = (
            f"{config.training.init_from} reads text as it sounds (--g2p {' '.join(reads)}); letters mean nothing to it"
        )
        raise ConfigError(f"{rule}. Received: --g2p {' '.join(data.g2p) or 'none'}. Leave --g2p out.")
    return replace(config, data=replace(data, g2p=reads if data.g2p is None else data.g2p))


def _source(config):
    """The folder of `training.init_from`, fetched if it is a model of the hub."""
    return local_folder(config.training.init_from, config.training.accept_licence)


def _is_elsewhere(source):
    return is_hub_name(source) or is_base(source)


def _with_shape(config, stored):
    model = replace(stored.model, dropout=config.model.dropout)
    # The base is sampled coldly, for clear synthetic speech; a voice that is learned from minutes repeats itself so.
    sampling = config.sampling if is_base(config.training.init_from) else stored.sampling
    return replace(config, model=model, data=_within(config.data, model), sampling=sampling)


def _within(data, model):
    """Settings of clips whose defaults are lowered to what a model reads; what was asked for is left as it is."""
    most_samples, tenth = model.max_codes * CODE_STRIDE_SAMPLES - 1, MODEL_SAMPLE_RATE // 10
    most = {"max_text_length": model.max_text_tokens, "max_seconds": most_samples // tenth / 10}
    if data.max_mel_frames is not None:
        del most["max_seconds"]  # the frames are the limit
    defaults = {one.name: one.default for one in dataclasses.fields(data)}
    lower = {name: value for name, value in most.items() if getattr(data, name) == defaults[name] > value}
    for name, value in lower.items():
        told = "data.%s is %s instead of %s, its default: the model reads no more. What is longer is left out."
        logger.warning(told, name, value, defaults[name])
    return replace(data, **lower)


def _require_trained(source, name, finished):
    store = CheckpointStore(source / name)
    if not store.steps():
        raise CheckpointError(f"--init-from needs a trained {name}, and {source} has none.")
    if finished and not store.read_state(store.steps()[-1])["finished"]:
        needed = f"--init-from needs a {name} that is trained to the end, and the one in {source} is not"
        raise CheckpointError(f"{needed}. Train it there with --stage {name} --checkpoint-dir {source}.")


def _refuse_other_weights(source, home, name):
    """What one run builds on must not be that of another: the codes of another DVAE are another language."""
    stores = [CheckpointStore(folder / name) for folder in (source, home)]
    if not all(store.steps() for store in stores):
        return
    theirs, ours = (store.read(store.steps()[-1], ["model"])[0]["model"] for store in stores)
    if theirs.keys() != ours.keys() or not all(np.array_equal(theirs[key], ours[key]) for key in ours):
        other = f"{home} holds a {name} of its own, which the weights from --init-from do not know"
        raise CheckpointError(f"{other}. Give another --checkpoint-dir.")

"""How a run begins: resumed, from scratch, or from the weights of another run (`--init-from`)."""

import dataclasses
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config.checks import ConfigError, require
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.loading import config_from_dict
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE
from myxtts.data.dataset import SpeechDataset
from myxtts.data.speaker_clips import keep_speakers
from myxtts.distributed.workers import Workers
from myxtts.interchange.hub.fetching import full_name, is_hub_name, local_folder
from myxtts.memory.claims import check_claims
from myxtts.models.xtts import PARTS
from myxtts.runs.agenda import Agenda, make_agenda, tuned_stages
from myxtts.runs.setup import holds_run
from myxtts.storage.base_model import is_base, require_model_folder
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import digest_file, write_json, write_whole
from myxtts.storage.parts import FORMER_HOMES, copy_part, part_store, read_part
from myxtts.storage.provenance import VOCABULARY, read_config, vocabulary_path
from myxtts.storage.run_folder import RUN_FILES, set_aside
from myxtts.storage.saved_state import config_of
from myxtts.storage.speakers import SPEAKERS_FILE, copy_speaker_clips
from myxtts.training.resuming.state import data_digest

logger = logging.getLogger(__name__)

GROWING = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
"""Weights with a row (or a column) per text token."""


def open_run(
    config: XTTSConfig,
    progress: Callable[[int, int], None] | None = None,
    on_agenda: Callable | None = None,
    on_set_aside: Callable | None = None,
) -> tuple[SpeechDataset, Agenda]:
    """Reads the recordings of a run, sets aside what it is to replace, and writes its `config.json` and `vocab.json`.

    Args:
        config: As asked for.
        progress: Called as `progress(done, total)` while recordings are checked.
        on_agenda: Called with the `Agenda`, before anything is moved or written.
        on_set_aside: Called as `on_set_aside(stage, folder)` for each stage moved.

    Returns:
        The recordings, whose `config` is that of the run: with its origin and vocabulary, and nothing left to reset;
        and what is to be done.

    Raises:
        UserError: The folder holds another run, --init-from lacks something, the recordings cannot be used, or what is
            asked for would make useless what is there.
    """
    home = Path(config.training.checkpoint_dir)
    config = with_origin(config)
    needs_origin, way_out = config.training.lora_rank and not config.training.init_from, "Add --init-from FOLDER."
    rule = "0 without --init-from (training.init_from): adapters alone cannot learn what random weights lack"
    require(not needs_origin, "training.lora_rank (--lora-rank)", rule, config.training.lora_rank, way_out)
    is_adopted = bool(config.training.init_from) and not has_begun(config)
    if config.training.init_from:
        # A run that has begun does without its source, which may be gone by now.
        config = adopt(config) if is_adopted else _with_shape(config, read_config(home))
    dataset = SpeechDataset.open(config, progress)
    check_same_model(dataset.config)
    training = config.training
    reset = [name for name in STAGES if name not in _kept_stages(training)] if training.reset_training else ()
    agenda = make_agenda(dataset.config, dataset, reset, _source(config) if is_adopted else None)
    if on_agenda:
        on_agenda(agenda)
    shards = config.data.prepared or config.data.val_prepared
    uses_codes = shards and not config.data.augment
    if uses_codes and any(work.stage == "dvae" and work.trains for work in agenda.works):
        holds = f"--prepared {shards} holds the codes of a trained DVAE, and this run is to train its own"
        way_out = "Train that first, then run `myxtts prepare --checkpoint` on it; or name that run in --checkpoint-dir"
        raise ConfigError(f"{holds}. {way_out} or --init-from.")
    if config.training.reset_training:
        _set_aside(config, on_set_aside)
        dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    if is_adopted:
        _take_parts(config, home)
    for part in FORMER_HOMES:
        copy_part(home, home, part)  # a folder of its own, so that it can be built on and trained like the others
    write_settings(dataset)
    return dataset, agenda


def write_settings(dataset: SpeechDataset) -> None:
    """Writes what a run's folder needs besides checkpoints: vocabulary, recordings of the speakers, settings."""
    home = Path(dataset.config.training.checkpoint_dir)
    dataset.tokenizer.save(home / VOCABULARY)
    keep_speakers(home, dataset.train)
    write_json(home / "config.json", dataset.config.to_dict())


def open_together(config: XTTSConfig, workers: Workers, *tells: Callable) -> tuple[SpeechDataset, list]:
    """As `open_run`, which the chief calls alone; the others take what it settled.

    Returns:
        The recordings, read by each worker for itself; and the stages to train, with whether each starts fresh.

    Raises:
        UserError: As in `open_run`; or the workers have other recordings, or no run folder in common.
    """
    dataset, told = None, None
    if workers.is_chief:
        dataset, agenda = open_run(config, *tells)
        works = [(work.stage, work.step is None) for work in agenda.works if work.trains]
        told = {"config": dataset.config.to_dict(), "works": works}
    told = workers.tell(told)
    if dataset is None:
        settled, own = config_from_dict(told["config"]), config
        paths = {name: getattr(own.data, name) for name in (*PATHS, "audio_roots")}
        home = dict(checkpoint_dir=own.training.checkpoint_dir, worker_index=own.training.worker_index)
        training = replace(settled.training, **home)
        config = replace(settled, data=replace(settled.data, **paths), training=training)
    files = (Path(config.training.checkpoint_dir, name) for name in ("config.json", VOCABULARY))
    seen = [digest_file(path)[:12] if path.is_file() else "no file" for path in files]
    way_out = "It must be one folder on storage that all of them reach."
    workers.require_equal("files in --checkpoint-dir", seen, way_out)
    dataset = dataset or SpeechDataset.open(config)
    digests = [data_digest(clips)[:12] for clips in (dataset.train, dataset.validation)]
    way_out = "Give each a copy of one data set in --train-data and --val-data."
    workers.require_equal("recordings", digests, way_out)
    return dataset, told["works"]


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
    home, config = Path(config.training.checkpoint_dir), _with_tuned(config)
    asked = config.training.init_from and full_name(config.training.init_from)
    for name in tuned_stages(config) if has_begun(config) else ():
        if (step := newest_step(home, name)) is None:
            continue
        state = CheckpointStore(home / name).read_state(step)
        if "position" not in state:
            held = f"{home} holds weights without a run, as `myxtts convert` writes them"
            way_out = f"Start from them with --init-from {home} and another --checkpoint-dir."
            raise ConfigError(f"--checkpoint-dir must be a folder of its own. {held}. {way_out}")
        began = config_of(state, str(home / name))
        if began and name == "gpt":
            _check_adapters(config, began, f"{home} holds a run at step {step}")
        before = began and began.training.init_from
        if asked not in (None, before):
            if not (is_hub_name(asked) or is_base(asked)):
                require_model_folder(Path(asked), "--init-from")
            held = f"{home} holds one that began from {before or 'scratch'} and is at step {step}"
            way_out = "Leave --init-from out to resume it, give another --checkpoint-dir"
            raise ConfigError(
                f"--init-from starts a fresh run, and {held}. {way_out}, or --reset-training to start anew."
            )
        asked = before
    if config.training.tune and not asked:
        rule = "training.tune (--tune) names stages that train on from the weights of --init-from, and there is none"
        raise ConfigError(f"{rule}. Add --init-from FOLDER, or leave --tune out.")
    return replace(config, training=replace(config.training, init_from=asked))


def _check_adapters(config, began, held):
    """Raises `ConfigError` where a run without adapters is asked for some, or one with them for others."""
    asked, before = config.training.lora_rank, began.training.lora_rank
    if asked and asked != before:
        way_out = f"{'Give the same' if before else 'Leave it out'} to resume that, or give another --checkpoint-dir."
        rule = "training.lora_rank (--lora-rank) is settled when a run starts"
        raise ConfigError(f"{rule}, and {held} with {before or 'none'}. Received: {asked}. {way_out}")


def _with_tuned(config):
    """With `training.tune` settled: as asked for, as the run in the folder began, or for the base all that can be."""
    training, home = config.training, Path(config.training.checkpoint_dir)
    tune = tuple(name for name in TUNABLE if name in training.tune)
    _check_tuned(training, tune)
    if not training.reset_training and (home / "config.json").is_file() and holds_run(home):
        before = read_config(home).training.tune
        if tune and tune != before:
            began = f"{home} holds a run that began with {', '.join(before) or 'none named'}"
            way_out = "Leave it out to resume that, give another --checkpoint-dir, or --reset-training to start anew."
            raise ConfigError(f"training.tune (--tune) is settled when a run starts, and {began}. {way_out}")
        tune = before
    elif not tune and is_base(training.init_from) and training.stage == "all" and not training.lora_rank:
        tune = TUNABLE
    return replace(config, training=replace(training, tune=tune))


def _check_tuned(training, tune):
    """Raises `ConfigError` where what is named goes against itself."""
    way_out = None
    if "dvae" in tune and tune != TUNABLE:
        way_out = f"gpt and decoder rest on the dvae as it is. Name all: --tune {','.join(TUNABLE)}"
    elif tune and training.stage not in ("all", *tune):
        way_out = f"--stage {training.stage} is not among them. Name it, too, or leave --stage out"
    elif tune and training.lora_rank and "gpt" not in tune:
        way_out = "--lora-rank trains adapters of the gpt. Name it, too, or leave --lora-rank out"
    if way_out:
        raise ConfigError(f"training.tune (--tune) is {','.join(tune)}, and {way_out}.")


def check_same_model(config: XTTSConfig):
    """Raises `ConfigError` where the folder holds a run of another model, whose `config.json` must stay."""
    home = Path(config.training.checkpoint_dir)
    is_new = not (home / "config.json").is_file() and not has_begun(config)
    if config.training.reset_training or not holds_run(home) or is_new:
        return
    before, now = (dataclasses.asdict(model) for model in (read_config(home).model, config.model))
    free = {"dropout"}
    if not part_store(home, "decoder").steps():
        free.add("decoder_type")  # not made yet
    differing = [name for name in now if before[name] != now[name] and name not in free]
    if differing:
        told = "; ".join(f"{name} {before[name]} there, {now[name]} here" for name in differing[:3])
        way_out = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training to start anew."
        raise ConfigError(f"{home} holds a run of another model: {told}. {way_out}")


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
    named = {name: part_store(source, name) for name in dict.fromkeys((*STAGES, *PARTS))}
    check_claims(stored.model, {name: store for name, store in named.items() if store.steps()})
    for name in foundations:
        if not config.training.reset_training or name in _kept_stages(config.training):
            _refuse_other_weights(source, home, name)
    config = _with_shape(config, stored)
    data = replace(config.data, vocabulary=config.data.vocabulary or str(vocabulary_path(source)))
    return replace(config, data=replace(data, g2p=stored.data.g2p if data.g2p is None else data.g2p))


def _source(config):
    """The folder of `training.init_from`, fetched if it is a model of the hub."""
    return local_folder(config.training.init_from, config.training.accept_licence)


def _take_parts(config, home):
    """Copies finished parts and voices of the run that a fresh one begins from."""
    source, tuned = _source(config), tuned_stages(config)
    for name in dict.fromkeys((*STAGES, *PARTS)):
        if name not in tuned:
            copy_part(source, home, name)
    if (source / SPEAKERS_FILE).is_file():
        with write_whole(home / SPEAKERS_FILE) as temporary:
            shutil.copyfile(source / SPEAKERS_FILE, temporary)
    copy_speaker_clips(source, home)


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


def starting_weights(folder: str | Path, stage: str, num_text_tokens: int, seed: int) -> dict[str, np.ndarray]:
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

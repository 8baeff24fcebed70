"""Opening a run: settings, recordings, agenda; then its folder is created, or left to be continued."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.loading import config_from_dict
from myxtts.config.model import ModelConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.data.speaker_clips import keep_speakers
from myxtts.distributed.workers import Workers
from myxtts.runs.agenda import Agenda, make_agenda
from myxtts.runs.origin import ALL_PARTS, bring_in, kept_stages, settle_origin, taken_parts
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_file, write_json
from myxtts.storage.provenance import VOCABULARY
from myxtts.storage.run_folder import RUN_FILES, set_aside
from myxtts.training.resuming.state import data_digest


def open_run(
    config: XTTSConfig,
    progress: Callable[[int, int], None] | None = None,
    on_agenda: Callable | None = None,
    on_set_aside: Callable | None = None,
) -> tuple[SpeechDataset, Agenda]:
    """Reads the recordings of a run, creates its folder or continues in it, and writes `config.json` and `vocab.json`.

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
    config, began = settle_origin(config)
    dataset, training = SpeechDataset.open(config, progress), config.training
    if began is not None:
        check_same_model(began.model, dataset.config)
    is_created = bool(training.init_from) and began is None
    reset = [name for name in STAGES if name not in kept_stages(training)] if training.reset_training else ()
    agenda = make_agenda(dataset.config, dataset, reset, taken_parts(config) if is_created else ())
    if on_agenda:
        on_agenda(agenda)
    _refuse_own_dvae(config, agenda)
    if training.reset_training:
        _set_aside(config, on_set_aside)
        dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    if training.init_from:
        bring_in(dataset.config, is_created)
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


def check_same_model(before: ModelConfig, config: XTTSConfig) -> None:
    """Raises `ConfigError` where a run of another model than `before` would be continued, whose weights must stay."""
    home, free = Path(config.training.checkpoint_dir), {"dropout"}
    if not CheckpointStore(home / "decoder").steps():
        free.add("decoder_type")  # not made yet
    there, here = dataclasses.asdict(before), dataclasses.asdict(config.model)
    if differing := [name for name in here if there[name] != here[name] and name not in free]:
        told = "; ".join(f"{name} {there[name]} there, {here[name]} here" for name in differing[:3])
        way_out = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training to start anew."
        raise ConfigError(f"{home} holds a run of another model: {told}. {way_out}")


def _refuse_own_dvae(config, agenda):
    """Raises `ConfigError` where codes of shards are of another DVAE than the one that is to be trained."""
    shards = config.data.prepared or config.data.val_prepared
    if shards and not config.data.augment and any(work.stage == "dvae" and work.trains for work in agenda.works):
        holds = f"--prepared {shards} holds the codes of a trained DVAE, and this run is to train its own"
        way_out = "Train that first, then run `myxtts prepare --checkpoint` on it; or name that run in --checkpoint-dir"
        raise ConfigError(f"{holds}. {way_out} or --init-from.")


def _set_aside(config, on_set_aside):
    """Moves the run in the folder out of the way as one, with the settings and the vocabulary that it needs."""
    home, kept = Path(config.training.checkpoint_dir), kept_stages(config.training)
    if not holds_run(home):
        return
    moved = [name for name in ALL_PARTS if name not in kept]
    trained = [name for name in moved if name in STAGES and CheckpointStore(home / name).steps()]
    shared = [name for name in kept if (home / name).is_dir()]
    aside = set_aside(home, (*moved, *RUN_FILES), shared)
    for stage in trained if on_set_aside else ():
        on_set_aside(stage, aside / stage)

"""Opening a run: settings, recordings, agenda; then its folder is created, or left to be continued."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.loading import config_from_dict
from myxtts.config.model import ModelConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.data.speaker_clips import keep_speakers
from myxtts.distributed.workers import Workers
from myxtts.runs.agenda import StageWork, make_agenda
from myxtts.runs.forecast import find_needs
from myxtts.runs.origin import ALL_PARTS, bring_in, reset_parts, settle_origin, taken_parts
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_file, write_json
from myxtts.storage.provenance import VOCABULARY
from myxtts.storage.run_folder import RUN_FILES, set_aside
from myxtts.training.resuming.state import data_digest


def open_together(config: XTTSConfig, workers: Workers, notify: Callable[..., Any]) -> tuple[SpeechDataset, list]:
    """As `open_run`, which the chief calls alone; the others take what it settled.

    Returns:
        The recordings, read by each worker for itself; and the stages to train, with whether each starts fresh.

    Raises:
        UserError: As in `open_run`; or the workers have other recordings, or no run folder in common.
    """
    dataset, settled = None, None
    if workers.is_chief:
        dataset, works = open_run(config, notify)
        settled = dataset.config.to_dict(), [(work.stage, work.step is None) for work in works if work.trains]
    values, trained = workers.tell(settled)
    if dataset is None:
        paths = {name: getattr(config.data, name) for name in (*PATHS, "audio_roots")}
        own = {name: getattr(config.training, name) for name in ("checkpoint_dir", "worker_index")}
        config = config_from_dict(values)
        config = replace(config, data=replace(config.data, **paths), training=replace(config.training, **own))
    files = (Path(config.training.checkpoint_dir, name) for name in ("config.json", VOCABULARY))
    seen = [digest_file(path)[:12] if path.is_file() else "no file" for path in files]
    workers.require_equal("files in --checkpoint-dir", seen, "It must be one folder on storage that all of them reach.")
    dataset = dataset or SpeechDataset.open(config)
    digests = [data_digest(clips)[:12] for clips in (dataset.train, dataset.validation)]
    hint = "Give each a copy of one data set in --train-data and --val-data."
    workers.require_equal("recordings", digests, hint)
    return dataset, trained


def open_run(
    config: XTTSConfig, notify: Callable[..., Any] = lambda event, *facts: None
) -> tuple[SpeechDataset, list[StageWork]]:
    """Reads the recordings of a run, creates its folder or continues in it, and writes `config.json` and `vocab.json`.

    Args:
        config: As asked for.
        notify: Called with `on_inspection`, `on_agenda`, `on_needs` (before anything is moved or written),
            `on_set_aside` and their arguments, see `RunListener`.

    Returns:
        The recordings, whose `config` is that of the run: with its origin and vocabulary, and nothing left to reset;
        and what is to be done.

    Raises:
        UserError: The folder holds another run, --init-from lacks something, the recordings cannot be used, or what is
            asked for would make useless what is there.
    """
    config, began = settle_origin(config)
    training, home = config.training, Path(config.training.checkpoint_dir)
    dataset = SpeechDataset.open(config, lambda done, total: notify("on_inspection", done, total))
    if began is not None:
        check_same_model(began.model, dataset.config)
    is_created, reset = bool(training.init_from) and began is None, reset_parts(training)
    works = make_agenda(dataset.config, dataset, reset, taken_parts(config) if is_created else ())
    notify("on_agenda", works)
    needs = find_needs(dataset.config, works, dataset)
    if needs is not None:
        notify("on_needs", needs)
    shards = config.data.prepared or config.data.val_prepared
    if shards and not config.data.augment and any(work.stage == "dvae" and work.trains for work in works):
        raise ConfigError(
            f"--prepared {shards} holds the codes of a trained DVAE, and this run is to train its own. Train that "
            "first, then run `myxtts prepare --checkpoint` on it; or name that run in --checkpoint-dir or --init-from."
        )
    if reset and holds_run(home):
        # As one, with the settings and the vocabulary that it needs.
        trained = [name for name in reset if name in STAGES and CheckpointStore(home / name).steps()]
        kept = [name for name in ALL_PARTS if name not in reset and (home / name).is_dir()]
        aside = set_aside(home, (*reset, *RUN_FILES), kept)
        for stage in trained:
            notify("on_set_aside", stage, aside / stage)
    dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    if training.init_from:
        bring_in(dataset.config, is_created)
    write_settings(dataset)
    return dataset, works


def write_settings(dataset: SpeechDataset) -> None:
    """Writes what a run's folder needs besides checkpoints: vocabulary, recordings of the speakers, settings."""
    home = Path(dataset.config.training.checkpoint_dir)
    dataset.tokenizer.save(home / VOCABULARY)
    keep_speakers(home, dataset.train)
    write_json(home / "config.json", dataset.config.to_dict())


def check_same_model(before: ModelConfig, config: XTTSConfig) -> None:
    """Raises `ConfigError` where a run of another model than `before` would be continued, whose weights must stay."""
    home, free = Path(config.training.checkpoint_dir), {"dropout"}
    if not CheckpointStore(home / "decoder").steps():
        free.add("decoder_type")  # not made yet
    there, here = dataclasses.asdict(before), dataclasses.asdict(config.model)
    if differing := [name for name in here if there[name] != here[name] and name not in free]:
        shown = "; ".join(f"{name} {there[name]} there, {here[name]} here" for name in differing[:3])
        hint = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training to start over."
        raise ConfigError(f"{home} holds a run of another model: {shown}. {hint}")

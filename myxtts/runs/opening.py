"""Opening a run: its recordings and agenda are settled, its folder is created or continued, its stages are opened."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.loading import config_from_dict
from myxtts.config.model import ModelConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset, keep_speakers
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import Workers
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.runs.agenda import StageWork, make_agenda
from myxtts.runs.figures import MetricsFile
from myxtts.runs.forecast import find_needs
from myxtts.runs.origin import ALL_PARTS, bring_in, reset_parts, settle_origin, taken_parts
from myxtts.runs.samples import Copier, SampleSpeaker
from myxtts.runs.setup import holds_run
from myxtts.runs.speech_judge import SpeechJudge
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_file, write_json
from myxtts.storage.provenance import VOCABULARY
from myxtts.storage.run_folder import RUN_FILES, set_aside
from myxtts.training.resuming.checkpointer import load_foundations
from myxtts.training.resuming.state import data_digest
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.callbacks import TensorBoardWriter


def open_together(config: XTTSConfig, workers: Workers, notify: Callable[..., Any]) -> tuple[SpeechDataset, list]:
    """Calls `open_run` on the chief; the other workers read the recordings with the chief's settings.

    Returns:
        The recordings, and the stages to train.
    """
    dataset, settled = None, None
    if workers.is_chief:
        dataset, works = open_run(config, notify)
        settled = dataset.config.to_dict(), [work.stage for work in works if work.trains]
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
    """Reads the recordings of a run, creates or continues its folder, and writes `config.json` and `vocab.json`.

    Args:
        config: Settings as requested.
        notify: Called with `on_inspection`, `on_agenda`, `on_needs` (before anything is moved or written),
            `on_set_aside` and their arguments, see `RunListener`.

    Returns:
        The recordings, whose `config` is the run's, with origin and vocabulary; and the work for each stage.

    Raises:
        UserError: The folder holds a different run, --init-from lacks something, the recordings are unusable, or the
            request would make existing stages unusable.
    """
    config, began = settle_origin(config)
    training, home = config.training, Path(config.training.checkpoint_dir)
    dataset = SpeechDataset.open(config, lambda done, total: notify("on_inspection", done, total))
    if began is not None:
        check_same_model(began.model, dataset.config)
    is_created, reset = bool(training.init_from) and began is None, reset_parts(training)
    taken = taken_parts(config) if is_created else []
    works = make_agenda(dataset.config, dataset, reset, taken)
    notify("on_agenda", works)
    needs = find_needs(dataset.config, works, dataset)
    if needs is not None:
        notify("on_needs", needs)
    shards = config.data.prepared or config.data.val_prepared
    if shards and not config.data.augment and any(work.stage == "dvae" and work.trains for work in works):
        raise ConfigError(
            f"--prepared {shards} holds codes of a trained DVAE, but this run would train its own. Train the DVAE "
            "first and run `myxtts prepare --checkpoint` on that run, or give that run as --checkpoint-dir or "
            "--init-from."
        )
    if reset and holds_run(home):
        trained = [name for name in reset if name in STAGES and CheckpointStore(home / name).steps()]
        kept = [name for name in ALL_PARTS if name not in reset and (home / name).is_dir()]
        aside = set_aside(home, (*reset, *RUN_FILES), kept)
        for stage in trained:
            notify("on_set_aside", stage, aside / stage)
    dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    if training.init_from:
        bring_in(dataset.config, taken, is_created)
    write_settings(dataset)
    return dataset, works


def write_settings(dataset: SpeechDataset) -> None:
    """Writes vocabulary, recordings of the speakers and settings into a run's folder."""
    home = Path(dataset.config.training.checkpoint_dir)
    dataset.tokenizer.save(home / VOCABULARY)
    keep_speakers(home, dataset.train)
    write_json(home / "config.json", dataset.config.to_dict())


def check_same_model(before: ModelConfig, config: XTTSConfig) -> None:
    """Raises `ConfigError` if a run with the model `before` cannot be continued with the model of `config`."""
    home, free = Path(config.training.checkpoint_dir), {"dropout"}
    if not CheckpointStore(home / "decoder").steps():
        free.add("decoder_type")
    there, here = dataclasses.asdict(before), dataclasses.asdict(config.model)
    if differing := [name for name in here if there[name] != here[name] and name not in free]:
        shown = "; ".join(f"{name} {there[name]} there, {here[name]} here" for name in differing[:3])
        hint = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training to start over."
        raise ConfigError(f"{home} holds a run of another model: {shown}. {hint}")


def open_stage(stage: str, plan: DevicePlan, dataset: SpeechDataset) -> tuple[StageTrainer, list]:
    """Makes the trainer of a stage, and on the chief the callbacks that write logs and samples."""
    kind, config, settings = STAGE_CLASSES[stage], dataset.config, dataset.config.training
    foundations, lineage = load_foundations(config, stage, plan.data_device)
    trainer = StageTrainer(config, stage, plan, foundations, lineage)

    @cache  # tracing takes seconds
    def synthesizer():
        model = XTTS.assemble(trainer.config.model, *foundations.values(), trainer.model)
        return Synthesizer(model, dataset.tokenizer, trainer.config)

    if kind.speaks and settings.evaluate_every_steps:
        trainer.watch.speech_judge = SpeechJudge(dataset, synthesizer, trainer.model_device)
    if not trainer.workers.is_chief:
        return trainer, []
    home = Path(settings.checkpoint_dir)
    logs = Path(settings.tensorboard_log_dir or home / "tensorboard")
    with suppress(OSError):  # its files log the error; training continues without them
        logs.mkdir(parents=settings.tensorboard_log_dir is not None, exist_ok=True)
    callbacks = [TensorBoardWriter(logs, config), MetricsFile(home)]
    folders = home / "samples", logs / "samples"
    if settings.sample_every_steps:
        callbacks.append(Copier(dataset, trainer, *folders))
    if kind.speaks:
        callbacks.append(SampleSpeaker(dataset, synthesizer, trainer.model_device, *folders))
    return trainer, callbacks

"""Opens a run: reads the recordings, selects the stages to train, writes the run's folder, and creates trainers."""

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.config import XTTSConfig, config_from_dict
from myxtts.config.data import PATHS
from myxtts.config.model import ModelConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset, keep_speakers
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import Workers
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import PARTS, XTTS
from myxtts.runs import origin
from myxtts.runs.agenda import StageWork, find_needs, make_agenda, try_run
from myxtts.runs.samples import Copier, SampleSpeaker, SpeechJudge
from myxtts.runs.setup import holds_run
from myxtts.storage.files import digest_file, write_json
from myxtts.storage.run_folder import RUN_FILES, VOCABULARY, set_aside, shape_settings, stores_in
from myxtts.storage.speakers import SPEAKER_CLIPS
from myxtts.training.resuming import data_digest, load_foundations
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.watching.callbacks import Callback, MetricsWriter

logger = logging.getLogger(__name__)

_ITS_DVAE = "Give that DVAE's run as --checkpoint-dir, or as --init-from with --tune gpt."
_OTHER = "Give the same --model-size and data, another --checkpoint-dir, or --reset-training without --stage."


def open_together(config: XTTSConfig, workers: Workers, notify: Callable[..., Any]) -> tuple[SpeechDataset, list]:
    """Opens a run on all workers: the chief calls `open_run`, the others read the recordings with the chief's settings.
    Returns the data set, and the names of the stages to train."""
    dataset, settled = None, None
    if workers.is_chief:
        dataset, works = open_run(config, notify)
        settled = dataset.config.to_dict(), [work.stage for work in works if work.trains]
    values, trained = workers.ask(lambda: settled)
    if dataset is None:
        names = *PATHS, "audio_roots", "num_workers", "pipeline_buffer_size"
        values["data"] |= {name: getattr(config.data, name) for name in names}
        values["training"] |= {name: getattr(config.training, name) for name in ("checkpoint_dir", "worker_index")}
        config = config_from_dict(values)
    files = (Path(config.training.checkpoint_dir, name) for name in ("config.json", VOCABULARY))
    seen = [digest_file(path)[:12] if path.is_file() else "no file" for path in files]
    workers.require_equal("files in --checkpoint-dir", seen, "It must be one folder on storage that all of them reach.")
    dataset = dataset or SpeechDataset.open(config)
    digests = [data_digest(clips)[:12] for clips in (dataset.train, dataset.validation)]
    workers.require_equal("recordings", digests, "Give each a copy of one data set in --train-data and --val-data.")
    return dataset, trained


def open_run(
    config: XTTSConfig, notify: Callable = lambda *facts: None, is_plan: bool = False
) -> tuple[SpeechDataset, list[StageWork]]:
    """Opens a new or existing run. Reads its recordings, and writes `config.json` and `vocab.json` to its folder.

    Until the event `on_trial`, the folder is left unchanged, with these exceptions: reports are written, damaged
    checkpoints are renamed or copied again, and vocabulary and voices of a run without checkpoints are deleted.

    Args:
        config: Settings as requested.
        notify: Function to call with the name and arguments of each `RunListener` event.
        is_plan: Whether to return after `on_trial`, without writing reports or deleting files.

    Returns the data set, whose `config` has the complete settings of the run, and a `StageWork` per stage.

    Raises `UserError` if the folder has a different run, the model in --init-from lacks a part, the recordings are
    unusable, or training would make existing stages unusable. Errors leave settings and intact checkpoints unchanged.
    """
    config, began = origin.settle_origin(config)
    training, home = config.training, Path(config.training.checkpoint_dir)
    if began is None and not is_plan and not holds_run(home) and (home / "config.json").is_file():
        shutil.rmtree(home / SPEAKER_CLIPS, ignore_errors=True)  # perhaps of other recordings, as the vocabulary
        if not config.data.vocabulary:
            (home / VOCABULARY).unlink(missing_ok=True)
    dataset = SpeechDataset.open(config, lambda done, total: notify("on_inspection", done, total), not is_plan)
    reset = training.resets
    is_created = bool(training.init_from) and (began is None or not {*reset}.isdisjoint(origin.tuned_stages(config)))
    if began is not None:
        check_same_model(began.model, dataset.config, reset)
    if training.init_from and not is_created and (damaged := origin.taken_parts(config, False)):
        origin.bring_in(dataset.config, origin.source_parts(dataset.config, damaged), False)  # the agenda reads them
    taken = origin.taken_parts(config) if is_created else []
    works = make_agenda(dataset.config, dataset, reset, taken)
    notify("on_agenda", works)
    sizes = [config.stage(work.stage).batch_size * training.gradient_accumulation for work in works if work.trains]
    if (clips := max(sizes, default=0)) > (count := len(dataset.train)):
        message = "A step takes %d clips, but there are only %d. Set --batch-size times --grad-accum to at most %d."
        logger.warning(message, clips, count, count)
    if (needs := find_needs(dataset.config, works, dataset)) is not None:
        notify("on_needs", needs)
    shards = config.data.prepared or config.data.val_prepared
    if shards and not config.data.augment and any(work.stage == "dvae" and work.trains for work in works):
        raise ConfigError(f"--prepared {shards} needs its DVAE. {_ITS_DVAE}")
    if needs is not None and (times := try_run(works, dataset, needs, notify)):
        notify("on_trial", times)
    if is_plan:
        return dataset, works
    parts = origin.source_parts(dataset.config, taken) if training.init_from else {}
    if reset and holds_run(home):
        kept = [name for name in STAGES if name not in reset and (home / name).is_dir()]
        aside = set_aside(home, (*reset, *RUN_FILES), kept)
        if "speaker" not in reset:  # a decoder does not change the voices
            origin.copy_voices(aside, home)
        for stage in [name for name in stores_in(aside) if name in reset]:
            notify("on_set_aside", stage, aside / stage)
    dataset.config = replace(dataset.config, training=replace(dataset.config.training, reset_training=False))
    origin.bring_in(dataset.config, parts, is_created)
    write_settings(dataset)
    return dataset, works


def write_settings(dataset: SpeechDataset) -> None:
    """Writes the run's `config.json` (without worker settings), its vocabulary and training speakers' recordings."""
    training = replace(dataset.config.training, workers=(), worker_index=0)
    config, home = replace(dataset.config, training=training), Path(training.checkpoint_dir)
    write_json(home / "config.json", origin.with_absolute_paths(config, (*PATHS, "vocabulary")).to_dict())
    dataset.tokenizer.save(home / VOCABULARY)  # after the settings, by which the next start knows whose it is
    keep_speakers(home, dataset.train)


def check_same_model(before: ModelConfig, config: XTTSConfig, reset: Sequence[str] = ()) -> None:
    """Raises `ConfigError` if weight shapes of `before` and `config.model` differ. Ignores the parts in `reset`."""
    home = Path(config.training.checkpoint_dir)
    kept = {*PARTS} - {*reset} - ({"decoder"} - stores_in(home).keys())
    there, here = (shape_settings(model, kept) for model in (before, config.model))
    if differing := [name for name in here if there[name] != here[name]]:
        shown = "; ".join(f"{name} {there[name]} there, {here[name]} here" for name in differing[:3])
        raise ConfigError(f"{home} contains a run of another model: {shown}. {_OTHER}")


def open_stage(stage: str, plan: DevicePlan, dataset: SpeechDataset) -> tuple[StageTrainer, list]:
    """Returns a stage's trainer, and callbacks that write logs and samples ([] if this worker is not the chief)."""
    speaks, config, settings = STAGES[stage].speaks, dataset.config, dataset.config.training
    foundations, lineage = load_foundations(config, stage, plan.data_device)
    trainer = StageTrainer(config, stage, plan, foundations, lineage)

    @cache  # because tracing takes seconds
    def synthesizer():
        model = XTTS.assemble(trainer.config.model, *foundations.values(), trainer.model)
        return Synthesizer(model, dataset.tokenizer, trainer.config)

    if speaks and settings.evaluate_every_steps:
        trainer.watch.speech_judge = SpeechJudge(dataset, synthesizer, trainer.model_device)
    if not trainer.workers.is_chief:
        return trainer, []
    home = Path(settings.checkpoint_dir)
    logs = Path(settings.tensorboard_log_dir or home / "tensorboard")
    with suppress(OSError):  # `MetricsWriter` logs the error, and training continues
        logs.mkdir(parents=settings.tensorboard_log_dir is not None, exist_ok=True)
    callbacks: list[Callback] = [MetricsWriter(home, logs, config)]
    folders = home / "samples", logs / "samples"
    if settings.sample_every_steps:
        callbacks.append(Copier(dataset, trainer, *folders))
    if speaks:
        callbacks.append(SampleSpeaker(dataset, synthesizer, trainer.model_device, *folders))
    return trainer, callbacks

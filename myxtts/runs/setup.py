"""Preparation of a run: early checks, devices, then recordings.

TensorFlow is not imported before the devices are configured.
"""

import os
from dataclasses import replace
from pathlib import Path

from myxtts.config.checks import ConfigError, UserError, printable, require, say
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.config.stages import STAGES
from myxtts.config.workers import SLURM, workers_in, workers_of_slurm
from myxtts.data.corpora import TextsMissing, load_corpus
from myxtts.devices.configuration import check_devices, early_gpu_configuration
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import join_workers, leaving_together
from myxtts.hearing.recognizers import settle_recognizer
from myxtts.interchange.hub.fetching import is_hub_name, parse_hub_name
from myxtts.storage.base_model import is_base, require_model_folder
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import read_json
from myxtts.storage.run_folder import GATHERED, refuse_file
from myxtts.text.languages import get_language

SAMPLE_CORPUS = Path("sample_corpus")
NUM_CLOSING_TEXTS = 4
"""Held-out sentences that a model of the sample corpus speaks at the end."""


def check_request(config: XTTSConfig, download: bool = False, **devices) -> None:
    """Raises `UserError` for errors that are visible before TensorFlow is imported; arguments as in `set_up`.

    `TextsMissing` of the training data comes last.
    """
    config = with_workers(config)
    data, training = config.data, config.training
    check_devices(data.data_gpu, data.model_gpu, **devices)
    if training.evaluation_recognizer:
        settle_recognizer(training.evaluation_recognizer)
    try:
        get_language(data.language or "en")
    except ValueError as error:
        raise ConfigError(f"--language: {error}") from None
    if training.workers:  # their disks may differ, so they connect first
        return
    refuse_file(home := Path(training.checkpoint_dir))
    if training.init_from and (training.reset_training or not holds_run(home)):
        require_source(training.init_from)
    if data.vocabulary and not (os.path.isfile(data.vocabulary) or holds_run(home)):
        raise ConfigError(f"--vocabulary must be a tokenizer file: {printable(data.vocabulary)} is not one.")
    for flag, named in (("--prepared", data.prepared), ("--val-prepared", data.val_prepared)):
        is_there = not named or "://" in named or os.path.isdir(named)
        require(is_there, flag, "a folder that `myxtts prepare` made", printable(named or ""))
    how = data.language, data.format, data.audio_roots
    if data.val_data and not download:
        try:
            load_corpus(data.val_data, *how)
        except TextsMissing as missing:
            raise ConfigError(f"--val-data must have texts: {missing}") from None
    if data.train_data and not download:
        load_corpus(data.train_data, *how)


def with_own_data(config: XTTSConfig) -> XTTSConfig:
    """Returns the configuration with the training data of the run that it continues, if it names none."""
    path = Path(config.training.checkpoint_dir) / "config.json"
    if config.data.train_data or config.training.workers or not path.is_file():
        return config
    try:
        own = config_from_dict(read_json(path)).data
    except UserError:  # reported when the run is opened
        return config
    folder = own.train_data
    if not folder or not Path(folder).exists() or Path(folder).name == SAMPLE_CORPUS.name:
        return config
    say(f"No --train-data given: continuing with that of the run, {printable(folder)}")
    language = config.data.language or own.language
    return replace(config, data=replace(config.data, train_data=folder, language=language))


def set_up(config: XTTSConfig, download=False, **devices) -> tuple[XTTSConfig, DevicePlan]:
    """Configures devices, connects workers and fills in the training set; returns settings and device plan.

    Args:
        download: Download LJSpeech into `data.train_data` if it is missing.
        devices: Further arguments of `early_gpu_configuration`, such as `virtual_devices`.

    Raises:
        UserError: The devices are not available, or there is no training set.
    """
    config = with_workers(config)
    training = config.training
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu, **devices)
    names = ("stage", "leave_out", "init_from", "reset_training")
    settings = config.recipe() | {f"training.{name}": getattr(training, name) for name in names}
    workers = join_workers(training.workers, training.worker_index, plan, settings, training.worker_timeout_seconds)
    with leaving_together(workers):
        if workers.is_chief:
            config = _with_data(config, download)
        workers.gather()  # the others may share its disk, with the data set that it made
        return config if workers.is_chief else _with_data(config, download), plan


def with_workers(config: XTTSConfig) -> XTTSConfig:
    """Fills in the workers from Slurm's variables, if asked for, else from `TF_CONFIG`."""
    if config.training.workers and config.training.workers != SLURM:
        return config
    found = workers_of_slurm(os.environ) if config.training.workers else workers_in(os.environ)
    if found is None:
        return config
    return replace(config, training=replace(config.training, workers=found[0], worker_index=found[1]))


def _with_data(config, download):
    """Fills in the training set: the given one, a downloaded one, or the sample corpus."""
    folder = config.data.train_data
    if download:
        from myxtts.data.download import download_ljspeech

        if folder is None:
            raise UserError("--download-ljspeech needs --train-data, the folder for LJSpeech.")
        folder = download_ljspeech(folder)
    elif folder is None:
        from myxtts.data.sample_corpus import SENTENCES, make_sample_corpus, unheard_sentences

        languages = config.data.sample_languages
        languages = tuple(SENTENCES) if languages == ("all",) else languages
        corpus = f"the sample corpus ({', '.join(languages)}) in {SAMPLE_CORPUS}/ (kept for the next run)"
        say(f"No --train-data given: making {corpus}")
        is_new = not config.training.init_from and not holds_run(Path(config.training.checkpoint_dir))
        if is_new and config.model.size == "nano":
            say("Training from random weights; --config first_words.yaml starts from the bundled model.")
        folder = make_sample_corpus(SAMPLE_CORPUS, languages=languages)
        if len(languages) == 1 and not config.training.closing_texts:
            unheard = unheard_sentences(*languages)
            texts = tuple(unheard[:: len(unheard) // NUM_CLOSING_TEXTS][:NUM_CLOSING_TEXTS])
            config = replace(config, training=replace(config.training, closing_texts=texts))
    return replace(config, data=replace(config.data, train_data=str(folder)))


def require_source(source: str) -> None:
    """Raises `UserError` unless `--init-from` is the bundled model, a hub name or an existing folder."""
    if is_hub_name(source):
        parse_hub_name(source)
    elif not is_base(source):
        require_model_folder(source, "--init-from")


def holds_run(folder: Path) -> bool:
    """Whether the folder has a checkpoint of a stage, or has one in `GATHERED` from an interrupted reset."""
    return any(store.steps() for store in _stores(folder))


def require_run(config: XTTSConfig) -> None:
    """Raises `UserError` unless `--checkpoint-dir` holds a run to resume."""
    home = Path(config.training.checkpoint_dir)
    if config.training.init_from:
        raise UserError("--resume continues a run and --init-from starts one: give one of the two.")
    if not holds_run(home):
        raise UserError(f"--resume needs a run, and {home} holds none. Name its --checkpoint-dir, or leave it out.")
    if not any(store.has_sound() for store in _stores(home)):
        raise UserError(f"--resume needs an intact checkpoint, and {home} holds none. Copy the run again.")


def _stores(folder):
    return [CheckpointStore(place / stage) for place in (folder, folder / GATHERED) for stage in STAGES]

"""What comes before a run: devices, before anything starts TensorFlow, and then recordings.

Nothing here imports TensorFlow before the devices are configured.
"""

import os
from dataclasses import replace
from pathlib import Path

from myxtts.config.checks import ConfigError, UserError, printable, say
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.config.workers import SLURM, workers_in, workers_of_slurm
from myxtts.data.corpora import load_corpus
from myxtts.devices.configuration import check_devices, early_gpu_configuration
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import join_workers, leaving_together
from myxtts.hearing.recognizers import settle_recognizer
from myxtts.interchange.hub.fetching import is_hub_name, parse_hub_name
from myxtts.storage.base_model import is_base, require_model_folder
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import GATHERED, refuse_file
from myxtts.text.languages import get_language

SAMPLE_CORPUS = Path("sample_corpus")
NUM_CLOSING_TEXTS = 4
"""Sentences that a model of the sample corpus says at the end, none of which it has heard."""


def check_request(config: XTTSConfig, download: bool = False, **devices) -> None:
    """Raises `UserError` for what can be seen to be wrong before TensorFlow is imported; arguments as in `set_up`.

    `TextsMissing` for the training data comes last, if all else is right.
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
    if training.workers:  # each of several may have other disks, so they meet first
        return
    refuse_file(home := Path(training.checkpoint_dir))
    if training.init_from and (training.reset_training or not holds_run(home)):
        require_source(training.init_from)
    if data.vocabulary and not (os.path.isfile(data.vocabulary) or holds_run(home)):
        raise ConfigError(f"--vocabulary must be a tokenizer file: {printable(data.vocabulary)} is not one.")
    for flag, named in (("--prepared", data.prepared), ("--val-prepared", data.val_prepared)):
        if named and "://" not in named and not os.path.isdir(named):
            raise ConfigError(f"{flag} must be a folder that `myxtts prepare` made. {printable(named)} is not one.")
    for named in filter(None, (data.val_data, data.train_data)):
        if not download:
            load_corpus(named, data.language, data.format, data.audio_roots)


def set_up(config: XTTSConfig, download=False, **devices) -> tuple[XTTSConfig, DevicePlan]:
    """Configures devices and finds a training set.

    Args:
        config: Of the run; `data.data_gpu` and `data.model_gpu` name the devices.
        download: Fetch LJSpeech into `data.train_data` when it is missing.
        devices: What else `early_gpu_configuration` takes, such as `virtual_devices`.

    Returns:
        The configuration with its training set, and the plan that was applied.

    Raises:
        UserError: The devices cannot be had, or there is no training set.
    """
    config = with_workers(config)
    training = config.training
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu, **devices)
    joined = training.workers, training.worker_index, plan, _recipe(config), training.worker_timeout_seconds
    workers = join_workers(*joined)
    with leaving_together(workers):
        if workers.is_chief:
            config = _with_data(config, download)
        workers.gather()  # what worker 0 makes or fetches is there for those that share its disk
        return _with_data(config, download), plan


def with_workers(config: XTTSConfig) -> XTTSConfig:
    """The configuration with the workers that it or the environment names: Slurm's variables, else `TF_CONFIG`."""
    if config.training.workers and config.training.workers != SLURM:
        return config
    found = workers_of_slurm(os.environ) if config.training.workers else workers_in(os.environ)
    if found is None:
        return config
    return replace(config, training=replace(config.training, workers=found[0], worker_index=found[1]))


def _recipe(config):
    """The settings that make the result, by dotted name, as JSON values; with the stages that are asked for."""
    asked = ("stage", "leave_out", "init_from", "reset_training")
    return config.recipe() | {f"training.{name}": getattr(config.training, name) for name in asked}


def _with_data(config, download):
    """The configuration with a training set: the one named, a downloaded one, or the sample corpus."""
    folder = config.data.train_data
    if download:
        from myxtts.data.download import download_ljspeech

        if folder is None:
            raise UserError("--download-ljspeech needs --train-data, the folder to put LJSpeech into.")
        folder = download_ljspeech(folder)
    elif folder is None:
        from myxtts.data.sample_corpus import SENTENCES, make_sample_corpus, unheard_sentences

        languages = config.data.sample_languages
        languages = tuple(SENTENCES) if languages == ("all",) else languages
        corpus = f"the sample corpus ({', '.join(languages)}) in {SAMPLE_CORPUS}/ (kept for the next run)"
        say(f"No --train-data given: making {corpus}")
        is_new = not config.training.init_from and not holds_run(Path(config.training.checkpoint_dir))
        if is_new and config.model.size == "nano":
            say("It starts from random weights; --config first_words.yaml starts from the bundled model.")
        folder = make_sample_corpus(SAMPLE_CORPUS, languages=languages)
        if len(languages) == 1 and not config.training.closing_texts:
            unheard = unheard_sentences(*languages)
            texts = tuple(unheard[:: len(unheard) // NUM_CLOSING_TEXTS][:NUM_CLOSING_TEXTS])
            config = replace(config, training=replace(config.training, closing_texts=texts))
    return replace(config, data=replace(config.data, train_data=str(folder)))


def require_source(source: str) -> None:
    """Raises `UserError` unless `--init-from` is the bundled model, one of the hub, or a folder that is there."""
    if is_hub_name(source):
        parse_hub_name(source)
    elif not is_base(source):
        require_model_folder(source, "--init-from")


def holds_run(folder: Path) -> bool:
    """Whether a stage has a checkpoint in the folder, or will have one again when the run is opened."""
    return any(store.steps() for store in _stores(folder))


def require_run(config: XTTSConfig) -> None:
    """Raises `UserError` unless the configuration's folder holds a run to resume (`--resume`)."""
    home = Path(config.training.checkpoint_dir)
    if config.training.init_from:
        raise UserError("--resume continues a run and --init-from starts one: give one of the two.")
    if not holds_run(home):
        lack, hint = f"{home} holds no checkpoint", "Name its --checkpoint-dir"
    elif not any(store.has_sound() for store in _stores(home)):
        lack, hint = f"no checkpoint in {home} is whole", "Copy the run again"
    else:
        return
    raise UserError(f"--resume needs a run to continue, and {lack}. {hint}, or leave --resume out to start one.")


def _stores(folder):
    return [CheckpointStore(place / stage) for place in (folder, folder / GATHERED) for stage in STAGES]

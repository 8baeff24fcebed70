"""What MyXTTS can do, from Python: train, load, push. The command line, notebooks and the page translate to these."""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myxtts.config.checks import ConfigError, UserError, printable, require
from myxtts.config.config import XTTSConfig
from myxtts.config.flags import all_flags, with_named
from myxtts.config.loading import SAMPLE, config_from_dict, find_recipe, read_yaml
from myxtts.devices.device_plan import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB
from myxtts.devices.tensorflow_start import import_sparingly, starting_quietly
from myxtts.storage.base_model import require_model_folder

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.memory.report import MemoryReport
    from myxtts.models.xtts import XTTS
    from myxtts.runs.run import Run

__all__ = ["configure", "from_preset", "load", "open_run", "plan", "push", "save_to_preset", "train"]
PLANNED_GPUS_GB = (8, 12, 16, 24, 48, 80)
PLANNED_STAGE = "gpt"
"""What is planned where all stages are asked for: the one that takes most."""
PLANNED_TOKENS = 512
"""Text tokens while no tokenizer is known: what `data.vocabulary_size` allows by default."""


def configure(config: XTTSConfig | str | os.PathLike | None = None, **named) -> XTTSConfig:
    """Settings of a run.

    Args:
        config: Settings that there are already, or the name of a YAML file with some.
        named: Values by the names of the flags of `myxtts train`, with underscores; they win over `config`.

    Raises:
        ConfigError: There is no such setting, or a value breaks its rule.
    """
    if isinstance(config, XTTSConfig):
        if named.get("model_size") is not None:
            way_out = "Give XTTSConfig(model=ModelConfig(size=...)) instead"
            raise ConfigError(f"model_size picks all shapes, and the configuration has them already. {way_out}.")
        values = config.to_dict()
    else:
        config = SAMPLE if config is None and not named.get("train_data") else config
        values = {} if config is None else read_yaml(find_recipe(config))
    return config_from_dict(with_named(values, named))


def open_run(
    config: XTTSConfig | str | os.PathLike | None = None,
    *,
    callbacks: Sequence = (),
    quiet: bool = False,
    resume: bool = False,
    download_ljspeech: bool = False,
    device_plan: str | None = None,
    model_gpus: Sequence[int] | None = None,
    enable_memory_isolation: bool = False,
    data_gpu_memory: int = DATA_GPU_MEMORY_MB,
    model_gpu_memory: int = MODEL_GPU_MEMORY_MB,
    virtual_devices: int | None = None,
    **named,
) -> "Run":
    """A run on its devices and recordings, to be trained; arguments as in `train`."""
    config = configure(config, **named)
    from myxtts.data.corpora import TextsMissing
    from myxtts.runs.setup import check_request, require_run
    from myxtts.runs.transcribing import transcribe

    if resume:
        if not named.get("init_from"):  # a recipe's says how the run began
            config = replace(config, training=replace(config.training, init_from=None))
        require_run(config)
    devices: dict[str, Any] = dict(
        model_gpus=model_gpus, memory_isolation=enable_memory_isolation, virtual_devices=virtual_devices
    )
    devices |= dict(data_gpu_memory=data_gpu_memory, model_gpu_memory=model_gpu_memory)
    _require_sense(named, config, device_plan, devices)
    try:
        check_request(config, download_ljspeech, **devices)
    except TextsMissing as missing:
        if missing.root.resolve() != Path(config.data.train_data or "").resolve():
            raise
        config = transcribe(config, missing, quiet)
        check_request(config, **devices)
    from myxtts.runs.run import Run

    run = Run.open(config, callbacks, device_plan, download=download_ljspeech, **devices)
    if config.training.worker_index == 0:
        from myxtts.runs.console import RunConsole
        from myxtts.utils.commons import setup_logging

        if not quiet:
            setup_logging()
        run.callbacks.insert(0, RunConsole(run, quiet))
    return run


def train(config: XTTSConfig | str | os.PathLike | None = None, **options) -> "Run":
    """Trains what is missing, as `myxtts train` does, and returns the run.

    Args:
        config: Settings, or the name of a YAML file with some.
        options: Names of the flags of `myxtts train`, with underscores and the same defaults: `train_data="DIR"`,
            `model_size="nano"`, `data_gpu=0`, `max_steps=2000`; they win over `config`. Besides these, `callbacks`
            are those who follow the run, see `runs.run.Run`, and `quiet=True` prints nothing of the run's course; its
            folder has it all.

    Returns:
        The run, with `history`, `best`, `finished` and `speak`. Ctrl-C lets it write a checkpoint and return; the same
        call resumes it.

    Raises:
        UserError: Something that was asked for cannot be had; a note says what flags in the message are called here.
    """
    with _flags_explained():
        with starting_quietly():
            run = open_run(config, **options)
        from myxtts.runs.signals import stops_on_signals

        is_main = threading.current_thread() is threading.main_thread()
        run.train(guard=stops_on_signals if is_main else nullcontext)
    return run


def plan(
    config: XTTSConfig | str | os.PathLike | None = None,
    *,
    clip_seconds: float | None = None,
    text_tokens: int = PLANNED_TOKENS,
    gpu_memory: Sequence[float] | None = None,
    **named,
) -> "MemoryReport":
    """Memory that training would take and the largest batch for usual GPUs, as `myxtts plan` prints it.

    Args:
        config: As in `train`, like all other names.
        clip_seconds: Longest clip of the data; None takes `data.max_seconds`.
        text_tokens: Size of the vocabulary.
        gpu_memory: GPUs to find the largest batch for, in GB.

    Returns:
        Figures as JSON types; `print` shows them as tables.
    """
    from myxtts.memory.estimates import RESERVED_GB
    from myxtts.memory.report import memory_report

    config, gpus = configure(config, **named), [*(gpu_memory or PLANNED_GPUS_GB)]
    require(clip_seconds is None or clip_seconds > 0, "--clip-seconds", "above 0", f"{clip_seconds or 0:g}")
    require(text_tokens > 0, "--text-tokens", "above 0", text_tokens)
    require(min(gpus) > RESERVED_GB, "--gpu-memory", f"above {RESERVED_GB:g}", f"{min(gpus):g}")
    source = _config_of_source(config.training.init_from)
    model = replace(source.model if source else config.model, num_text_tokens=text_tokens)
    stage = PLANNED_STAGE if config.training.stage == "all" else config.training.stage
    return memory_report(replace(config, model=model), stage, clip_seconds, gpus)


def load(
    folder: str | os.PathLike, which: str = "best", accept_licence: bool = False, engine: str | None = None
) -> "Synthesizer":
    """The model in the folder of a run, of XTTS v2 as it is released or of `XTTS.save_to_preset`, ready to `speak`.

    Args:
        folder: Its folder, `base`, the bundled model, or `hf://owner/name[@revision]`, a model of the hub, which is
            converted if need be.
        which: `best` or `last` checkpoint.
        accept_licence: Of a model of the hub, without being asked.
        engine: What draws the codes: `tensorflow`, `onnx` (8 bits), `onnx-float32`; None takes the fastest exact one.

    Raises:
        CheckpointError: Something is missing or damaged.
        HubError: It cannot be fetched, or its licence was not accepted.
    """
    from myxtts.interchange.hub.fetching import local_folder

    folder = local_folder(folder, accept_licence)
    require_model_folder(folder, "A model (--checkpoint)")
    with starting_quietly():
        import_sparingly()
        from myxtts.devices.configuration import configure_for_speech
        from myxtts.interchange.onnx.engines import load_synthesizer

        configure_for_speech()
        return load_synthesizer(folder, which, engine)


def from_preset(folder: str | os.PathLike, accept_licence: bool = False, which: str = "best") -> "XTTS":
    """The model with its trained weights, as a Keras model; arguments and errors as in `load`."""
    from myxtts.interchange.hub.fetching import local_folder

    with starting_quietly():
        from myxtts.inference.loading import load_preset

        return load_preset(local_folder(folder, accept_licence), which)


def save_to_preset(model: "XTTS", folder: str | os.PathLike) -> None:
    """Writes a folder that `from_preset`, `load`, `myxtts say` and `training.init_from` take.

    Raises:
        UserError: The model's tokenizer is not known, or the folder holds something already.
    """
    from myxtts.inference.loading import save_preset

    save_preset(model, folder)


def push(model: "XTTS", target: str, private: bool = False, licence: str | None = None) -> str:
    """Uploads what `save_to_preset` writes, with a model card, to `hf://owner/name`; returns the address.

    Args:
        target: The repository, made if need be.
        private: Of a repository that is made now.
        licence: Identifier for the card, such as `cc-by-4.0`.

    Raises:
        UserError: The model's tokenizer is not known.
        HubError: The hub refuses, or cannot be reached.
    """
    from myxtts.interchange.hub.uploading import push_model

    return push_model(model, target, private, licence)


def _require_sense(named, config, device_plan, devices):
    """Raises `ConfigError` for options that would be passed over, or that exclude each other."""
    recordings, gpus = config.data.train_data, (config.data.data_gpu, config.data.model_gpu)
    if named.get("language") is not None and not recordings:
        rule = "--language is that of recordings in --train-data, and there is none: the sample corpus names its own"
        way_out = "--sample-languages chooses those of the sample corpus"
        raise ConfigError(f"{rule}. Add --train-data DIR, or leave --language out; {way_out}.")
    if named.get("sample_languages") is not None and recordings:
        rule = "--sample-languages is for the sample corpus, which is made where no --train-data is given"
        given = f"the recordings are in {printable(str(recordings))}"
        raise ConfigError(f"{rule}; {given}. Leave one of the two out; --language is that of recordings.")
    if device_plan == "auto" and (gpus != (None, None) or devices["model_gpus"] or devices["memory_isolation"]):
        flags = "--data-gpu, --model-gpu, --model-gpus and --enable-memory-isolation"
        raise ConfigError(f"--device-plan auto chooses the devices itself. Leave out {flags}, or --device-plan.")
    asked, source = named.get("model_size"), config.training.init_from
    brought = _config_of_source(source) if asked else None
    if brought is not None and (size := brought.model.size) != asked:
        rule = f"--init-from {printable(source)} has a model of its own, of size {size}"
        raise ConfigError(f"--model-size {asked} cannot be used: {rule}. Leave one of the two out.")


def _config_of_source(source):
    """The settings of what `--init-from` names, where it is on this machine, else None."""
    if not source:
        return None
    from myxtts.interchange.hub.fetching import folder_here  # brings NumPy, which other plans do without
    from myxtts.runs.setup import require_source
    from myxtts.storage.provenance import read_config

    require_source(source)
    folder = folder_here(source)
    return None if folder is None else read_config(folder)


@contextmanager
def _flags_explained() -> Iterator[None]:
    """Adds a note to a user's error that names flags: what they are called in Python."""
    try:
        yield
    except UserError as error:
        known, told = {name: flag for flag in all_flags() for name in flag.names}, []
        for name in dict.fromkeys(re.findall(r"--[a-z][a-z0-9-]+", str(error))):
            if name in known:
                places = " and ".join(known[name].settings).replace("stage.", "training.STAGE.")
                keyword = name.removeprefix("--").replace("-", "_")
                told.append(f"{name} is {keyword}=" + (f" or the setting {places}" if places else ""))
        if told:
            error.add_note(f"From Python: {'; '.join(told)}.")
        raise

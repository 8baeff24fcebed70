"""Python API: train, plan and load. The command line, notebooks and the web page call these functions."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myxtts.config.checks import ConfigError, UserError, printable, require, say
from myxtts.config.config import SAMPLE, XTTSConfig, config_from_dict, find_recipe, read_yaml, without_adapted
from myxtts.config.data import PATHS
from myxtts.config.flags import all_flags, start_options, with_named
from myxtts.config.model import DEFAULT_TEXT_TOKENS
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import plan_devices
from myxtts.devices.tensorflow_start import starting_quietly

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.memory.report import MemoryReport
    from myxtts.models.xtts import XTTS
    from myxtts.runs.run import Run

__all__ = ["configure", "from_preset", "load", "open_run", "plan", "train"]
Configuration = XTTSConfig | str | os.PathLike | None
"""Settings: an `XTTSConfig`, the path of a YAML file, the name of a bundled recipe, or None (see `train`)."""
PLANNED_GPUS_GB = (8, 12, 16, 24, 48, 80)
MOST_SECONDS, MANY_GPUS = 3600, 1024
_DEVICE_FLAGS = "--data-gpu, --model-gpu, --model-gpus, --enable-memory-isolation and --workers (or TF_CONFIG)"
PLANNED_STAGE = "gpt"
"""Stage whose memory `plan` reports if all stages are to be trained: the GPT needs the most memory."""


def configure(config: Configuration = None, **named) -> XTTSConfig:
    """Returns the settings of a run. Raises `ConfigError` for an unknown setting or an invalid value.

    Args:
        config: Settings, as in `train`. None selects the defaults if `train_data` is given, otherwise `sample.yaml`.
        named: Flags of `myxtts train`, with underscores; they override `config`.
    """
    if isinstance(config, XTTSConfig):
        if named.get("model_size") is not None:
            raise ConfigError("model_size cannot change a given model. Use XTTSConfig(model=ModelConfig(size=...)).")
        values = config.to_dict()
    else:
        config = SAMPLE if config is None and not named.get("train_data") else config
        values = {} if config is None else read_yaml(find_recipe(config))
    return config_from_dict(with_named(values, named))


def open_run(config: Configuration = None, *, callbacks: Sequence = (), quiet: bool = False, **named) -> "Run":
    """Checks the options, configures the devices, and returns the run, ready to train. Arguments are as in `train`."""
    start = start_options(named)
    config = _requested(config, named, start)
    from myxtts.runs.setup import require_run, run_in

    if start.resume:  # `init_from` and `reset_training` in a recipe are only for the start of the run
        config = replace(config, training=replace(config.training, init_from=None, reset_training=False))
        require_run(config)
    if size := named.get("model_size"):
        training, home = config.training, Path(config.training.checkpoint_dir)
        source = training.init_from
        if not (source or "dvae" in training.resets) and (before := run_in(home)) and before.training.init_from:
            source = str(home.absolute())  # the run has the shape of the model that it started from
        if source:
            _config_of_source(source, size)
    checked: XTTSConfig = _with_texts(config, start, quiet)
    from myxtts.runs.run import Run

    run = Run.open(checked, callbacks, start.device_plan, download=start.download, **start.devices)
    if run.config.training.worker_index == 0:
        from myxtts.runs.console import RunConsole
        from myxtts.utils.commons import setup_logging

        if not quiet:
            setup_logging()
        run.callbacks.insert(0, RunConsole(run, quiet))
    return run


@contextmanager
def naming_arguments(parser: Callable | None = None) -> Iterator[None]:
    """Context manager that adds a note to a `UserError` whose message mentions command-line flags. The note names the
    corresponding Python arguments. `parser` is a function that builds the parser of the flags. None means the flags of
    `myxtts train`; the note then also names the corresponding YAML settings."""
    try:
        yield
    except UserError as error:
        settings_of = {name: flag.settings for flag in all_flags() for name in flag.names}
        if parser:
            settings_of = dict.fromkeys(parser()._option_string_actions, ())
        notes = []
        for name in dict.fromkeys(re.findall("--[a-z][a-z0-9-]+", str(error))):
            if name in settings_of:
                notes.append(" or the setting ".join([f"{name} is {name[2:].replace('-', '_')}=", *settings_of[name]]))
        if notes:
            error.add_note(f"From Python: {'; '.join(notes).replace(' stage.', ' training.STAGE.')}.")
        raise


@naming_arguments()
def train(config: Configuration = None, **options) -> "Run":
    """Trains the stages that are not finished yet, and returns the run. Same as the command `myxtts train`.

    Args:
        config: Settings, a YAML file or the name of a recipe. If `config` is None and `train_data` is given, the
            defaults are used. If neither is given, the settings of the run in `checkpoint_dir` are used. If there is
            no such run, or if it was trained on the sample corpus, `sample.yaml` is used.
        options: Flags of `myxtts train` as keywords, with underscores and the same defaults: `train_data="DIR"`,
            `model_size="nano"`, `data_gpu=0`, `max_steps=2000`. They override `config`. Further keywords: `callbacks`,
            a list of callbacks (see `runs.run.Run`), and `quiet=True`, to write `train.log` but print nothing.

    On Ctrl-C, training ends with a checkpoint, and the same call resumes the training. Raises `UserError` if an option
    or a recording is unusable. A note on the error translates flags in the message to Python arguments.
    """
    with starting_quietly():
        run = open_run(config, **options)
    from myxtts.runs.run import stops_on_signals

    run.train(guard=stops_on_signals if threading.current_thread() is threading.main_thread() else nullcontext)
    return run


@naming_arguments()
def plan(
    config: Configuration = None,
    *,
    clip_seconds: float | None = None,
    text_tokens: int = DEFAULT_TEXT_TOKENS,
    gpu_memory: Sequence[float] | None = None,
    time: bool = False,
    show: Callable[["MemoryReport"], None] | None = None,
    **named,
) -> "MemoryReport":
    """Estimates the memory that training needs, and the largest batch for each GPU size. Same as `myxtts plan`.

    Args:
        config: Settings, as in `train`.
        clip_seconds: Duration of the longest clip; the default is `data.max_seconds`.
        text_tokens: Size of the vocabulary.
        gpu_memory: Memory sizes of GPUs in GB (default: `PLANNED_GPUS_GB`). The report has the largest batch for each.
        time: Whether to also estimate the training time of a new run. Trial steps on `train_data` are timed for this.
        show: Function that is called with the report, before any trial steps.
        named: Other options of `train`.

    Returns a dictionary that can be saved as JSON. If it is printed, it is formatted as tables.
    """
    from myxtts.devices.configuration import device_request
    from myxtts.memory.estimates import RESERVED_GB
    from myxtts.memory.report import memory_report

    gpus = [*(gpu_memory or PLANNED_GPUS_GB)]
    start = start_options(named)
    asked = config = _requested(config, named, start, is_plan=True)
    if named.get("train_data") and not start.download:  # recordings in a recipe may be on another machine
        from myxtts.data.corpora import TextsMissing, refuse_other_kinds

        with suppress(TextsMissing):  # training transcribes them
            refuse_other_kinds(named["train_data"])  # does not read the clips, which can take a minute
    what, rule = "clip_seconds (--clip-seconds)", f"above 0 and at most {MOST_SECONDS}"
    require(clip_seconds is None or 0 < clip_seconds <= MOST_SECONDS, what, rule, f"{clip_seconds or 0:g}")
    require(text_tokens > 0, "text_tokens (--text-tokens)", "above 0", text_tokens)
    require(min(gpus) > RESERVED_GB, "gpu_memory (--gpu-memory)", f"above {RESERVED_GB:g}", f"{min(gpus):g}")
    source = _config_of_source(name, named.get("model_size")) if (name := config.training.init_from) else None
    if source:
        from myxtts.runs.setup import with_shape

        config = with_shape(config, source)
        text_tokens = max(text_tokens, source.model.num_text_tokens)
    elif name:
        say(f"Models of the hub are not read, so the plan is for --model-size {config.model.size} (XTTS v2: big).")
    model = replace(config.model, num_text_tokens=text_tokens)
    stage = PLANNED_STAGE if config.training.stage == "all" else config.training.stage
    pair = config.data.data_gpu, config.data.model_gpu
    # A plan may be for another machine with more GPUs; `check_request` counts the GPUs of this machine.
    devices = plan_devices(num_gpus=MANY_GPUS, **vars(device_request(*pair, **start.devices))).model_devices
    shares = len(devices) * max(1, len(config.training.workers))
    report = memory_report(replace(config, model=model), stage, clip_seconds, gpus, shares)
    if show:
        show(report)
    if time:
        found = "the model is on the hub: give its folder" if name and not source else _seconds(asked, start)
        report |= dict(seconds={}, not_timed=found) if isinstance(found, str) else dict(seconds=found)
    return report


def _seconds(config, start) -> dict[str, float] | str:
    """Returns the estimated seconds of each stage of a new run, or the reason why there is no estimate."""
    with starting_quietly():
        from myxtts.runs.opening import open_run
        from myxtts.runs.setup import holds_run, set_up, with_workers

    folder = Path(config.training.checkpoint_dir)
    is_run = holds_run(folder) or (folder / "config.json").is_file()  # a run in training keeps its reports
    reasons = {"no recordings are given": config.data.train_data is None, "the run already exists": is_run}
    reasons |= {"the run has workers": bool(with_workers(config).training.workers)}
    if why := next((why for why, holds in reasons.items() if holds), None):
        return why
    config = _with_texts(config, start, is_plan=True)
    if isinstance(config, str):
        return f"the recordings have no texts: training first cuts {config}"
    say("Measuring the time of training steps; this can take a minute...")
    facts: dict[str, Any] = {"on_no_trial": "there is nothing to try"}
    open_run(set_up(config, **start.devices)[0], lambda event, *given: facts.update({event: given[0]}), is_plan=True)
    return {one: whole for one, (_, whole) in facts.get("on_trial", {}).items()} or facts["on_no_trial"]


def _with_texts(config, start, quiet=False, is_plan=False):
    """Checks and returns `config`. For recordings without texts, raises `TextsMissing` if `data.format` is set;
    otherwise returns the result of `transcribe`: settings for new clips or (for a plan) a description of the work."""
    from myxtts.data.corpora import TextsMissing
    from myxtts.runs.setup import check_request, transcribe

    try:
        check_request(config, start.download, **start.devices)
    except TextsMissing as missing:
        if config.data.format:  # the user expects a data set of this format
            raise
        config = transcribe(config, missing, quiet, is_plan)
        if isinstance(config, XTTSConfig):
            check_request(config, **start.devices)
    return config


def load(
    folder: str | os.PathLike, which: str = "best", accept_licence: bool = False, engine: str | None = None
) -> "Synthesizer":
    """Loads a model for speech synthesis.

    Args:
        folder: Folder of a run, of a model saved by `XTTS.save_to_preset`, or of a Coqui model, which is converted.
            `base` is the bundled model. `hf://owner/name[@revision]` is a model on the Hugging Face hub.
        which: Checkpoint to load, `best` or `last`.
        accept_licence: Accept the licence of a Hugging Face model without a prompt.
        engine: `tensorflow`, `onnx-float32` or `onnx` (8 bits). None selects one of the first two; see `choose_engine`.

    Raises `CheckpointError` if a model file is missing or damaged (`UserError` if the vocabulary is damaged), and
    `HubError` if the model cannot be downloaded, or its licence was not accepted.
    """
    from myxtts.interchange.hub import local_folder

    folder = local_folder(folder, accept_licence, "folder")
    with starting_quietly():
        from myxtts.devices.configuration import configure_for_speech

        configure_for_speech()
        from myxtts.interchange.onnx.engines import load_synthesizer  # imports TensorFlow, now configured

        return load_synthesizer(folder, which, engine)


def from_preset(folder: str | os.PathLike, accept_licence: bool = False, which: str = "best") -> "XTTS":
    """Loads a trained model as a Keras model, for example to fine-tune it. Arguments and errors are as in `load`."""
    from myxtts.interchange.hub import local_folder

    with starting_quietly():
        from myxtts.inference.loading import load_model

        return load_model(local_folder(folder, accept_licence, "folder"), which)


def _requested(config, named, start, is_plan=False) -> XTTSConfig:
    """Returns checked settings. Raises `UserError` if options in `config`, `named` or `start` conflict or have no
    effect."""
    is_bare = config is None
    config = configure(config, **named)
    data, training = config.data, config.training
    has_run = (Path(training.checkpoint_dir) / "config.json").is_file()
    is_checked = has_run or data.train_data or data.val_data or data.language or training.tune or training.gpt.lora_rank
    if is_checked or not is_plan:
        # These modules import NumPy, which other plans do not need.
        from myxtts.runs.setup import check_settings, with_own_data, with_workers
        from myxtts.storage.run_folder import read_config

        own = config if start.download or is_plan else with_own_data(config)
        if is_bare and own is not config:  # not the recipe of the sample corpus
            values = without_adapted(read_config(Path(training.checkpoint_dir)).to_dict())
            # Paths, devices and stages come from this call.
            values["data"] |= {name: getattr(own.data, name) for name in (*PATHS, "data_gpu", "model_gpu")}
            has_tune = training.init_from or training.stage == "dvae"
            here = ["checkpoint_dir", "workers", "worker_index", "stage"] + ["tune"] * bool(has_tune)
            values["training"] |= {name: getattr(training, name) for name in here}
            if training.reset_training and named.get("model_size") not in (None, values["model"]["size"]):
                del values["model"]
            own = config_from_dict(with_named(values, named))
        config = own if is_plan else with_workers(own)
        check_settings(config)
    data, training = config.data, config.training
    recordings, gpus = data.train_data, (data.data_gpu, data.model_gpu)
    if start.resume and (named.get("init_from") or named.get("reset_training")):
        raise ConfigError("--resume continues a run, --init-from and --reset-training start one: give one of them.")
    if start.download and recordings is None:
        raise ConfigError("--download-ljspeech needs --train-data, the folder for LJSpeech.")
    if named.get("language") is not None and not recordings:
        raise ConfigError("--language needs --train-data DIR; --sample-languages is for the sample corpus.")
    if named.get("sample_languages") is not None and recordings:
        place = printable(str(recordings))
        raise ConfigError(f"Use --language instead of --sample-languages, as the recordings are in {place}.")
    if start.device_plan and (gpus != (None, None) or start.model_gpus or start.memory_isolation or training.workers):
        raise ConfigError(f"--device-plan auto selects devices for one process. Leave it out, or {_DEVICE_FLAGS}.")
    trained = {training.stage} if training.stage != "all" else {*(training.tune or STAGES)} - {*training.leave_out}
    limits = [stage.max_steps for name, stage in training.stages.items() if name in trained]
    needed = {
        "--memory-budget": (training.automatic_batch_size, "without --batch-size auto. Add it"),
        "--evaluation-patience": (training.evaluate_every_steps, "without --evaluate-every N. Add it"),
        "--epochs": (named.get("max_steps") or None in limits, "on stages that set max_steps. Give --max-steps"),
    }
    for flag, (holds, hint) in needed.items():
        if (value := named.get(flag[2:].replace("-", "_"))) and not holds:
            raise ConfigError(f"{flag} {value} has no effect {hint}, or leave out {flag}.")
    return config


def _config_of_source(source, requested):
    """Returns the settings of the model `source` (the value of --init-from), or None if the model is on the hub.

    Raises `ConfigError` if `requested` (the value of --model-size) is not None and differs from the model's size."""
    from myxtts.interchange import hub  # imports NumPy, which other plans do not need
    from myxtts.storage.run_folder import read_config

    hub.check_model(source, "--init-from")
    brought = None if hub.is_hub_name(source) else read_config(hub.local_folder(source))
    if requested and brought and (size := brought.model.size) != requested:
        raise ConfigError(f"--model-size {requested} contradicts {printable(source)}, of size {size}. Leave it out.")
    return brought

"""Training and speaking from Python and notebooks: what the commands do, with flags as keyword arguments."""

import argparse
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from myxtts.cli.train import build_parser, config_from_arguments, open_run
from myxtts.config.checks import ConfigError, UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.settings import nearest

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.runs.run import Run

SHAPE_FLAGS = {"enable_static_shapes": True, "pad_to_fixed_length": True, "disable_static_shapes": False}
"""Flags that say what `static_shapes` is."""


def train(
    config: XTTSConfig | str | os.PathLike | None = None, *, callbacks: Sequence = (), quiet: bool = False, **flags
) -> "Run":
    """Trains what is missing, as `myxtts train` does, and returns the run.

    Args:
        config: Settings, or the name of a YAML file with some.
        callbacks: Those who follow the run, see `runs.run.Run`.
        quiet: Prints nothing of the run's course; its folder has it all.
        flags: Those of `myxtts train`, with underscores and the same defaults: `train_data="DIR"`,
            `model_size="nano"`, `data_gpu=0`, `max_steps=2000`. They win over `config`.

    Returns:
        The run, with `history`, `best`, `finished` and `speak`. Ctrl-C lets it write a checkpoint and return; the same
        call resumes it.

    Raises:
        UserError: Something that was asked for cannot be had; a note says what flags in the message are called here.
    """
    from myxtts.runs.signals import stops_on_signals

    parser = build_parser()
    with _flags_explained(parser):
        arguments = _arguments(parser, flags)
        if not (config is None or isinstance(config, XTTSConfig)):
            arguments.config = os.fspath(config)
        run = open_run(arguments, _settings(arguments, config if isinstance(config, XTTSConfig) else None), quiet)
        run.callbacks += callbacks
        is_main = threading.current_thread() is threading.main_thread()
        run.train(guard=stops_on_signals if is_main else nullcontext)
    return run


def load(folder: str | os.PathLike, which: str = "best", accept_licence: bool = False) -> "Synthesizer":
    """The model in the folder of a run, of `myxtts convert` or of `XTTS.save_to_preset`, ready to `speak`.

    Args:
        folder: Its folder, `base`, the model in the box, or `hf://owner/name[@revision]`, a model of the hub, which is
            converted if need be.
        which: `best` or `last` checkpoint.
        accept_licence: Of a model of the hub, without being asked.

    Raises:
        CheckpointError: Something is missing or damaged.
        HubError: It cannot be fetched, or its licence was not accepted.
    """
    from myxtts.interchange.hub.fetching import local_folder

    folder = local_folder(folder, accept_licence)
    from myxtts.devices.configuration import configure_for_speech
    from myxtts.interchange.onnx.engines import load_synthesizer

    configure_for_speech()
    return load_synthesizer(folder, which)


def _arguments(parser, flags):
    """The flags as the command line would have them."""
    arguments = parser.parse_args([])
    names = [name for name in vars(arguments) if name != "settings"]
    repeated = [action.dest for action in parser._actions if isinstance(action, argparse._AppendAction)]
    listed = {one.dest: one.type for one in parser._actions if str(one.metavar).endswith(",…")}
    for name, value in flags.items():
        if name in listed and isinstance(value, str):
            value = listed[name](value)
        if name in repeated and isinstance(value, (str, os.PathLike)):
            value = [value]
        if name in SHAPE_FLAGS:
            name, value = "static_shapes", SHAPE_FLAGS[name] == bool(value)
        if name not in names:
            raise ConfigError(f"myxtts.train has no argument {name}.{nearest(name, (*names, *SHAPE_FLAGS))}")
        setattr(arguments, name, _without_paths(value))
    return arguments


def _without_paths(value):
    if isinstance(value, (list, tuple)):
        return [_without_paths(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _settings(arguments: argparse.Namespace, config: XTTSConfig | None) -> XTTSConfig:
    if config is not None and arguments.model_size is not None:
        way_out = "Give XTTSConfig(model=ModelConfig(size=...)) instead"
        raise ConfigError(f"model_size picks all shapes, and the configuration has them already. {way_out}.")
    return config_from_arguments(arguments, config and config.to_dict())


@contextmanager
def _flags_explained(parser) -> Iterator[None]:
    """Adds a note to a user's error that names flags: what they are called in Python."""
    try:
        yield
    except UserError as error:
        known = {flag: action.dest for action in parser._actions for flag in action.option_strings}
        named = [flag for flag in dict.fromkeys(re.findall(r"--[a-z][a-z0-9-]+", str(error))) if flag in known]
        settings = parser.get_default("settings")
        told = []
        for flag in named:
            places = [place.replace("stage.", "training.STAGE.") for place in settings.get(known[flag], [])]
            told.append(f"{flag} is {known[flag]}=" + (f" or the setting {' and '.join(places)}" if places else ""))
        if told:
            error.add_note(f"From Python: {'; '.join(told)}.")
        raise

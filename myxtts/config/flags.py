"""Flags of `myxtts train` and arguments of `myxtts.train`, generated from the fields of the settings classes.

A field with `flag="--max-steps"` gets this flag and the argument `max_steps`. The field's docstring is the help text.
"""

import ast
import dataclasses
import functools
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from myxtts.config.checks import ConfigError
from myxtts.config.data import DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.settings import Default, Settings, merge, nearest, plain_type, setting
from myxtts.config.stages import STAGES, StageConfig
from myxtts.config.training import TrainingConfig

EVERY_STAGE = "stage"
"""Section name that means all stages: `stage.max_steps` is `max_steps` in the settings of every stage."""
AUTOMATIC = "auto"
"""Value of `--batch-size` that turns on `training.automatic_batch_size`."""


@dataclass
class DeviceOptions(Settings):
    """Device options. They apply only to one start of a run, and are not saved with the run."""

    group = "devices"

    model_gpus: tuple[int, ...] | None = setting(None, flag="--model-gpus", metavar="I,J,…")
    """GPUs for data-parallel training (MirroredStrategy)."""
    memory_isolation: bool = setting(False, flag="--enable-memory-isolation")
    """Set a hard memory limit for each GPU."""
    data_gpu_memory: int = setting(Default(8192), flag="--data-gpu-memory")
    """Memory limit of the data GPU in MB."""
    model_gpu_memory: int = setting(Default(16384), flag="--model-gpu-memory")
    """Memory limit of the model GPU in MB."""
    virtual_devices: int | None = setting(None, at_least=0, at_most=64, flag="--virtual-devices", metavar="N")
    """Split the device into N virtual devices, to test the two-device pipeline."""


@dataclass
class StartOptions(DeviceOptions):
    """All options that apply only to one start of a run, and are not saved with the run."""

    config: str | None = setting(None, flag="--config", metavar="FILE", group="training")
    """YAML file or recipe in configs/; other flags override it."""
    resume: bool = setting(False, flag="--resume", rival="begin", group="training")
    """Resume the run in --checkpoint-dir; fail if there is none (default: resume it, or start a new run)."""
    device_plan: str | None = setting(None, one_of=("auto",), flag="--device-plan")
    """`auto` times GPT steps on one device, on two and, if there are more, on all, and selects the fastest."""
    download: bool = setting(False, flag="--download-ljspeech", group="data")
    """Download LJSpeech to --train-data if it is missing."""

    @property
    def devices(self) -> dict[str, Any]:
        """Device options as keyword arguments of `early_gpu_configuration`."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(DeviceOptions)}


@dataclass(frozen=True)
class Flag:
    """A command-line flag and the settings that it changes."""

    names: tuple[str, ...]
    field: dataclasses.Field
    settings: tuple[str, ...]
    """Dotted names of the settings that the flag changes (see `EVERY_STAGE`); empty if the flag is a start option."""
    help: str
    group: str
    """Heading above the flag in `--help`."""
    kind: type
    """Type of the value, or of each value in a list."""
    takes_list: bool
    """Whether the value is a comma-separated list."""
    repeats: bool
    """Whether the flag can be repeated."""
    choices: list[str]
    """Allowed values; empty if the value is a list, or if any value is allowed."""
    turns_off: bool = False
    """Whether the flag sets the setting to False, as `--disable-static-shapes` does."""

    @property
    def keywords(self) -> list[str]:
        """Argument names in Python, one for each spelling of the flag, such as `max_steps` for `--max-steps`."""
        return [name.removeprefix("--").replace("-", "_") for name in self.names]

    def plain(self, value: Any) -> Any:
        """Converts a value to the setting's type, for example "1,2" to `(1, 2)`. Invalid items raise `ValueError`."""
        if self.turns_off:
            return not value
        if self.takes_list and isinstance(value, str):
            return tuple(self.kind(one.strip()) for one in value.split(","))
        return [value] if self.repeats and isinstance(value, (str, os.PathLike)) else value


@functools.cache
def field_docs(cls: type[Settings]) -> dict[str, str]:
    """Returns the docstrings of the fields of a settings class, by field name."""
    found = {}
    for base in reversed([one for one in cls.__mro__ if issubclass(one, Settings)]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except OSError:  # defined in an interactive session
            continue
        for line, after in zip(definition.body, definition.body[1:]):
            if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[line.target.id] = " ".join(after.value.value.split())
    return found


def all_flags() -> list[Flag]:
    """Returns all flags of `myxtts train`."""
    found: dict[str, Flag] = {}
    sections = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig, EVERY_STAGE: StageConfig}
    own = {f"training.{name}": entry.settings for name, entry in STAGES.items()}
    for section, cls in {**sections, **own, None: StartOptions}.items():
        for one in dataclasses.fields(cls):
            if not one.metadata.get("flag") or (section in own and hasattr(StageConfig, one.name)):
                continue
            places = () if section is None else (f"{section}.{one.name}",)
            names, group = tuple(one.metadata["flag"].split(",")), one.metadata["group"] or cls.group
            if before := found.get(names[0]):
                found[names[0]] = dataclasses.replace(before, settings=(*before.settings, *places))
                continue
            text = field_docs(cls).get(one.name, "").rstrip(".")
            # For start options, argparse itself adds the default.
            if places and one.default not in (None, ()) and one.default is not False and "default" not in text:
                text += f" (default: {','.join(one.default) if isinstance(one.default, tuple) else one.default})"
            kind, takes_list = plain_type(one.type), (one.metadata["metavar"] or "").endswith(",…")
            is_tuple = get_origin(kind) is tuple
            known = one.metadata["rule"].get("one_of", ())
            choices = [] if takes_list else [*(known() if callable(known) else known)]
            kind = get_args(kind)[0] if is_tuple else kind
            flag = Flag(names, one, places, text, group, kind, takes_list, is_tuple and not takes_list, choices)
            found[names[0]] = flag
            if off := one.metadata["off"]:
                text = f"Turn {names[0]} off (default)"
                found[off] = dataclasses.replace(flag, names=(off,), help=text, turns_off=True)
    return list(found.values())


def start_options(named: dict[str, Any]) -> StartOptions:
    """Moves the fields of `StartOptions` from `named`, the arguments of `myxtts.train`, to a new `StartOptions`."""
    keywords = {flag.field.name: flag.keywords[0] for flag in all_flags() if not flag.settings}
    given = {name: named.pop(keyword, None) for name, keyword in keywords.items()}
    return StartOptions(**{name: value for name, value in given.items() if value is not None})


def with_named(values: dict, named: Mapping[str, Any]) -> dict:
    """Returns the nested settings `values`, overridden by `named`, the arguments of `myxtts.train`.

    Ignores arguments that are None. Raises `ConfigError` for an unknown argument.
    """
    flags = {keyword: flag for flag in all_flags() if flag.settings for keyword in flag.keywords}
    values = merge(values, {"training": {"automatic_batch_size": False}}) if named.get("batch_size") else values
    for name, value in named.items():
        if name not in flags:
            raise ConfigError(f"myxtts.train has no argument {name}.{nearest(name, [*flags, 'config', 'quiet'])}")
        for place in flags[name].settings if value is not None else ():
            plain = flags[name].plain(value)
            if name == "batch_size" and plain == AUTOMATIC:
                place, plain = "training.automatic_batch_size", True
            section, _, rest = place.partition(".")
            places = [f"training.{stage}.{rest}" for stage in STAGES] if section == EVERY_STAGE else [place]
            for dotted in places:
                nested = plain
                for part in reversed(dotted.split(".")):
                    nested = {part: nested}
                values = merge(values, nested)
    return values

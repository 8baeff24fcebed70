"""What a run can be asked for by name: flags of the command line, the same names with underscores from Python.

All comes from the fields of the settings classes: a field made by `setting(..., flag="--name")` is a flag of
`myxtts train` and an argument of `myxtts.train`, and its docstring is the help."""

import ast
import dataclasses
import functools
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args, get_origin

from myxtts.config.checks import ConfigError
from myxtts.config.data import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB, DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.settings import Settings, merge, nearest, setting
from myxtts.config.stages import STAGES, StageConfig
from myxtts.config.training import TrainingConfig

EVERY_STAGE = "stage"
"""Section of the settings that every stage has."""
AUTOMATIC = "auto"
"""Value of `--batch-size` that turns on `training.automatic_batch_size`."""


@dataclass
class StartOptions(Settings):
    """How a run is started: what no run keeps. All but the first three are arguments of `runs.setup.set_up`."""

    config: str | None = setting(None, flag="--config", metavar="FILE")
    """YAML file, yours or one of configs/, which come with the package; flags given here win over it."""
    resume: bool = setting(False, flag="--resume", rival="begin")
    """Only resume: an error where --checkpoint-dir holds no run. The default resumes or starts."""
    device_plan: str | None = setting(None, one_of=("auto",), flag="--device-plan", group="devices")
    """Measure the ways to use the devices present and take the fastest."""
    download: bool = setting(False, flag="--download-ljspeech", group="data")
    """Fetch LJSpeech into --train-data when it is missing."""
    model_gpus: tuple[int, ...] | None = setting(None, flag="--model-gpus", metavar="I,J,…", group="devices")
    """Several training GPUs, mirrored."""
    memory_isolation: bool = setting(False, flag="--enable-memory-isolation", group="devices")
    """A hard memory limit for each GPU."""
    data_gpu_memory: int = setting(DATA_GPU_MEMORY_MB, flag="--data-gpu-memory", group="devices")
    """Limit of the data GPU in MB."""
    model_gpu_memory: int = setting(MODEL_GPU_MEMORY_MB, flag="--model-gpu-memory", group="devices")
    """Limit of the model GPU in MB."""
    virtual_devices: int | None = setting(None, flag="--virtual-devices", group="devices")
    """Try the two-device pipeline on this many virtual devices."""


@dataclass(frozen=True)
class Flag:
    """A flag, and what it sets."""

    names: tuple[str, ...]
    field: dataclasses.Field
    settings: tuple[str, ...]
    """Dotted names, `stage.…` for a setting of every stage; () for one of `StartOptions`."""
    help: str
    group: str
    """Its heading in `--help`."""
    turns_off: bool = False
    """Whether it is the opposite of the field's own flag."""

    @property
    def keywords(self) -> list[str]:
        """Its names in Python."""
        return [name.removeprefix("--").replace("-", "_") for name in self.names]

    @property
    def choices(self) -> list[str]:
        """Its values where they are few, else empty."""
        known = self.field.metadata["rule"].get("one_of", ())
        return [] if self.takes_list else [*(known() if callable(known) else known)]

    @property
    def kind(self) -> type:
        """Type of its value, or of each value where it takes several."""
        kind = self.field.type
        kind = next(part for part in get_args(kind) if part is not NoneType) if NoneType in get_args(kind) else kind
        return get_args(kind)[0] if get_origin(kind) is tuple else kind

    @property
    def takes_list(self) -> bool:
        """Whether its value is a list with commas."""
        return (self.field.metadata["metavar"] or "").endswith(",…")

    @property
    def repeats(self) -> bool:
        """Whether it can be given several times."""
        return not self.takes_list and "tuple" in str(self.field.type)

    def plain(self, value: Any) -> Any:
        """A value from Python or the command line, as YAML would have it.

        Raises:
            ValueError: A list of numbers holds something else.
        """
        if self.kind is bool and self.turns_off:
            return not value
        if self.takes_list and isinstance(value, str):
            return tuple(self.kind(one.strip()) for one in value.split(","))
        if self.repeats and isinstance(value, (str, os.PathLike)):
            value = [value]
        if isinstance(value, (list, tuple)):
            return [os.fspath(one) if isinstance(one, os.PathLike) else one for one in value]
        return os.fspath(value) if isinstance(value, os.PathLike) else value


@functools.cache
def field_docs(cls: type[Settings]) -> dict[str, str]:
    """The docstrings under the fields of a settings class, by name."""
    found = {}
    for base in reversed([one for one in cls.__mro__ if issubclass(one, Settings)]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except OSError:  # typed in at a prompt
            continue
        for line, after in zip(definition.body, definition.body[1:]):
            if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[line.target.id] = " ".join(after.value.value.split())
    return found


def all_flags() -> list[Flag]:
    """The flags of a run, each once."""
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
            text, default = field_docs(cls).get(one.name, ""), one.default
            if default not in (None, ()) and default is not False and "default" not in text:
                shown = ",".join(default) if isinstance(default, tuple) else default
                text = f"{text.rstrip('.')} (default: {shown})"
            found[names[0]] = Flag(names, one, places, text.rstrip("."), group)
            if off := one.metadata["off"]:
                found[off] = Flag((off,), one, places, "The opposite, which is the default", group, turns_off=True)
    return list(found.values())


def with_named(values: dict, named: Mapping[str, Any]) -> dict:
    """Nested mappings of settings with values laid over them by the names of flags, for `config_from_dict`.

    Args:
        values: As `read_yaml` and `XTTSConfig.to_dict` give them.
        named: Values by the names of flags with underscores, as `myxtts.train` takes them: `{"max_steps": 9}`. None
            leaves a setting as it is.

    Raises:
        ConfigError: There is no such name.
    """
    flags = {keyword: flag for flag in all_flags() if flag.settings for keyword in flag.keywords}
    for name, value in named.items():
        if name not in flags:
            raise ConfigError(f"myxtts.train has no argument {name}.{nearest(name, flags)}")
        for place in flags[name].settings if value is not None else ():
            plain = flags[name].plain(value)
            if name == "batch_size" and plain == AUTOMATIC:
                place, plain = "training.automatic_batch_size", True
            section, _, rest = place.partition(".")
            for stage in STAGES if section == EVERY_STAGE else (None,):
                names = (f"training.{stage}.{rest}" if stage else place).split(".")
                values = merge(values, functools.reduce(lambda value, name: {name: value}, reversed(names), plain))
    return values

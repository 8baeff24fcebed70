"""`XTTSConfig`, all settings of a run, and functions that load it from YAML files, recipes and dictionaries."""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Self

from myxtts.config.checks import UNPRINTABLE, ConfigError, brief, printable, read_bounded, require
from myxtts.config.data import DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.config.settings import REMOVED, Default, Settings, merge, nearest, setting, typed_value
from myxtts.config.stages import STAGES, StageConfig
from myxtts.config.training import TrainingConfig


@dataclass
class SamplingConfig(Settings):
    """Sampling parameters for audio codes at synthesis, stored with the model."""

    section = "sampling"

    temperature: float = setting(0.75, at_least=0, flag="--temperature", hint="Try 0.75.")
    """Sampling temperature; 0 is greedy."""
    top_k: int = setting(50, at_least=0, flag="--top-k", hint="Try 50.")
    """Top-k sampling; 0 keeps all codes."""
    top_p: float = setting(0.85, at_least=1e-6, at_most=1, flag="--top-p", hint="Try 0.85.")
    """Nucleus sampling; 1 keeps all codes."""
    repetition_penalty: float = setting(1.2, at_least=1e-6, flag="--repetition-penalty", hint="1.0 turns it off.")
    """Repetition penalty: divides positive and multiplies negative logits of sampled codes (XTTS v2: 5.0)."""
    reference_seconds: float = setting(30.0, at_least=0.05, at_most=3600)
    """Maximum length of the reference audio in seconds; the rest is ignored."""
    recording_seconds: float | None = setting(None, at_least=0.05, at_most=3600)
    """Maximum length in seconds of each recording of the reference audio (default: `reference_seconds`)."""
    reference_chunk_seconds: float | None = setting(None, at_least=0.05, at_most=3600)
    """Length in seconds of the reference chunks whose latents are averaged (XTTS v2: 4; default: the longest
    conditioning clip in training)."""

    def changed(self, values: Mapping[str, Any], beside: Collection[str] = ()) -> Self:
        """Returns a copy with the new `values`; a value of None changes nothing. Raises `ConfigError` for an unknown
        name. The message suggests a similar name, from the settings or from `beside`, the caller's other arguments."""
        for name in values.keys() - vars(self).keys():
            hint = nearest("voice" if name == "speaker" and beside else name, (*beside, *vars(self)))
            raise ConfigError(f"{printable(name)} is not {'an argument' if beside else 'a setting of sampling'}.{hint}")
        return dataclasses.replace(self, **{name: value for name, value in values.items() if value is not None})


@dataclass
class XTTSConfig(Settings):
    """All settings of a run: model, data, training and sampling."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Shapes of the model."""
    data: DataConfig = field(default_factory=DataConfig)
    """Data sets, batches and devices."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training loop and stages."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling parameters at synthesis."""

    def __post_init__(self):
        for one in fields(self):
            if isinstance(values := getattr(self, one.name), Mapping):
                setattr(self, one.name, one.default_factory(**values))
        data, most_text, codes = self.data, self.model.max_text_tokens, self.model.max_codes
        hint, rule = "Lower it or raise model.max_text_tokens.", f"at most model.max_text_tokens ({most_text})"
        data.check("max_text_length", data.max_text_length <= most_text, rule, hint)
        hint = "Lower it or raise model.max_audio_tokens."
        if data.max_mel_frames is None:
            rule = f"at most {codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE:.1f} s ({codes} codes) for this model"
            data.check("max_seconds", self.max_samples // CODE_STRIDE_SAMPLES + 1 <= codes, rule, hint)
        else:
            most, shortest = MEL_FRAMES_PER_CODE * codes, data.min_seconds * MODEL_SAMPLE_RATE
            data.check("max_mel_frames", data.max_mel_frames <= most, f"at most {most} for this model", hint)
            data.check("max_mel_frames", self.max_samples > shortest, "longer than data.min_seconds", "Raise it.")

    @property
    def max_samples(self) -> int:
        """Maximum clip length in samples at 22 050 Hz: `data.max_seconds` or, if shorter, `data.max_mel_frames`."""
        longest = int(self.data.max_seconds * MODEL_SAMPLE_RATE)
        frames = self.data.max_mel_frames
        return longest if frames is None else min(longest, frames * CODE_STRIDE_SAMPLES // MEL_FRAMES_PER_CODE)

    def stage(self, name: str) -> StageConfig:
        """Returns the settings of a stage. A batch size or learning rate of None is replaced by its default."""
        stage, rates = self.training.stages[name], STAGES[name].learning_rates
        rate = stage.learning_rate or rates[self.model.size]
        return dataclasses.replace(stage, batch_size=stage.batch_size or self.data.batch_size, learning_rate=rate)

    @classmethod
    def from_yaml(cls, path: str | PathLike) -> Self:
        """Loads a YAML file or a bundled recipe. Raises `ConfigError` if it cannot be read or a setting is invalid."""
        return config_from_dict(read_yaml(find_recipe(path)))

    def to_yaml(self, path: str | PathLike) -> None:
        """Writes all settings to a YAML file, which `from_yaml` and `--config` can load."""
        import yaml

        Path(path).write_text(yaml.safe_dump(json.loads(json.dumps(self.to_dict())), sort_keys=False), encoding="utf-8")

    def to_dict(self) -> dict:
        """Returns all settings as nested dictionaries, the inverse of `config_from_dict`."""
        values = dataclasses.asdict(self)
        values["training"] |= values["training"].pop("stages")
        return values

    def recipe(self) -> dict[str, Any]:
        """Returns all settings that affect the model or its speech, as `{dotted name: JSON value}`."""
        found = {}
        for section, values in json.loads(json.dumps(self.to_dict())).items():
            known = getattr(self, section).__dataclass_fields__
            for name, value in values.items():
                if name not in known:  # settings of a stage, all of which affect the model
                    found |= {f"{section}.{name}.{own}": one for own, one in value.items()}
                elif not known[name].metadata.get("of_run"):
                    found[f"{section}.{name}"] = value
        return found


_PACKAGE = Path(__file__).resolve().parents[1]
RECIPES: Path = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "configs"
"""Folder of the recipes, ready-made YAML files: `myxtts/recipes/` if installed, `configs/` in a Git checkout."""
SAMPLE = "sample.yaml"
"""Recipe for a run that is started without training data and without a configuration file."""
_MAX_FILE_BYTES = 64 * 2**10
_MAX_FILES = 100
_MAX_VALUES = 10_000
"""Limits for YAML: bytes per file, number of files, and values per file, each about 100 times what recipes need."""
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""Exceptions other than `YAMLError` that an invalid YAML file can cause, for example with the value `!!int ""`."""


def recipe_names() -> list[str]:
    """Returns the sorted file names of the recipes (bundled YAML files with settings)."""
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def find_recipe(path: str | os.PathLike) -> Path:
    """Returns `path` or, if it does not exist but names a recipe (a bundled YAML file), the path of the recipe."""
    require("://" not in str(path), "--config", "a file on this machine", path)
    path = Path(path)
    is_recipe = path.name in recipe_names() and path.parent.as_posix() in (".", "configs")
    return RECIPES / path.name if is_recipe and not path.exists() else path


def config_from_dict(values: dict) -> XTTSConfig:
    """Builds an `XTTSConfig` from nested dictionaries. Raises `ConfigError` for an unknown setting or invalid value.

    A setting that was removed (see `REMOVED`) is ignored if it has its former default value. Another value is an error.
    """
    sections = {one.name: one.default_factory for one in fields(XTTSConfig)}
    values = _mapping(values, "The configuration")
    for name in values:
        if name not in sections:
            raise ConfigError(f"{printable(name)} is not a setting.{nearest(name, sections)}")
    return XTTSConfig(**{name: cls(**_typed(cls, values.get(name) or {}, name)) for name, cls in sections.items()})


def _mapping(values, where):
    """Returns `values` with keys as text. If it is not a dictionary, raises `ConfigError` about the section `where`."""
    require(isinstance(values, dict), where, "a mapping of settings", brief(values))
    return {name if isinstance(name, str) else brief(name): value for name, value in values.items()}


def _typed(cls, values, where):
    """Returns `values`, each converted to the type of its field in `cls`. Error messages name `where`, the section."""
    kinds = {one.name: one.type for one in fields(cls) if one.name != "stages"}
    stages = STAGES if cls is TrainingConfig else {}
    typed = {}
    for name, value in _mapping(values, where).items():
        setting = f"{where}.{printable(name)}"
        if name in stages:
            typed[name] = _typed(stages[name].settings, value or {}, setting)
        elif name in kinds:
            typed[name] = typed_value(kinds[name], value, setting)
        elif setting not in REMOVED:
            raise ConfigError(f"{setting} is not a setting.{cls.hint_for(name)}")
        elif value != REMOVED[setting][0]:
            raise ConfigError(f"{setting} was removed. {REMOVED[setting][1]} Received: {brief(value)}.")
    return typed


def _parsed(text):
    """Parses YAML. Raises `YAMLError` for more than `_MAX_VALUES` values; an alias counts each time that it is used."""
    import yaml

    if (root := yaml.compose(text, yaml.SafeLoader)) is None:
        return {}
    waiting, count = [root], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            waiting += itertools.chain(*node.value)  # keys and values
            names = Counter(str(key.value) for key, _ in node.value)
            if twice := [key for key, _ in node.value if names[str(key.value)] > 1]:
                raise yaml.MarkedYAMLError(problem="a name is given twice", problem_mark=twice[-1].start_mark)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        if count + len(waiting) > _MAX_VALUES:
            raise yaml.YAMLError(f"it has more than {_MAX_VALUES} values with its aliases expanded")
    return yaml.SafeLoader("").construct_document(root)


def read_yaml(path: str | Path) -> dict:
    """Reads a YAML file as nested dictionaries, without settings that equal an adaptable default (see
    `without_adapted`). The key `include` lists further files; the values of this file override theirs.

    Raises `ConfigError` if a file is missing or invalid, includes itself, or is outside the folder of `path`."""
    path = Path(path)
    return without_adapted(_read_yaml(path, os.path.realpath(path.parent), (), itertools.count(1)))


def without_adapted(values: dict) -> dict:
    """Removes settings in `values` that equal an adaptable default (see `Default`). Returns the same dictionary."""
    stages = values.get("training") if isinstance(values.get("training"), dict) else {}
    sections = [(DataConfig, values.get("data"))] + [(one.settings, stages.get(one.name)) for one in STAGES.values()]
    for cls, own in sections:
        for one in fields(cls) if isinstance(own, dict) else ():
            if isinstance(one.default, Default) and type(own.get(one.name)) is int and own[one.name] == one.default:
                del own[one.name]
    return values


def _read_yaml(path, root, above, files):
    if (resolved := os.path.realpath(path)) in above:
        raise ConfigError(f"{path} includes itself, through {' -> '.join(map(str, above))}.")
    from yaml import YAMLError

    if next(files) > _MAX_FILES:
        raise ConfigError(f"--config must include at most {_MAX_FILES} files. {path} is one too many.")
    try:
        values = _parsed(read_bounded(path, _MAX_FILE_BYTES)) or {}
    except FileNotFoundError:
        names = ", ".join(recipe_names())
        raise ConfigError(f"--config must be a YAML file. {path} does not exist. The recipes are {names}.") from None
    except (*_UNREADABLE, YAMLError) as error:
        mark = getattr(error, "problem_mark", None)  # `str(error)` quotes the file, which may be hostile
        reason = f"{error.problem} in line {mark.line + 1}" if mark else " ".join(str(error).split())
        raise ConfigError(f"--config must be a YAML file. {path} cannot be read: {reason:.300}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must contain a mapping of settings. Received: {type(values).__name__}.")
    included = values.pop("include", [])
    included = [included] if isinstance(included, str) else included
    are_names = isinstance(included, list) and all(isinstance(name, str) for name in included)
    require(are_names, f"include: in {path}", "a file name or a list of them", brief(included))
    merged = {}
    for name in included:
        is_below = not UNPRINTABLE.search(name) and Path(os.path.realpath(path.parent / name)).is_relative_to(root)
        require(is_below, f"include: in {path}", f"in {root} or below", brief(name), "Copy it there.")
        # A copied recipe can still include other recipes by their names.
        is_own = (path.parent / name).exists() or name not in recipe_names()
        place, home = (path.parent / name, root) if is_own else (RECIPES / name, os.path.realpath(RECIPES))
        merged = merge(merged, _read_yaml(place, home, (*above, resolved), files))
    return merge(merged, values)

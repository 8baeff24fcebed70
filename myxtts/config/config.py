"""The settings of a whole run: one dataclass per concern, each number with one home."""

import dataclasses
import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Self

from myxtts.config.checks import ConfigError, UserError, require  # noqa: F401  users import the errors from here
from myxtts.config.data import DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.config.sampling import SamplingConfig
from myxtts.config.settings import Settings, flat, run_settings
from myxtts.config.stages import StageConfig, settle_stage_config
from myxtts.config.training import TrainingConfig


@dataclass
class XTTSConfig(Settings):
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Shapes."""
    data: DataConfig = field(default_factory=DataConfig)
    """Recordings and devices."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The loop."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Synthesis defaults."""

    def __post_init__(self):
        data, most_text, codes = self.data, self.model.max_text_tokens, self.model.max_codes
        rule, hint = f"at most model.max_text_tokens ({most_text})", "Lower it or raise model.max_text_tokens."
        name, length = "data.max_text_length (--max-text-length)", data.max_text_length
        require(length <= most_text, name, rule, length, hint)
        hint, frames = "Lower it or raise model.max_audio_tokens.", data.max_mel_frames
        if frames is None:
            name, seconds = "data.max_seconds (--max-seconds)", codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
            fits = self.max_samples // CODE_STRIDE_SAMPLES + 1 <= codes
            require(fits, name, f"at most {seconds:.1f} s ({codes} codes) for this model", data.max_seconds, hint)
        else:
            name, most = "data.max_mel_frames (--max-mel-frames)", MEL_FRAMES_PER_CODE * codes
            require(frames <= most, name, f"at most {most} for this model", frames, hint)
            is_long = self.max_samples > data.min_seconds * MODEL_SAMPLE_RATE
            require(is_long, name, "longer than data.min_seconds", frames, "Raise it.")

    @property
    def max_samples(self) -> int:
        """Longest clip in samples at 22 050 Hz."""
        longest = int(self.data.max_seconds * MODEL_SAMPLE_RATE)
        frames = self.data.max_mel_frames
        return longest if frames is None else min(longest, frames * CODE_STRIDE_SAMPLES // MEL_FRAMES_PER_CODE)

    def stage(self, name: str) -> StageConfig:
        """The `StageConfig` of `name`, with its defaults filled in from the size and the data settings."""
        return settle_stage_config(name, self.training.stages[name], self.data.batch_size, self.model.size)

    @classmethod
    def from_yaml(cls, path: str | PathLike) -> Self:
        """The settings in a YAML file or recipe, and in those that it includes; the rest have their defaults.

        Raises:
            ConfigError: The file cannot be read, has an unknown setting or one that breaks a rule.
        """
        from myxtts.config.loading import config_from_dict, read_yaml  # not above: it imports this module
        from myxtts.config.recipes import find_recipe

        return config_from_dict(read_yaml(find_recipe(path)))

    def to_yaml(self, path: str | PathLike) -> None:
        """Writes all settings as YAML, for `from_yaml` and `--config`."""
        import yaml

        text = yaml.safe_dump(json.loads(json.dumps(self.to_dict())), sort_keys=False)
        Path(path).write_text(text, encoding="utf-8")

    def to_dict(self) -> dict:
        """Nested mappings of JSON types, as `config.loading.config_from_dict` and YAML files have them."""
        values = dataclasses.asdict(self)
        values["training"] |= values["training"].pop("stages")
        return values

    def recipe(self) -> dict[str, Any]:
        """The settings that change what is learned or how it speaks, by dotted name, as JSON values."""
        of_run, values = run_settings(XTTSConfig), flat(json.loads(json.dumps(self.to_dict())))
        return {name: value for name, value in values.items() if name not in of_run}

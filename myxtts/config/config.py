"""`XTTSConfig`: all settings of a run."""

import dataclasses
import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Self

from myxtts.config.checks import ConfigError, UserError  # noqa: F401  users import the errors from here
from myxtts.config.data import DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.config.sampling import SamplingConfig
from myxtts.config.settings import Settings, flat, run_settings
from myxtts.config.stages import STAGES, StageConfig
from myxtts.config.training import TrainingConfig


@dataclass
class XTTSConfig(Settings):
    """All settings of a run: model, data, training and sampling."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Model shapes."""
    data: DataConfig = field(default_factory=DataConfig)
    """Data sets, batches and devices."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training loop and stages."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling at synthesis."""

    def __post_init__(self):
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
        """Longest clip in samples at 22 050 Hz."""
        longest = int(self.data.max_seconds * MODEL_SAMPLE_RATE)
        frames = self.data.max_mel_frames
        return longest if frames is None else min(longest, frames * CODE_STRIDE_SAMPLES // MEL_FRAMES_PER_CODE)

    def stage(self, name: str) -> StageConfig:
        """Returns the settings of a stage, with batch size and learning rate filled in."""
        stage, rates = self.training.stages[name], STAGES[name].learning_rates
        rate = stage.learning_rate or rates[self.model.size]
        return dataclasses.replace(stage, batch_size=stage.batch_size or self.data.batch_size, learning_rate=rate)

    @classmethod
    def from_yaml(cls, path: str | PathLike) -> Self:
        """Loads a YAML file or a recipe, with the files that it includes.

        Raises:
            ConfigError: The file cannot be read, or has an unknown setting or one that breaks a rule.
        """
        from myxtts.config.loading import config_from_dict, find_recipe, read_yaml  # it imports this module

        return config_from_dict(read_yaml(find_recipe(path)))

    def to_yaml(self, path: str | PathLike) -> None:
        """Writes all settings as YAML, for `from_yaml` and `--config`."""
        import yaml

        text = yaml.safe_dump(json.loads(json.dumps(self.to_dict())), sort_keys=False)
        Path(path).write_text(text, encoding="utf-8")

    def to_dict(self) -> dict:
        """Returns nested dictionaries, for `config.loading.config_from_dict`."""
        values = dataclasses.asdict(self)
        values["training"] |= values["training"].pop("stages")
        return values

    def recipe(self) -> dict[str, Any]:
        """Returns the settings that affect the trained model or its speech, by dotted name, as JSON values."""
        of_run, values = run_settings(XTTSConfig), flat(json.loads(json.dumps(self.to_dict())))
        return {name: value for name, value in values.items() if name not in of_run}

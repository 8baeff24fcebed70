"""How codes are drawn at synthesis."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from myxtts.config.checks import ConfigError, printable
from myxtts.config.settings import Settings, nearest, setting


@dataclass
class SamplingConfig(Settings):
    """How codes are drawn at synthesis. Travels with the checkpoint."""

    section = "sampling"

    temperature: float = setting(0.75, at_least=0, flag="--temperature", hint="Try 0.75.")
    """Divides the scores; 0 takes the best code every time."""
    top_k: int = setting(50, at_least=0, flag="--top-k", hint="Try 50.")
    """Only this many best codes can be drawn; 0 keeps all."""
    top_p: float = setting(0.85, above=0, at_most=1, flag="--top-p", hint="Try 0.85.")
    """Nucleus: the smallest set of codes whose probabilities reach this sum; 1 keeps all."""
    repetition_penalty: float = setting(1.2, above=0, flag="--repetition-penalty", hint="1.0 turns it off.")
    """Divides (or, below zero, multiplies) the scores of codes already drawn (released XTTS v2: 5.0)."""
    reference_seconds: float = setting(30.0, above=0, at_most=3600)
    """Most of the reference recordings that is listened to."""
    reference_chunk_seconds: float | None = setting(None, above=0, at_most=3600)
    """Length of the pieces whose latents are averaged (released XTTS v2: 4); None takes the longest conditioning clip
    of training."""

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values by name.

        Raises:
            ConfigError: There is no such setting, or a value breaks its rule.
        """
        for name in values.keys() - vars(self).keys():
            raise ConfigError(f"{printable(name)} is not a setting of sampling.{nearest(name, vars(self))}")
        return dataclasses.replace(self, **{name: value for name, value in values.items() if value is not None})

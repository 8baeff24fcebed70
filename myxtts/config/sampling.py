"""`SamplingConfig`: sampling of audio codes at synthesis."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from myxtts.config.checks import ConfigError, printable
from myxtts.config.settings import Settings, nearest, setting


@dataclass
class SamplingConfig(Settings):
    """Sampling of audio codes at synthesis, stored with the model."""

    section = "sampling"

    temperature: float = setting(0.75, at_least=0, flag="--temperature", hint="Try 0.75.")
    """Sampling temperature; 0 is greedy."""
    top_k: int = setting(50, at_least=0, flag="--top-k", hint="Try 50.")
    """Top-k sampling; 0 keeps all codes."""
    top_p: float = setting(0.85, above=0, at_most=1, flag="--top-p", hint="Try 0.85.")
    """Nucleus sampling; 1 keeps all codes."""
    repetition_penalty: float = setting(1.2, above=0, flag="--repetition-penalty", hint="1.0 turns it off.")
    """Divides positive and multiplies negative scores of codes already sampled (XTTS v2: 5.0)."""
    reference_seconds: float = setting(30.0, above=0, at_most=3600)
    """Maximum length of the reference audio in seconds; the rest is ignored."""
    reference_chunk_seconds: float | None = setting(None, above=0, at_most=3600)
    """Length in seconds of the reference chunks whose latents are averaged (XTTS v2: 4; default: the longest
    conditioning clip in training)."""

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with other values, by name; None keeps a value.

        Raises:
            ConfigError: A name is unknown, or a value breaks its rule.
        """
        for name in values.keys() - vars(self).keys():
            raise ConfigError(f"{printable(name)} is not a setting of sampling.{nearest(name, vars(self))}")
        return dataclasses.replace(self, **{name: value for name, value in values.items() if value is not None})

"""The clip that a voice is taken from: how long it is, and how it is filled up to its fixed length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE


@dataclass(frozen=True)
class ConditioningRule:
    """How the clip that a voice is taken from is chosen, and filled up to `max_samples`."""

    min_samples: int
    max_samples: int
    source: str
    """`speaker` or `clip`, see `DataConfig.conditioning_source`."""
    padding: str
    """`repeat` or `zeros`."""
    grid: int = 1
    """Where it begins, and its length where it does not fill its room, are multiples of so many samples."""

    def whole(self, length: int) -> int:
        """As many of `length` samples as the grid allows; all where they are fewer than it, or fill the room."""
        return length if length >= self.max_samples or length < self.grid else length // self.grid * self.grid


def fill(samples: np.ndarray, length: int, padding: str) -> np.ndarray:
    """Brings `samples` to `length` by repeating them or by zeros at the end."""
    return np.resize(samples, length) if padding == "repeat" else np.pad(samples, (0, length - len(samples)))


def conditioning_seconds(config: DataConfig, clips: Sequence) -> tuple[float, float]:
    """`DataConfig.conditioning_seconds`, shortened where the `Clip`s are shorter and would only be repeated."""
    # A corpus of half-second clips would otherwise spend most of the conditioning encoder's work on repetitions.
    if config.conditioning_padding != "repeat":
        return config.conditioning_seconds
    longest = np.percentile([clip.num_samples for clip in clips], 95) / MODEL_SAMPLE_RATE
    low, high = config.conditioning_seconds
    high = max(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, min(high, float(longest)))
    return min(low, high), high

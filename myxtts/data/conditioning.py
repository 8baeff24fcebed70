"""The clip that a voice is taken from: how long it is, how it fills its room, and what of its mel is known before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.audio.mel import CONDITIONING_MEL
from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE


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

    @property
    def num_frames(self) -> int:
        """Of the mel of a clip that fills its room."""
        return CONDITIONING_MEL.num_frames(self.max_samples)


def fill(samples: np.ndarray, length: int, padding: str) -> np.ndarray:
    """Brings `samples` to `length` by repeating them or by zeros at the end."""
    return np.resize(samples, length) if padding == "repeat" else np.pad(samples, (0, length - len(samples)))


def known_frames(start: int, length: int, rule: ConditioningRule) -> np.ndarray:
    """Where in the mel of a whole recording the frames lie of `length` of its samples from `start` on, filled up.

    Returns:
        `(F,)` int, frames of the recording; -1 for those that it does not have, as their window reaches over an end
        of the clip or a seam of its repetitions, or is off the recording's frames.
    """
    half, at = CONDITIONING_MEL.win_length // 2, np.arange(rule.num_frames) * MEL_HOP_SAMPLES
    place = at % length if rule.padding == "repeat" else at
    is_whole = (place >= half) & (place + half <= length) & (at + half <= rule.max_samples)
    place = place + start
    return np.where(is_whole & (place % MEL_HOP_SAMPLES == 0), place // MEL_HOP_SAMPLES, -1)


def windows(samples: np.ndarray, start: int, length: int, rule: ConditioningRule, frames: np.ndarray) -> np.ndarray:
    """The samples that frames of the mel are of: `(K, win_length)` for `frames`, `(K,)`; the rest as `known_frames`.

    The clip is filled up and mirrored at its ends, as `fill` and `MelSpectrogram` do it.
    """
    half, last = CONDITIONING_MEL.win_length // 2, rule.max_samples - 1
    at = np.abs(frames[:, None] * MEL_HOP_SAMPLES + np.arange(-half, half))
    at = last - np.abs(last - at)
    if rule.padding == "repeat":
        return samples[start + at % length]
    return np.where(at < length, samples[start + np.minimum(at, length - 1)], 0)


def conditioning_seconds(config: DataConfig, clips: Sequence) -> tuple[float, float]:
    """`DataConfig.conditioning_seconds`, shortened where the `Clip`s are shorter and would only be repeated."""
    # A corpus of half-second clips would otherwise spend most of the conditioning encoder's work on repetitions.
    if config.conditioning_padding != "repeat":
        return config.conditioning_seconds
    longest = np.percentile([clip.num_samples for clip in clips], 95) / MODEL_SAMPLE_RATE
    low, high = config.conditioning_seconds
    high = max(CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE, min(high, float(longest)))
    return min(low, high), high

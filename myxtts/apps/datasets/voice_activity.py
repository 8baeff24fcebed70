"""Where somebody speaks: stretches of speech between pauses, from a survey's levels and a model's probabilities."""

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import binary_dilation, label, uniform_filter1d

from myxtts.apps.datasets.survey import Survey

MIN_PAUSE_SECONDS = 0.2
"""Shorter silences may be the closure of a plosive within a word."""
MIN_SPEECH_SECONDS = 0.08
"""Anything shorter that stands alone is a click."""

_WINDOW_SECONDS, _WINDOW_STEP_SECONDS = 30.0, 1.0
_FLOOR_PERCENTILE, _SPEECH_PERCENTILE = 10, 95
_OVER_FLOOR_DB, _SHARE_OVER_FLOOR = 12.0, 0.45
_UNDER_SPEECH_DB = 38.0
_HYSTERESIS_DB = 4.0
_LEAST_RANGE_DB = 5.0
_MODEL_ON, _MODEL_OFF = 0.5, 0.3
_MODEL_EDGE_SECONDS = 0.15  # a window of Silero's lasts 32 ms, and it answers two or three windows late


@dataclass(frozen=True)
class Stretch:
    """Speech without a pause, in frames: `[start, end)`."""

    start: int
    end: int


def find_speech(survey: Survey) -> np.ndarray:
    """Which frames hold speech, `(F,)` bool.

    Levels count against a floor that follows the recording: a frame begins speech 12 dB above the 10th percentile of 30
    s around it, less where speech hardly stands out, and never more than 38 dB below the loudest, so that the
    room behind digital silence is not taken for speech. It ends 4 dB lower. Where a model's probabilities are there,
    they decide what is speech, and levels where it begins and ends.
    """
    levels = smooth_levels(survey.levels_db, 3)
    floor, loud = _percentiles(levels, survey.frame_seconds)
    span = np.maximum(loud - floor, _LEAST_RANGE_DB)
    begins = np.maximum(floor + np.minimum(_OVER_FLOOR_DB, _SHARE_OVER_FLOOR * span), loud - _UNDER_SPEECH_DB)
    ends = np.maximum(begins - _HYSTERESIS_DB, floor + 0.5 * (begins - floor))
    speech = hysteresis(levels, begins, ends)
    if survey.probabilities is None:
        return speech
    told = hysteresis(survey.probabilities, _MODEL_ON, _MODEL_OFF)
    edge = max(1, round(_MODEL_EDGE_SECONDS / survey.frame_seconds))
    return speech & binary_dilation(told, iterations=edge)


def to_stretches(speech: np.ndarray, frame_seconds: float) -> list[Stretch]:
    """Stretches of speech between pauses of `MIN_PAUSE_SECONDS` or more, without those that are clicks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], speech.astype(np.int8), [0]])))
    stretches: list[Stretch] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if stretches and (start - stretches[-1].end) * frame_seconds < MIN_PAUSE_SECONDS:
            stretches[-1] = Stretch(stretches[-1].start, end)
        else:
            stretches.append(Stretch(start, end))
    return [one for one in stretches if (one.end - one.start) * frame_seconds >= MIN_SPEECH_SECONDS]


def hysteresis(values: np.ndarray, begins: np.ndarray | float, ends: np.ndarray | float) -> np.ndarray:
    """Runs of values above `ends` that somewhere pass `begins`, `(F,)` bool."""
    runs, count = label(values > ends)
    passes = np.zeros(count + 1, bool)
    passes[runs[values > begins]] = True
    passes[0] = False
    return passes[runs]


def smooth_levels(levels_db: np.ndarray, frames: int) -> np.ndarray:
    """Levels of the mean power over `frames` frames around each, `(F,)` dB."""
    return 10 * np.log10(np.maximum(uniform_filter1d(10 ** (levels_db / 10), frames, mode="nearest"), 1e-12))


def _percentiles(levels, frame_seconds):
    """The floor and the level of speech around every frame, `(F,)` each."""
    window, step = (max(1, round(seconds / frame_seconds)) for seconds in (_WINDOW_SECONDS, _WINDOW_STEP_SECONDS))
    centers = np.arange(0, len(levels), step)
    starts = np.clip(centers - window // 2, 0, max(0, len(levels) - window))
    both = (_FLOOR_PERCENTILE, _SPEECH_PERCENTILE)
    found = np.array([np.percentile(levels[start : start + window], both) for start in starts])
    return (np.interp(np.arange(len(levels)), centers, found[:, side]) for side in (0, 1))

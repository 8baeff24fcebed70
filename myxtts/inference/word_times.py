"""Start and end of each word in a spoken sentence, estimated from the length of the words and the loudness."""

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SILENT = 0.05
"""Share of the highest RMS below which a frame at either end is silent."""
WORD_GAP, COMMA_PAUSE = 0.6, 3.0
"""Lengths of a word boundary and of a pause at punctuation, in phonemes or letters."""


class WordTime(NamedTuple):
    """A word of a text and its start and end in seconds."""

    word: str
    start: float
    end: float


def word_times(
    samples: np.ndarray, sample_rate: int, text: str, length: Callable[[str], int], start_seconds: float = 0.0
) -> list[WordTime]:
    """Estimates when each word of a sentence is spoken.

    Words share the time between first and last sound in proportion to their lengths (accuracy: docs/serving.md).

    Args:
        samples: Audio of the sentence, `(S,)`.
        length: Returns the length of a word in phonemes or letters as it is read; 0 for one that is not spoken.
        start_seconds: Added to all times.
    """
    words = [word for word in text.split() if length(word)]
    size = max(1, round(0.01 * sample_rate))  # frames of 10 ms
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    level = np.sqrt((frames.astype(np.float64) ** 2).mean(axis=1))
    if not words or not level.any():
        return []
    loud = np.flatnonzero(level > SILENT * level.max()) * size / sample_rate
    said_at_end = lambda word: unicodedata.category(word[-1])[0] in "LMN" or length(word[-1])  # M: vowel signs
    pauses = [*(0.0 if said_at_end(word) else COMMA_PAUSE for word in words[:-1]), 0.0]
    lengths = np.array([[length(word) + WORD_GAP, pause] for word, pause in zip(words, pauses)]).ravel()
    bounds = start_seconds + np.interp(
        np.concatenate([[0.0], np.cumsum(lengths)]) / lengths.sum(), [0, 1], [loud[0], loud[-1] + size / sample_rate]
    )
    rounded = np.round(bounds, 3).tolist()
    return [WordTime(word, *rounded[2 * number : 2 * number + 2]) for number, word in enumerate(words)]

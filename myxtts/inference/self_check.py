"""Signs that a sentence went wrong, read off its codes: a model may loop, babble, break off or not end."""

from collections.abc import Sequence

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.text.languages import get_language

CODE_SECONDS = CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
SECONDS_AT_CHAR_LIMIT = 16.0
"""What a text as long as a language's limit of characters takes at a usual pace: 15 characters a second in English."""
SHORTEST_SHARE, LONGEST_SHARE, SPARE_SECONDS = 0.3, 3.0, 1.5
"""A sentence is in doubt outside of these shares of the usual duration; the spare is for pauses and short texts."""
DIGIT_LETTERS = 6
"""Letters that a digit is spoken with."""
LOOP_CODES, LOOP_TURNS, LONGEST_LOOP = 32, 4, 24
"""Codes (1.5 s) and turns from which a repetition is no held sound or pause, and the longest period looked for."""


def doubts(text: str, language: str, codes: Sequence[int], stopped: bool) -> tuple[str, ...]:
    """What speaks against a sentence, each a phrase; none for one that seems right.

    Args:
        codes: `(C,)`, without the stop code.
        stopped: Whether it ended by itself.
    """
    if not len(codes):
        return ("it is empty",)
    found = [] if stopped else [f"it did not end by itself within {len(codes)} codes"]
    seconds, characters = len(codes) * CODE_SECONDS, sum(map(str.isalnum, text))
    digits = sum(map(str.isdigit, text))
    usual = SECONDS_AT_CHAR_LIMIT / get_language(language).char_limit
    least = SHORTEST_SHARE * usual * characters
    most = LONGEST_SHARE * usual * (characters + (DIGIT_LETTERS - 1) * digits) + SPARE_SECONDS
    if not least <= seconds <= most:
        found.append(f"it lasts {seconds:.1f} s, where {least:.1f} to {most:.1f} s are usual")
    if (loop := longest_loop(np.asarray(codes))) >= LOOP_CODES:
        found.append(f"it repeats itself for {loop * CODE_SECONDS:.1f} s")
    return tuple(found)


def longest_loop(codes: np.ndarray) -> int:
    """Codes of the longest stretch that repeats what was there one period before, `LOOP_TURNS` times or more."""
    longest = 0
    for period in range(1, min(LONGEST_LOOP, len(codes) // LOOP_TURNS) + 1):
        same = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        ends = np.flatnonzero(np.diff(same.astype(int)))
        stretches = ends[1::2] - ends[::2] + period
        longest = max(longest, *(length for length in stretches if length >= LOOP_TURNS * period), 0)
    return int(longest)

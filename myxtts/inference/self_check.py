"""Signs that a sentence went wrong: a model may loop, babble, skip, break off or not end.

Each check gives a score: 1 where nothing speaks against the sentence, 0.5 where it is as likely wrong as right, 0 for
nonsense. Between the two values beside each check it falls linearly, and goes on falling so beyond the second. They
were set on half of a planted set, see docs/benchmarks.md.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.inference.second_reading import Reading
from myxtts.text.speech_rates import SpeechRate

CODE_SECONDS = CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
LOOP_CODES, LOOP_TURNS, LONGEST_LOOP = 32, 4, 24
"""Codes (1.5 s) and turns from which a repetition is no held sound or pause, and the longest period looked for."""
DOUBT = 0.5
"""A check whose score is below has something to say."""
GAIN, SURPRISE, STOP, TAIL_SECONDS, UNREAD_SHARE, WRONG_SHARE, UNSPOKEN_SHARE = (
    (0.3, 0.13),
    (0.6, 1.4),
    (-1.5, -4.0),
    (0.5, 0.75),
    (0.1, 0.25),
    (0.1, 0.35),
    (0.0, 0.1),
)
"""Where the score of a check is 1, and where it is 0.5."""
BEYOND_BAND = 1.0, 1.05
"""The same of a duration, as a multiple of the longest usual one, or of the shortest one over it."""
LEAST_SHARPNESS, LEAST_EVENNESS = 0.5, 0.5
"""Of attention that follows the text at all. In a model that was not trained to it says nothing."""
Listener = Callable[[np.ndarray, int, str, str], float]
"""Samples `(S,)`, their rate in Hz, text and language -> share of the text's characters that is not understood."""


class Verdict(NamedTuple):
    """What the checks say of a sentence."""

    confidence: float
    """0 to 1: the lowest score."""
    reason: str
    """What lowers it most; empty at 1."""
    doubts: tuple[str, ...]
    """What speaks against the sentence, each a phrase; none for one that seems right."""


def judge(
    text: str,
    codes: Sequence[int],
    stopped: bool,
    rate: SpeechRate,
    reading: Reading | None = None,
    wrong_share: float | None = None,
    unspoken_share: float = 0.0,
) -> Verdict:
    """What the checks say of a sentence.

    Args:
        codes: `(C,)`, without the stop code.
        stopped: Whether it ended by itself.
        rate: How long texts in its language take.
        reading: What the GPT says of it; None leaves these checks out.
        wrong_share: What a `Listener` says of it; None where there is none.
        unspoken_share: Of its letters, those that the model has no token for.
    """
    if not len(codes):
        return Verdict(0.0, "it is empty", ("it is empty",))
    found = [_duration(text, len(codes) * CODE_SECONDS, rate)]
    if not stopped:
        found.append((0.2, f"it did not end by itself within {len(codes)} codes"))
    if (loop := longest_loop(np.asarray(codes))) >= LOOP_CODES:
        found.append((0.1, f"it repeats itself for {loop * CODE_SECONDS:.1f} s"))
    if reading is not None:
        found += _as_read(reading, stopped)
    if unspoken_share:
        lacking = f"{100 * unspoken_share:.0f} % of its letters are not in the vocabulary"
        found.append((_score(unspoken_share, UNSPOKEN_SHARE), lacking))
    if wrong_share is not None:
        heard = f"{100 * wrong_share:.0f} % of its characters are understood otherwise"
        found.append((_score(wrong_share, WRONG_SHARE), heard))
    confidence, reason = min(found)
    doubts = tuple(phrase for score, phrase in found if score < DOUBT)
    return Verdict(round(confidence, 2), reason if confidence < 1 else "", doubts)


def _duration(text, seconds, rate):
    least, most = rate.band(text)
    beyond = max(seconds / most, least / seconds)
    return _score(beyond, BEYOND_BAND), f"it lasts {seconds:.1f} s, where {least:.1f} to {most:.1f} s are usual"


def _as_read(reading, stopped):
    yield _score(reading.gain, GAIN), "its sounds hardly depend on the text"
    yield _score(reading.surprise, SURPRISE), "its sounds are not what the model expects"
    if stopped:
        yield _score(reading.stop, STOP), "it breaks off"
    tokens = reading.attention.shape[1]
    if not follows_text(reading.attention):
        return
    place = furthest_place(reading.attention)
    tail = (np.count_nonzero(place == place[-1]) - 1) * CODE_SECONDS
    yield _score(tail, TAIL_SECONDS), f"it goes on for {tail:.1f} s after its text"
    unread = (tokens - 1 - place[-1]) / tokens if place[-1] < tokens - 3 else 0.0
    yield _score(unread, UNREAD_SHARE), f"{100 * unread:.0f} % of its text is not read at the end"


def follows_text(attention: np.ndarray) -> bool:
    """Whether each code looks at few tokens and later codes at later ones."""
    codes, tokens = attention.shape
    if codes < 3 or attention.max(axis=1).mean() < LEAST_SHARPNESS:
        return False
    place = attention @ np.arange(tokens)
    return place.std() > 0 and np.corrcoef(place, np.arange(codes))[0, 1] >= LEAST_EVENNESS


def furthest_place(attention: np.ndarray) -> np.ndarray:
    """`(C,)`: the furthest token that was looked at most up to each code; a lone code that looks ahead is left out."""
    top = np.pad(attention.argmax(axis=1), 1, mode="edge")
    return np.maximum.accumulate(np.median([top[:-2], top[1:-1], top[2:]], axis=0)).astype(int)


def _score(value, full_and_half):
    full, half = full_and_half
    return float(np.clip(1 - 0.5 * (value - full) / (half - full), 0, 1))


def longest_loop(codes: np.ndarray) -> int:
    """Codes of the longest stretch that repeats what was there one period before, `LOOP_TURNS` times or more."""
    longest = 0
    for period in range(1, min(LONGEST_LOOP, len(codes) // LOOP_TURNS) + 1):
        same = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        ends = np.flatnonzero(np.diff(same.astype(int)))
        stretches = ends[1::2] - ends[::2] + period
        longest = max(longest, *(length for length in stretches if length >= LOOP_TURNS * period), 0)
    return int(longest)

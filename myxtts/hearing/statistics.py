"""Figures over sentences, and how far they may be off.

A sentence is what is drawn at random: the same one spoken with several seeds counts as one cluster, not as several.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm, t

LEVEL = 0.95
"""Share of intervals that hold the true figure."""
RESAMPLES = 4000


class Estimate(NamedTuple):
    """A figure and its interval; `low` and `high` are None where one sentence alone says nothing of others."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio(numerators: np.ndarray, denominators: np.ndarray, seed: int = 0) -> Estimate:
    """Sum over sum with a bootstrap interval over sentences; a mean where all denominators are equal.

    Args:
        numerators, denominators: `(sentences,)`, each summed over what was spoken of a sentence.

    The interval is made of percentiles (Efron), widened for few sentences as of Hesterberg, "What teachers should know
    about the bootstrap" (2015), section 4.3.
    """
    value = numerators.sum() / denominators.sum()
    if len(numerators) < 2:
        return Estimate(float(value))
    counts = _resampled(len(numerators), seed)
    low, high = _percentiles(counts @ numerators, counts @ denominators, len(numerators))
    return Estimate(float(value), low, high)


def share(hits: np.ndarray, totals: np.ndarray) -> Estimate:
    """Share of spoken sentences of which something holds, with Wilson's interval, which is right near 0 and 1 too.

    Args:
        hits, totals: `(sentences,)`: how often it held, of how many times the sentence was spoken.

    As many independent trials are counted as have the variance that the sentences have among each other (Kish's
    effective size); where all agree, as many as there are sentences, and the interval is Clopper and Pearson's.
    """
    value, count = float(hits.sum() / totals.sum()), len(hits)
    if count < 2:
        return Estimate(value)
    residual = (hits - value * totals) / totals.mean()
    variance = residual.var(ddof=1) / count
    if not 0 < value < 1 or variance == 0:
        tail = (1 - LEVEL) / 2
        low = 0.0 if value == 0 else float(beta.ppf(tail, value * count, (1 - value) * count + 1))
        high = 1.0 if value == 1 else float(beta.ppf(1 - tail, value * count + 1, (1 - value) * count))
        return Estimate(value, low, high)
    trials = min(max(value * (1 - value) / variance, 2.0), float(totals.sum()))
    z = norm.ppf(0.5 + LEVEL / 2)
    center = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(value * (1 - value) / trials + z**2 / (4 * trials**2))
    return Estimate(value, max(0.0, center - half), min(1.0, center + half))


def ratio_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], seed=0) -> Estimate:
    """The second `ratio` minus the first, of the same sentences: they are drawn together."""
    (first_sums, first_sizes), (second_sums, second_sizes) = first, second
    value = second_sums.sum() / second_sizes.sum() - first_sums.sum() / first_sizes.sum()
    if len(first_sums) < 2:
        return Estimate(float(value))
    counts = _resampled(len(first_sums), seed)
    drawn = counts @ second_sums / (counts @ second_sizes) - counts @ first_sums / (counts @ first_sizes)
    return Estimate(float(value), *_percentiles(drawn, 1.0, len(first_sums)))


def share_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """The second `share` minus the first, by Newcombe's hybrid of their intervals (1998), which is on the wide side."""
    a, b = share(*first), share(*second)
    value = b.value - a.value
    if a.low is None or b.low is None:
        return Estimate(value)
    below = math.hypot(b.value - b.low, a.high - a.value)
    above = math.hypot(b.high - b.value, a.value - a.low)
    return Estimate(value, value - below, value + above)


def _resampled(count, seed):
    """How often each of `count` sentences is in each resample, `(RESAMPLES, count)`."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)


def _percentiles(sums, sizes, count):
    drawn = sums / np.where(np.asarray(sizes) == 0, np.nan, sizes)
    tail = norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf(0.5 + LEVEL / 2, count - 1))
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return float(low), float(high)

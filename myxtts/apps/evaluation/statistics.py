"""Figures over sentences, and how far they may be off.

A sentence is what is sampled at random: the same one spoken with several seeds counts as one cluster, not as several.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, bootstrap, norm, t

LEVEL = 0.95
"""Share of intervals that hold the true figure."""
RESAMPLES = 4000


class Estimate(NamedTuple):
    """A figure and its interval; `low` and `high` are None where one sentence alone says nothing of others."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, scale: float) -> "Estimate":
        """The figure in another unit."""
        return Estimate(*(None if value is None else scale * value for value in self))

    @property
    def holds_zero(self) -> bool:
        """Whether the figure may be 0."""
        return self.low is None or self.low <= 0 <= self.high


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Sum over sum with a bootstrap interval over sentences; a mean where all wholes are equal.

    Args:
        parts, wholes: `(sentences,)`, each summed over what was spoken of a sentence.
    """
    return _bootstrapped(lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), parts, wholes)


def ratio_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """The second `ratio` minus the first, of the same sentences: they are resampled together."""
    statistic = lambda a, b, c, d, axis=-1: c.sum(axis) / d.sum(axis) - a.sum(axis) / b.sum(axis)
    return _bootstrapped(statistic, *first, *second)


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
    variance = ((hits - value * totals) / totals.mean()).var(ddof=1) / count
    if not 0 < value < 1 or variance == 0:
        low, high = binomtest(round(value * count), count).proportion_ci(LEVEL, method="exact")
        return Estimate(value, float(low), float(high))
    # Not by `binomtest`: the effective number of trials is no whole number.
    trials = min(max(value * (1 - value) / variance, 2.0), float(totals.sum()))
    z = norm.ppf(0.5 + LEVEL / 2)
    center = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(value * (1 - value) / trials + z**2 / (4 * trials**2))
    return Estimate(value, max(0.0, center - half), min(1.0, center + half))


def share_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """The second `share` minus the first, by Newcombe's hybrid of their intervals (1998), which is on the wide side."""
    a, b = share(*first), share(*second)
    value = b.value - a.value
    if a.low is None or b.low is None:
        return Estimate(value)
    below = math.hypot(b.value - b.low, a.high - a.value)
    above = math.hypot(b.high - b.value, a.value - a.low)
    return Estimate(value, value - below, value + above)


def _bootstrapped(statistic, *columns) -> Estimate:
    """An interval of percentiles, widened for few sentences as in Hesterberg, "What teachers should know about the
    bootstrap" (2015), section 4.3."""
    value, count = float(statistic(*columns)), len(columns[0])
    if count < 2:
        return Estimate(value)
    level = 1 - 2 * norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf(0.5 + LEVEL / 2, count - 1))
    options = dict(n_resamples=RESAMPLES, paired=True, vectorized=True, method="percentile", rng=0)
    low, high = bootstrap(columns, statistic, confidence_level=level, **options).confidence_interval
    return Estimate(value, float(low), float(high))

"""Metrics over sentences with confidence intervals.

Sentences are the sampling units: one sentence spoken with several seeds is one cluster.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, bootstrap, norm, t

LEVEL = 0.95
"""Confidence level."""
RESAMPLES = 4000


class Estimate(NamedTuple):
    """A value with its confidence interval; `low` and `high` are None for a single sentence."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, scale: float) -> "Estimate":
        """Returns the estimate in another unit."""
        return Estimate(*(None if value is None else scale * value for value in self))

    @property
    def holds_zero(self) -> bool:
        """Whether the interval contains 0."""
        return self.low is None or self.low <= 0 <= self.high


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimates a ratio of sums, with a bootstrap interval over sentences.

    Args:
        parts, wholes: `(sentences,)`, each summed over the seeds of a sentence.
    """
    return _bootstrapped(lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), parts, wholes)


def ratio_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """Estimates the second ratio minus the first, by a paired bootstrap over the same sentences."""
    statistic = lambda a, b, c, d, axis=-1: c.sum(axis) / d.sum(axis) - a.sum(axis) / b.sum(axis)
    return _bootstrapped(statistic, *first, *second)


def share(hits: np.ndarray, totals: np.ndarray) -> Estimate:
    """Estimates a proportion with Wilson's interval, which also holds near 0 and 1.

    The number of trials is Kish's effective sample size, from the variance between sentences. If all sentences agree,
    it is the number of sentences, and the interval is Clopper and Pearson's.

    Args:
        hits, totals: `(sentences,)`: positive and all samples of each sentence.
    """
    value, count = float(hits.sum() / totals.sum()), len(hits)
    if count < 2:
        return Estimate(value)
    variance = ((hits - value * totals) / totals.mean()).var(ddof=1) / count
    if not 0 < value < 1 or variance == 0:
        low, high = binomtest(round(value * count), count).proportion_ci(LEVEL, method="exact")
        return Estimate(value, float(low), float(high))
    # `binomtest` needs a whole number of trials.
    trials = min(max(value * (1 - value) / variance, 2.0), float(totals.sum()))
    z = norm.ppf(0.5 + LEVEL / 2)
    center = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(value * (1 - value) / trials + z**2 / (4 * trials**2))
    return Estimate(value, max(0.0, center - half), min(1.0, center + half))


def share_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """Estimates the second proportion minus the first, by Newcombe's hybrid interval (1998), which is conservative."""
    a, b = share(*first), share(*second)
    value = b.value - a.value
    if a.low is None or b.low is None:
        return Estimate(value)
    below = math.hypot(b.value - b.low, a.high - a.value)
    above = math.hypot(b.high - b.value, a.value - a.low)
    return Estimate(value, value - below, value + above)


def _bootstrapped(statistic, *columns) -> Estimate:
    """Percentile bootstrap, widened for few sentences (Hesterberg 2015, "What teachers should know about the
    bootstrap", section 4.3)."""
    value, count = float(statistic(*columns)), len(columns[0])
    if count < 2:
        return Estimate(value)
    level = 1 - 2 * norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf(0.5 + LEVEL / 2, count - 1))
    options = dict(n_resamples=RESAMPLES, paired=True, vectorized=True, method="percentile", rng=0)
    low, high = bootstrap(columns, statistic, confidence_level=level, **options).confidence_interval
    return Estimate(value, float(low), float(high))

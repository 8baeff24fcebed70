"""Comparison of models in an evaluation: metrics, confidence intervals, differences and the best model.

The statistics treat sentences as independent, and syntheses of the same sentence with several seeds as dependent.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, bootstrap, norm, t

from myxtts.apps.evaluation.sentences import Row
from myxtts.config.checks import UserError, counted
from myxtts.hearing import measuring, networks
from myxtts.hearing.measuring import Measured, Measurer, Sentence, ends_well, is_usable, pooled

LEVEL = 0.95
RESAMPLES = 4000
FEW = 10
"""With fewer sentences, no model is named the best."""
MISSING = {
    "recognizer": "--recognizer base, or another one",
    "encoder": networks.ENCODER_HINT,
    "dnsmos": networks.DNSMOS_HINT,
    "recordings": "sentences of a data set with recordings: --data FOLDER",
}
"""Hints for users on how to enable metrics that are not available: one for each value of `Metric.needs`."""


class Metric(NamedTuple):
    """A metric of the report. Its value is `scale` times (sum of the numerators / sum of the denominators)."""

    name: str
    title: str
    unit: str
    better: str
    """Which values are better, `low` or `high`; "" if neither is."""
    decimals: int
    needs: str = ""
    """What the metric needs besides the audio: a key of `MISSING`, or "" for nothing."""
    meaning: str = ""
    is_share: bool = False
    """Whether the metric is a percentage of syntheses: each synthesis has numerator 0 or 1 and denominator 1."""
    measure: Callable[[Measured], tuple[float, float] | None] | None = None
    """Function that computes numerator and denominator for a sentence; None if `Measurer` computes the metric."""

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        """Title and unit, as the heading of a table row."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


_repeats = lambda one: measuring.repeated_groups(one.spoken.codes)
_COSINE = "cosine to the recording of the voice, by an encoder that the model was not trained with"
METRICS = (
    Metric("cer", "CER", "%", "low", 1, "recognizer", "character error rate of the recognized text, pooled"),
    Metric("wer", "WER", "%", "low", 1, "recognizer", "word error rate of the recognized text, pooled"),
    Metric("similarity", "speaker similarity", "", "high", 3, "encoder", _COSINE),
    Metric("mcd", "mel-cepstral distortion", "dB", "low", 2, "recordings", "to the recording, after DTW"),
    Metric("f0_rmse", "pitch error", "st", "low", 2, "recordings", "RMSE to the recording, after DTW"),
    Metric("f0_median", "pitch, median", "Hz", "", 0),
    Metric("f0_spread", "pitch, spread", "st", "", 2, meaning="standard deviation within a sentence"),
    Metric("voiced", "voiced", "%", "", 1, meaning="fraction of time with a pitch"),
    Metric("dnsmos_overall", "DNSMOS, overall", "", "high", 2, "dnsmos", "1 to 5"),
    Metric("dnsmos_signal", "DNSMOS, signal", "", "high", 2, "dnsmos", "1 to 5"),
    Metric("dnsmos_background", "DNSMOS, background", "", "high", 2, "dnsmos", "1 to 5"),
    Metric("length", "relative length", "", "", 2, "recordings", "duration over that of the recordings, pooled"),
    Metric("limit", "ran into the limit", "%", "low", 1, meaning="did not end by itself", is_share=True),
    Metric("pauses", "paused for over 1 s", "%", "low", 1, is_share=True),
    Metric("repeated", "repeated codes", "%", "", 1, "", "groups of four codes that occurred before", measure=_repeats),
    Metric("doubtful", "low confidence", "%", "low", 1, meaning="flagged by the self-check", is_share=True),
)
BY_NAME = {metric.name: metric for metric in METRICS}
COMPARED = ("model", "files")
DECIDING = ("cer", "mcd", "similarity", "dnsmos_overall", "doubtful")
"""Metrics that decide which model is the best, in order of priority."""


class Estimate(NamedTuple):
    """A value with the bounds of its confidence interval, which are None if there is only one sentence."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, scale: float) -> "Estimate":
        """Returns the estimate multiplied by `scale`."""
        return Estimate(*(None if value is None else scale * value for value in self))

    @property
    def holds_zero(self) -> bool:
        """Whether a difference is not significant: its confidence interval contains 0 or is unknown."""
        return self.low is None or self.low <= 0 <= self.high


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimates a ratio of two sums, with a bootstrap confidence interval over the N sentences.

    `parts` and `wholes` are the numerators and denominators, `(N,)`, summed over the seeds of each sentence.
    """
    return _bootstrapped(lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), parts, wholes)


def ratio_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """Estimates the second ratio minus the first by a paired bootstrap. Each ratio is (numerators, denominators)."""
    statistic = lambda a, b, c, d, axis=-1: c.sum(axis) / d.sum(axis) - a.sum(axis) / b.sum(axis)
    return _bootstrapped(statistic, *first, *second)


def share(hits: np.ndarray, totals: np.ndarray) -> Estimate:
    """Estimates the proportion of hits with the Wilson score interval, which is also valid near 0 and 1.

    `hits` and `totals`, `(N,)`, are the hits and the trials of each sentence. Because trials of one sentence are
    dependent, Wilson's formula uses an effective number of trials (Kish), which is estimated from the variance between
    sentences. If all sentences have the same proportion, the Clopper-Pearson interval for N trials is used instead.
    """
    value, count = float(hits.sum() / totals.sum()), len(hits)
    if count < 2:
        return Estimate(value)
    variance = ((hits - value * totals) / totals.mean()).var(ddof=1) / count
    if not 0 < value < 1 or variance == 0:
        low, high = binomtest(round(value * count), count).proportion_ci(LEVEL, method="exact")
        return Estimate(value, float(low), float(high))
    # By hand, because `binomtest` needs an integer number of trials.
    trials = min(max(value * (1 - value) / variance, 2.0), float(totals.sum()))
    z = norm.ppf(0.5 + LEVEL / 2)
    center = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(value * (1 - value) / trials + z**2 / (4 * trials**2))
    return Estimate(value, max(0.0, center - half), min(1.0, center + half))


def share_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """Estimates the second proportion minus the first (Newcombe's interval, 1998). Each argument is (hits, totals)."""
    a, b = share(*first), share(*second)
    value = b.value - a.value
    if a.low is None or b.low is None:
        return Estimate(value)
    below = math.hypot(b.value - b.low, a.high - a.value)
    return Estimate(value, value - below, value + math.hypot(b.high - b.value, a.value - a.low))


def _bootstrapped(statistic, *columns) -> Estimate:
    """Estimates a statistic by a percentile bootstrap, widened for few sentences (Hesterberg 2015, section 4.3)."""
    value, count = float(statistic(*columns)), len(columns[0])
    if count < 2:
        return Estimate(value)
    level = 1 - 2 * norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf(0.5 + LEVEL / 2, count - 1))
    options = dict(n_resamples=RESAMPLES, paired=True, vectorized=True, method="percentile", rng=0)
    low, high = bootstrap(columns, statistic, confidence_level=level, **options).confidence_interval
    return Estimate(value, float(low), float(high))


@dataclass
class Comparison:
    """The results of an evaluation: a row for each source of speech, and statistics that compare the rows."""

    rows: list[Row]
    sentences: list[Sentence]
    measurer: Measurer
    strangers: float | None = None
    """Mean similarity between recordings of different speakers, the baseline of speaker similarity; None if unknown."""
    settings: dict = field(default_factory=dict)
    """Options of the evaluation as JSON values, for the reports."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Error messages of the sources that could not be evaluated, by name."""

    def figure(self, row: Row, metric: Metric, ids: Collection[str] | None = None) -> Estimate | None:
        """Estimates a metric of a row on the sentences `ids` (None: all). Returns None if the row lacks the metric."""
        parts = row.parts(metric.name, ids)
        estimate = share if metric.is_share else ratio
        return estimate(*np.array(list(parts.values())).T).times(metric.scale) if parts else None

    @cached_property
    def figures(self) -> list[dict[str, dict[str, Estimate]]]:
        """Estimates of all metrics: a list with one dictionary `{sentence group: {metric: estimate}}` for each row."""
        of_row = lambda row, ids: {one.name: found for one in METRICS if (found := self.figure(row, one, ids))}
        return [{name: of_row(row, ids) for name, ids in self.groups.items()} for row in self.rows]

    @cached_property
    def differences(self) -> list[dict[str, Estimate]]:
        """`{metric: estimate}` for each row in `compared` after the first: the row's value minus the first row's."""
        first, *others = self.compared or [None]
        difference = lambda row: {one.name: found for one in METRICS if (found := self.difference(first, row, one))}
        return [difference(row) for row in others]

    def difference(self, first: Row, second: Row, metric: Metric) -> Estimate | None:
        """Estimates `second` minus `first` for a metric on sentences that both have. Returns None if there are none."""
        a, b = first.parts(metric.name), second.parts(metric.name)
        both = [key for key in a if key in b]
        pair = (tuple(np.array([parts[key] for key in both]).T) for parts in (a, b))
        estimate = share_difference if metric.is_share else ratio_difference
        return estimate(*pair).times(metric.scale) if both else None

    def value(self, row: Row, name: str) -> float | None:
        """Returns a row's value of a metric, not multiplied by `Metric.scale`. None if the metric was not measured."""
        return pooled((one.parts for one in row.measured), name)

    @property
    def recordings(self) -> Row | None:
        """The row of the recordings; None if there are no recordings."""
        return next((row for row in self.rows if row.kind == "recordings" and row.measured), None)

    @property
    def compared(self) -> list[Row]:
        """Rows from which the best is chosen: models and folders of audio files, but not recordings or resyntheses."""
        return [row for row in self.rows if row.kind in COMPARED]

    def missing(self) -> dict[str, str]:
        """Returns `{metric: hint}` for the metrics that are not available. A hint tells how to enable the metric."""
        has = {name for name in MISSING if getattr(self.measurer, name, None)}
        has |= {"recordings"} if any(one.recording for one in self.sentences) else set()
        return {one.name: MISSING[one.needs] for one in METRICS if one.needs and one.needs not in has}

    def not_judged(self) -> str | None:
        """Returns a message if the recognizer is too inaccurate on recordings to trust CER and WER, otherwise None."""
        error = self.recordings and self.value(self.recordings, "cer")
        if is_usable(error):
            return None
        limit = f"{100 * measuring.MAX_RECOGNIZER_ERROR:.0f} %"
        return f"not evaluated: the recognizer's CER on recordings is {100 * error:.1f} %, above the limit of {limit}"

    def unjudged(self) -> set[str]:
        """Returns `{"cer", "wer"}` if the recognizer is too inaccurate (see `not_judged`), otherwise an empty set."""
        return {metric.name for metric in METRICS if metric.needs == "recognizer"} if self.not_judged() else set()

    @property
    def groups(self) -> dict[str, set[str]]:
        """Sentence ids by group: `all` and, if both occur, `seen speakers` and `unseen speakers`."""
        ids = lambda *kinds: {one.id for one in self.sentences if one.seen in kinds}
        found = {"all": ids(True, False, None), "seen speakers": ids(True), "unseen speakers": ids(False)}
        return found if all(found.values()) else {"all": found["all"]}

    def best(self) -> tuple[list[Row], str] | None:
        """Returns the best rows and the reasons in words; None with fewer than two rows or `FEW` sentences.

        Candidates are the rows with complete sentences and a similar voice (see `_eligible`). If there are none, all
        rows are candidates. Each metric in `DECIDING`, in turn, removes the candidates that are significantly worse
        than another candidate on the sentences that both have."""
        if len(self.compared) < 2 or len(self.sentences) < FEW:
            return None
        able = [row for row in self.compared if self._eligible(row)] or self.compared
        reasons = ["the others do not end properly or do not match the voice"] * (len(able) < len(self.compared))
        # MCD only replaces a missing recognizer.
        skipped = self.unjudged() or {"mcd" for row in able if self.value(row, "cer") is not None}
        for name in DECIDING:
            if len(able) < 2 or name in skipped or None in (self.value(row, name) for row in able):
                continue
            metric = BY_NAME[name]
            tied = [row for row in able if not any(self._is_better(other, row, metric) for other in able)]
            if 0 < len(tied) < len(able):
                value = (min if metric.better == "low" else max)(self.value(row, name) for row in tied)
                reasons.append(f"{metric.title} {metric.scale * value:.{metric.decimals}f} {metric.unit}".strip())
                able = tied
        return able, "; ".join(reasons)

    def _is_better(self, row, other, metric):
        """Returns True if `row` is significantly better than `other` on the sentences that both have."""
        found = None if row is other else self.difference(other, row, metric)
        return found is not None and not found.holds_zero and (found.high < 0) == (metric.better == "low")

    def _eligible(self, row):
        """Returns True if a row can be the best: its sentences end properly (`ends_well`), and its voice is similar."""
        same = self.recordings and self.value(self.recordings, "similarity")
        if not ends_well(self.value(row, "limit"), self.value(row, "length")):
            return False
        if same is None or self.strangers is None or same <= self.strangers:
            return True
        below = self.difference(self.recordings, row, BY_NAME["similarity"])
        return below is None or below.value >= -0.3 * (same - self.strangers)


def compare(
    sources: Sequence[Row],
    sentences: Sequence[Sentence],
    measurer: Measurer,
    settings: dict,
    on_measured: Callable[[Row], None] = lambda row: None,
) -> Comparison:
    """Measures the speech of all sources; returns a `Comparison`. After each sentence, calls `on_measured(row)`, which
    can save the audio of `row.measured[-1]` before it is deleted from memory. A source that raises a `UserError` is
    left out, and so is a model or folder that can speak none of the sentences. If no model or folder has been measured
    yet, however, a `UserError` is raised instead."""
    rows, left_out = [], {}
    for row in sources:
        try:
            for spoken in row.speak():
                row.measured.append(one := measurer(spoken))
                one.parts |= {each.name: found for each in METRICS if each.measure and (found := each.measure(one))}
                on_measured(row)
                row.measured[-1].spoken = replace(spoken, samples=spoken.samples[:0])  # saves about 1 MB per sentence
            if row.measured:
                rows.append(row)
            elif row.kind in COMPARED:
                raise UserError(f"{row.name} can speak none of the {counted(len(sentences), 'sentence')}.")
        except UserError as error:
            if not any(one.kind in COMPARED for one in rows):
                raise
            left_out[row.name] = str(error)
    return Comparison(rows, list(sentences), measurer, measurer.similarity_of_strangers(sentences), settings, left_out)

"""From what was measured of single sentences to the figures of each row, their intervals, differences and the best."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from myxtts.hearing.judging import MISSING, Judged, Tools
from myxtts.hearing.metrics import BY_NAME, METRICS, Metric
from myxtts.hearing.sentences import Sentence
from myxtts.hearing.statistics import Estimate, ratio, ratio_difference, share, share_difference

MOST_RECOGNIZER_ERROR = 0.15
"""Share of wrong characters on recordings from which on a recognizer judges nothing."""
MOST_LIMIT = 0.02
"""Share that may run into the limit for a model to be the best."""
LEAST_LENGTH = 0.75
"""Share of the recordings' length that the best must speak: less has broken off, which hides wrong characters."""
LEAST_LIKENESS = 0.7
"""Share of the way from other speakers' recordings to the same speaker's that the best must reach."""
COMPARED = ("model", "files")
"""Kinds of rows that are held against each other; the others are what they are held against."""
DECIDING = ("cer", "mcd", "similarity", "dnsmos_overall", "doubtful")
"""Figures by which the best is chosen: the first that can be had, and each next one where those before tie."""


@dataclass
class Row:
    """One source with all that was measured of it."""

    name: str
    kind: str
    """As of `sources.Source`."""
    judged: list[Judged] = field(default_factory=list)

    def parts(self, metric: str, keep: Callable[[Sentence], bool] = lambda one: True) -> dict[str, tuple]:
        """Part and whole of each sentence, summed over the times that it was said."""
        sums: dict[str, tuple] = {}
        for one in self.judged:
            if metric in one.parts and keep(one.spoken.sentence):
                before = sums.get(one.spoken.sentence.id, (0.0, 0.0))
                sums[one.spoken.sentence.id] = tuple(a + b for a, b in zip(before, one.parts[metric]))
        return sums


@dataclass
class Comparison:
    """Everything that the pages and files show."""

    rows: list[Row]
    sentences: list[Sentence]
    tools: Tools
    strangers: float | None = None
    """Likeness of recordings of different speakers."""
    settings: dict = field(default_factory=dict)
    """What was asked for, as JSON values."""

    def figure(self, row: Row, metric: Metric, keep=lambda one: True) -> Estimate | None:
        """None where nothing of it was measured."""
        parts = row.parts(metric.name, keep)
        return _scaled((share if metric.is_share else ratio)(*_columns(parts)), metric) if parts else None

    def difference(self, first: Row, second: Row, metric: Metric) -> Estimate | None:
        """The second row's figure minus the first's, of the sentences that both say."""
        a, b = first.parts(metric.name), second.parts(metric.name)
        both = [key for key in a if key in b]
        if not both:
            return None
        pair = (_columns({key: parts[key] for key in both}) for parts in (a, b))
        return _scaled((share_difference if metric.is_share else ratio_difference)(*pair), metric)

    def row_of(self, kind: str) -> Row | None:
        """The first row of a kind that says anything."""
        return next((row for row in self.rows if row.kind == kind and row.judged), None)

    @property
    def compared(self) -> list[Row]:
        """Rows that are held against each other."""
        return [row for row in self.rows if row.kind in COMPARED]

    def missing(self) -> dict[str, str]:
        """What is not available: title of the figure, and how to get it."""
        found = {}
        for metric in METRICS:
            has = metric.needs == "recordings" and any(one.recording for one in self.sentences)
            if metric.needs and not (has or getattr(self.tools, metric.needs, None)):
                found[metric.name] = MISSING[metric.needs]
        return found

    def not_judged(self) -> str | None:
        """Why the recognizer's figures say nothing, if so."""
        recorded = self.row_of("recordings")
        own = recorded and self.figure(recorded, BY_NAME["cer"])
        if own is None or own.value <= 100 * MOST_RECOGNIZER_ERROR:
            return None
        return (
            f"not judged: of real recordings the recognizer gets {own.value:.1f} % of the characters wrong, "
            f"and above {100 * MOST_RECOGNIZER_ERROR:.0f} % it says more of itself than of a model"
        )

    def unjudged(self) -> set[str]:
        """Names of figures that are there and say nothing."""
        return {metric.name for metric in METRICS if metric.needs == "recognizer"} if self.not_judged() else set()

    def groups(self) -> dict[str, Callable[[Sentence], bool]]:
        """Sentences of speakers that were trained on and of others, where both are there."""
        if {one.seen for one in self.sentences} < {True, False}:
            return {}
        kinds = {"speakers trained on": True, "speakers left out": False}
        if not all(any(one.seen is seen for one in self.sentences) for seen in kinds.values()):
            return {}
        return {name: lambda one, seen=seen: one.seen is seen for name, seen in kinds.items()}

    def best(self) -> tuple[list[Row], str] | None:
        """The best of the rows that are compared, several where nothing tells them apart, and why; None of one row.

        Of those that end by themselves, not too soon, and sound like the voice, if there are any, the one with the
        lowest error; of those from which it cannot be told apart, the one that is best by the next figure.
        """
        if len(self.compared) < 2:
            return None
        able = [row for row in self.compared if self._eligible(row)] or self.compared
        unable = ["the others do not end where they should or miss the voice"]
        reasons = [] if len(able) == len(self.compared) else unable
        for name in DECIDING:
            metric, unjudged = BY_NAME[name], self.unjudged()
            figures = [(self.figure(row, metric), row) for row in able]
            if len(able) < 2 or name in unjudged or any(figure is None for figure, _ in figures):
                continue
            if name == "mcd" and any("cer" in one.parts for one in able[0].judged) and not unjudged:
                continue  # only where there is no recognizer to go by
            sign = 1 if metric.better == "low" else -1
            first = min(figures, key=lambda pair: sign * pair[0].value)[1]
            tied = [row for row in able if row is first or _holds_zero(self.difference(first, row, metric))]
            if len(tied) < len(able):
                reasons.append(f"{metric.title} {self.figure(first, metric).value:.{metric.decimals}f} {metric.unit}")
            able = tied
        return able, "; ".join(reason.strip() for reason in reasons)

    def _eligible(self, row):
        limit, length = (self.figure(row, BY_NAME[name]) for name in ("limit", "length"))
        if not ends_well(limit and limit.value, length and length.value):
            return False
        recorded, likeness = self.row_of("recordings"), self.figure(row, BY_NAME["similarity"])
        same = recorded and self.figure(recorded, BY_NAME["similarity"])
        if likeness is None or same is None or self.strangers is None or same.value <= self.strangers:
            return True
        return (likeness.value - self.strangers) / (same.value - self.strangers) >= LEAST_LIKENESS


def ends_well(limit: float | None, length: float | None) -> bool:
    """Whether sentences end by themselves and do not break off: by the figures of these names, where there are any."""
    return (limit is None or limit <= 100 * MOST_LIMIT) and (length is None or length >= LEAST_LENGTH)


def worst(row: Row, count: int) -> list[Judged]:
    """The sentences that went worst: by doubts, then by wrong characters or distortion."""

    def badness(one):
        part, whole = one.parts.get("cer", one.parts.get("mcd", (0.0, 1.0)))
        return bool(one.spoken.doubts), part / max(whole, 1e-9)

    return sorted(row.judged, key=badness, reverse=True)[:count]


def _columns(parts: dict[str, tuple]) -> tuple[np.ndarray, np.ndarray]:
    sums, sizes = zip(*parts.values())
    return np.array(sums, np.float64), np.array(sizes, np.float64)


def _scaled(estimate: Estimate, metric: Metric) -> Estimate:
    return Estimate(*(None if value is None else metric.scale * value for value in estimate))


def _holds_zero(difference: Estimate | None) -> bool:
    return difference is None or difference.low is None or difference.low <= 0 <= difference.high

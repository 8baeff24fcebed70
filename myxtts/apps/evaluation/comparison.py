"""The metrics, and from measurements of single sentences to the figures of each row, differences and the best row."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from myxtts.apps.evaluation.statistics import Estimate, ratio, ratio_difference, share, share_difference
from myxtts.hearing import dnsmos, speaker_similarity
from myxtts.hearing.measuring import MAX_RECOGNIZER_ERROR, Measured, Tools, ends_well, is_usable, pooled
from myxtts.hearing.spoken import Sentence

MISSING = {
    "recognizer": "--recognizer base, or another one",
    "encoder": speaker_similarity.HOW_TO_GET,
    "dnsmos": dnsmos.HOW_TO_GET,
    "recordings": "sentences of a data set with recordings: --data FOLDER",
}
"""How to get what a metric needs."""


class Metric(NamedTuple):
    """One metric. Its figure is the sum of the parts of all sentences over the sum of their wholes, times `scale`."""

    name: str
    title: str
    unit: str
    better: str
    """`low`, `high`, or empty for what is compared with the recordings' figure."""
    decimals: int
    needs: str = ""
    """A key of `MISSING`; empty for metrics of the audio alone."""
    is_share: bool = False
    """Whether part and whole are 0 or 1 and 1: something holds of a sentence or does not."""
    meaning: str = ""

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


_COSINE = "cosine to the recording that the voice was taken from, by an encoder that the model was not made with"
_GROUPS = "groups of four codes that came before in the sentence"
METRICS = (
    Metric("cer", "wrong characters", "%", "low", 1, "recognizer", False, "of what a recognizer understood, pooled"),
    Metric("wer", "wrong words", "%", "low", 1, "recognizer", False, "as above, in words"),
    Metric("similarity", "speaker similarity", "", "high", 3, "encoder", False, _COSINE),
    Metric("mcd", "mel-cepstral distortion", "dB", "low", 2, "recordings", False, "to the recording, after DTW"),
    Metric("f0_rmse", "pitch off the recording's", "st", "low", 2, "recordings", False, "RMSE on that path"),
    Metric("f0_median", "pitch, median", "Hz", "", 0),
    Metric("f0_spread", "pitch, spread", "st", "", 2, meaning="standard deviation within a sentence"),
    Metric("voiced", "voiced", "%", "", 1, meaning="share of the time that has a pitch"),
    Metric("dnsmos_overall", "DNSMOS, overall", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("dnsmos_signal", "DNSMOS, signal", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("dnsmos_background", "DNSMOS, background", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("length", "length to the recording's", "", "", 2, "recordings", False, "seconds over seconds, pooled"),
    Metric("limit", "ran into the limit", "%", "low", 1, is_share=True, meaning="did not end by itself"),
    Metric("pauses", "paused for over 1 s", "%", "low", 1, is_share=True),
    Metric("repeated", "repeated codes", "%", "", 1, meaning=_GROUPS),
    Metric("doubtful", "in doubt", "%", "low", 1, is_share=True, meaning="what the self-check of `myxtts say` reports"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
MIN_SIMILARITY = 0.7
"""Share of the way from other speakers' recordings to the same speaker's that the best must reach."""
COMPARED = ("model", "files")
"""Kinds of rows that are compared with each other; the others are references."""
DECIDING = ("cer", "mcd", "similarity", "dnsmos_overall", "doubtful")
"""Metrics by which the best is chosen: the first that is available, and each next one where those before tie."""


@dataclass
class Row:
    """One source with its measurements."""

    name: str
    kind: str
    """As of `sources.Source`."""
    measured: list[Measured] = field(default_factory=list)

    def parts(self, metric: str, ids: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Part and whole of each sentence, or of those with these ids, summed over the times that it was said."""
        sums: dict[str, np.ndarray] = {}
        for one in self.measured:
            key = one.spoken.sentence.id
            if metric in one.parts and (ids is None or key in ids):
                sums[key] = sums.get(key, 0.0) + np.array(one.parts[metric], np.float64)
        return sums

    @property
    def first_times(self) -> dict[str, Measured]:
        """By id of each sentence what was said with the first seed."""
        return {one.spoken.sentence.id: one for one in reversed(self.measured)}

    def worst(self, count: int) -> list[Measured]:
        """The worst sentences: by doubts, then by wrong characters or distortion."""

        def badness(one):
            part, whole = one.parts.get("cer", one.parts.get("mcd", (0.0, 1.0)))
            return bool(one.spoken.doubts), part / max(whole, 1e-9)

        return sorted(self.measured, key=badness, reverse=True)[:count]


@dataclass
class Comparison:
    """Everything that the pages and files show."""

    rows: list[Row]
    sentences: list[Sentence]
    tools: Tools
    strangers: float | None = None
    """Similarity of recordings of different speakers."""
    settings: dict = field(default_factory=dict)
    """The request, as JSON values."""

    def figure(self, row: Row, metric: Metric, ids: Collection[str] | None = None) -> Estimate | None:
        """None if nothing of it was measured."""
        parts = row.parts(metric.name, ids)
        estimate = share if metric.is_share else ratio
        return estimate(*np.array(list(parts.values())).T).times(metric.scale) if parts else None

    def difference(self, first: Row, second: Row, metric: Metric) -> Estimate | None:
        """The second row's figure minus the first's, of the sentences that both say."""
        a, b = first.parts(metric.name), second.parts(metric.name)
        both = [key for key in a if key in b]
        pair = (tuple(np.array([parts[key] for key in both]).T) for parts in (a, b))
        estimate = share_difference if metric.is_share else ratio_difference
        return estimate(*pair).times(metric.scale) if both else None

    def value(self, row: Row, name: str) -> float | None:
        """A figure without scale and interval."""
        return pooled((one.parts for one in row.measured), name)

    @property
    def recordings(self) -> Row | None:
        """The row of recordings."""
        return next((row for row in self.rows if row.kind == "recordings" and row.measured), None)

    @property
    def compared(self) -> list[Row]:
        """Rows that are compared with each other."""
        return [row for row in self.rows if row.kind in COMPARED]

    def missing(self) -> dict[str, str]:
        """Names of metrics that are not available, and how to get them."""
        has = {name for name in MISSING if getattr(self.tools, name, None)}
        has |= {"recordings"} if any(one.recording for one in self.sentences) else set()
        return {one.name: MISSING[one.needs] for one in METRICS if one.needs and one.needs not in has}

    def not_judged(self) -> str | None:
        """Why the recognizer's figures say nothing, if so."""
        error = self.recordings and self.value(self.recordings, "cer")
        if is_usable(error):
            return None
        return (
            f"not judged: of real recordings the recognizer gets {100 * error:.1f} % of the characters wrong, "
            f"and above {100 * MAX_RECOGNIZER_ERROR:.0f} % it says more of itself than of a model"
        )

    def unjudged(self) -> set[str]:
        """Names of metrics that are available and say nothing."""
        return {metric.name for metric in METRICS if metric.needs == "recognizer"} if self.not_judged() else set()

    def groups(self) -> dict[str, set[str]]:
        """Ids of the sentences of speakers that were trained on and of others, if there are both."""
        seen, others = ({one.id for one in self.sentences if one.seen is kind} for kind in (True, False))
        return {"speakers trained on": seen, "speakers left out": others} if seen and others else {}

    def best(self) -> tuple[list[Row], str] | None:
        """The best of the compared rows, several if they do not differ significantly, and why; None for one row.

        Of those that end by themselves, not too soon, and sound like the voice, if there are any, the one with the
        lowest error; of those that do not differ from it significantly, the one that is best by the next metric.
        """
        if len(self.compared) < 2:
            return None
        able, reasons = [row for row in self.compared if self._eligible(row)] or self.compared, []
        if len(able) < len(self.compared):
            reasons.append("the others do not end where they should or miss the voice")
        unjudged = self.unjudged()
        for name in DECIDING:
            values = {row.name: self.value(row, name) for row in able}
            if len(able) < 2 or name in unjudged or None in values.values():
                continue
            if name == "mcd" and self.value(able[0], "cer") is not None and not unjudged:
                continue  # only where there is no recognizer to go by
            metric = BY_NAME[name]
            first = (min if metric.better == "low" else max)(able, key=lambda row: values[row.name])
            differences = {row.name: self.difference(first, row, metric) for row in able if row is not first}
            tied = [
                row for row in able if row is first or not differences[row.name] or differences[row.name].holds_zero
            ]
            if len(tied) < len(able):
                shown = f"{metric.scale * values[first.name]:.{metric.decimals}f}"
                reasons.append(f"{metric.title} {shown} {metric.unit}".strip())
            able = tied
        return able, "; ".join(reasons)

    def _eligible(self, row):
        if not ends_well(self.value(row, "limit"), self.value(row, "length")):
            return False
        own, same = self.value(row, "similarity"), self.recordings and self.value(self.recordings, "similarity")
        if own is None or same is None or self.strangers is None or same <= self.strangers:
            return True
        return (own - self.strangers) / (same - self.strangers) >= MIN_SIMILARITY

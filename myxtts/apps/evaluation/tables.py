"""Results of an evaluation as text for a terminal, as JSON and as CSV."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from myxtts.apps.evaluation.comparison import BY_NAME, METRICS, Comparison, Metric
from myxtts.apps.evaluation.statistics import LEVEL, Estimate
from myxtts.config.checks import printable
from myxtts.storage.files import csv_text

NOT_AVAILABLE, NOT_JUDGED = "not available", "not judged"
COLUMNS = ("row", "kind", "group", "metric", "unit", "value", "low", "high", "sentences", "judged")


class Line(NamedTuple):
    """A line of a table: a metric with one cell for each row of the comparison."""

    metric: Metric
    cells: list[str]
    estimates: list[Estimate | None]
    """None for cells without a number."""


def number(estimate: Estimate | None, metric: Metric, sign: str = "") -> str:
    """Formats an estimate: `12.3 [10.1, 14.8]`, or a dash."""
    if estimate is None:
        return "–"
    form = f"{sign}.{metric.decimals}f"
    interval = "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return f"{estimate.value:{form}}{interval}"


def figure_lines(comparison: Comparison, ids: Collection[str] | None = None) -> list[Line]:
    """Returns the table of all metrics."""
    missing, unjudged, lines = comparison.missing(), comparison.unjudged(), []
    for metric in METRICS:
        found = [comparison.figure(row, metric, ids) for row in comparison.rows]
        if metric.name in missing:
            lines.append(Line(metric, [NOT_AVAILABLE] * len(found), [None] * len(found)))
        elif any(found):
            off = [metric.name in unjudged and row.kind != "recordings" for row in comparison.rows]
            cells = [NOT_JUDGED if is_off else number(one, metric) for one, is_off in zip(found, off)]
            lines.append(Line(metric, cells, [None if is_off else one for one, is_off in zip(found, off)]))
    return lines


def difference_lines(comparison: Comparison) -> tuple[list[str], list[Line]]:
    """Returns headings and lines of the differences to the first compared row."""
    (first, *others), lines, unjudged = comparison.compared or [None], [], comparison.unjudged()
    for metric in METRICS:
        found = [comparison.difference(first, row, metric) for row in others]
        if any(found) and metric.name not in unjudged:
            lines.append(Line(metric, [number(one, metric, "+") for one in found], found))
    return [f"{row.name} − {first.name}" for row in others], lines


def as_text(comparison: Comparison, width: int = 120) -> str:
    """Formats the comparison for a terminal of this width."""
    rows = [row.name for row in comparison.rows]
    blocks = [f"{counted_sentences(comparison)}; brackets are {100 * LEVEL:.0f} % confidence intervals"]
    blocks.append(_grid(rows, figure_lines(comparison), width))
    for name, ids in comparison.groups().items():
        blocks.append(f"{name}:\n" + _grid(rows, figure_lines(comparison, ids), width))
    names, lines = difference_lines(comparison)
    if lines:
        blocks.append("differences on the same sentences:\n" + _grid(names, lines, width))
    blocks.append("\n".join(notes(comparison)))
    return "\n".join(map(printable, "\n\n".join(filter(None, blocks)).split("\n")))


def counted_sentences(comparison: Comparison) -> str:
    """Returns the number of sentences and of their samples in words."""
    seeds, count = comparison.settings.get("seeds", 1), len(comparison.sentences)
    return f"{count} sentences, each sampled {seeds} times" if seeds > 1 else f"{count} sentences"


def notes(comparison: Comparison) -> list[str]:
    """Returns remarks: the best row, and metrics that are unreliable or not available."""
    found = []
    if best := comparison.best():
        rows, why = best
        all_tie = len(rows) == len(comparison.compared)
        names = " and ".join(row.name for row in rows)
        found.append("No model is significantly better than the others." if all_tie else f"Best: {names} ({why}).")
    if why := comparison.not_judged():
        found.append(why[:1].upper() + why[1:] + ".")
    elif comparison.tools.recognizer and not comparison.recordings:
        found.append("The error rate of the recognizer itself is unknown: these sentences have no recordings.")
    if comparison.strangers is not None:
        found.append(f"Similarity of recordings of different speakers: {comparison.strangers:.3f}.")
    by_way: dict[str, list[str]] = {}
    for name, way in comparison.missing().items():
        by_way.setdefault(way, []).append(BY_NAME[name].title)
    return found + [f"Not available: {', '.join(titles)}. To get it: {way}." for way, titles in by_way.items()]


def _grid(names: Sequence[str], lines: Sequence[Line], width: int) -> str:
    """Lays out columns side by side, and below each other beyond the width."""
    heads = _padded(["", *(line.metric.heading for line in lines)])
    blocks = [heads]
    for place, name in enumerate(names):
        column = _padded([name, *(line.cells[place] for line in lines)])
        if len(blocks[-1][0]) + len(column[0]) + 2 > width and blocks[-1] is not heads:
            blocks.append(heads)
        blocks[-1] = [f"{line}  {cell}" for line, cell in zip(blocks[-1], column)]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def _padded(column):
    return [cell.ljust(max(map(len, column))) for cell in column]


def as_json(comparison: Comparison, sounds: Mapping[int, str]) -> dict[str, Any]:
    """Returns everything as JSON values; `sounds` maps the `id` of a measured sentence to its file."""
    best = comparison.best()
    first, *others = comparison.compared or [None]
    return {
        "format": "myxtts evaluation",
        "settings": comparison.settings,
        "rows": [_row(comparison, row) for row in comparison.rows],
        "differences": [
            {"from": first.name, "to": row.name}
            | {m.name: one._asdict() for m in METRICS if (one := comparison.difference(first, row, m))}
            for row in others
        ],
        "best": best
        and {"rows": [row.name for row in best[0]], "why": best[1], "of": [row.name for row in comparison.compared]},
        "not_judged": comparison.not_judged(),
        "not_available": comparison.missing(),
        "likeness_of_different_speakers": comparison.strangers,
        "spoken": [_spoken(row, one, sounds.get(id(one))) for row in comparison.rows for one in row.measured],
    }


def _row(comparison, row):
    figures = {
        group: {
            metric.name: figure._asdict() | {"sentences": len(row.parts(metric.name, ids))}
            for metric in METRICS
            if (figure := comparison.figure(row, metric, ids))
        }
        for group, ids in {"all": None, **comparison.groups()}.items()
    }
    return {"name": row.name, "kind": row.kind, "figures": figures}


def _spoken(row, one, sound):
    spoken, sentence = one.spoken, one.spoken.sentence
    measured = {name: part / whole * BY_NAME[name].scale for name, (part, whole) in one.parts.items() if whole}
    said = {"row": row.name, "id": sentence.id, "seed": spoken.seed, "text": sentence.text, "speaker": sentence.speaker}
    more = {"understood": one.understood, "doubts": spoken.doubts and list(spoken.doubts), "sound": sound}
    return said | more | {"seconds": one.seconds} | measured


def as_csv(comparison: Comparison) -> str:
    """Returns one line for each value."""
    unjudged, lines = comparison.unjudged(), [COLUMNS]
    for row in comparison.rows:
        for group, found in _row(comparison, row)["figures"].items():
            for name, figure in found.items():
                numbers = ["" if figure[end] is None else f"{figure[end]:.6g}" for end in ("value", "low", "high")]
                judged = "no" if name in unjudged and row.kind != "recordings" else "yes"
                start = [row.name, row.kind, group, name, BY_NAME[name].unit]
                lines.append([*start, *numbers, figure["sentences"], judged])
    return csv_text(lines)

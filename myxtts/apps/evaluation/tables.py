"""The figures as text for a terminal, as JSON and as CSV."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from myxtts.apps.evaluation.comparison import Comparison, everything
from myxtts.apps.evaluation.metrics import BY_NAME, METRICS, Metric
from myxtts.apps.evaluation.statistics import LEVEL, Estimate
from myxtts.config.checks import printable

NOT_AVAILABLE, NOT_JUDGED = "not available", "not judged"
ARROWS = {"low": "lower is better", "high": "higher is better", "": ""}
COLUMNS = ("row", "kind", "group", "metric", "unit", "value", "low", "high", "sentences", "judged")


def number(estimate: Estimate | None, metric: Metric, signed: bool = False) -> str:
    """`12.3 [10.1, 14.8]`, or a dash."""
    if estimate is None:
        return "–"
    form = f"{'+' if signed else ''}.{metric.decimals}f"
    if estimate.low is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def cells(comparison: Comparison, keep=everything) -> list[tuple[str, list[str]]]:
    """The table: a line for each metric, a cell for each row of the comparison."""
    missing, unjudged, lines = comparison.missing(), comparison.unjudged(), []
    for metric in METRICS:
        figures = [comparison.figure(row, metric, keep) for row in comparison.rows]
        if metric.name in missing:
            lines.append((metric.heading, [NOT_AVAILABLE] * len(figures)))
        elif any(figures):
            shown = [number(figure, metric) for figure in figures]
            if metric.name in unjudged:
                own = [row.kind == "recordings" for row in comparison.rows]
                shown = [cell if real else NOT_JUDGED for cell, real in zip(shown, own)]
            lines.append((metric.heading, shown))
    return lines


def difference_cells(comparison: Comparison) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Headings and lines of the difference of each further row to the first compared one."""
    first, *others = comparison.compared or [None]
    if not others:
        return [], []
    lines, unjudged = [], comparison.unjudged()
    for metric in METRICS:
        found = [comparison.difference(first, row, metric) for row in others]
        if any(found) and metric.name not in unjudged:
            lines.append((metric.heading, [number(one, metric, signed=True) for one in found]))
    return [f"{row.name} − {first.name}" for row in others], lines


def as_text(comparison: Comparison, width: int = 120) -> str:
    """The whole comparison for a terminal of so many characters."""
    rows = [row.name for row in comparison.rows]
    blocks = [f"{counted_sentences(comparison)}; in brackets {100 * LEVEL:.0f} % intervals over sentences"]
    blocks.append(_grid(rows, cells(comparison), width))
    for name, keep in comparison.groups().items():
        blocks.append(f"{name}:\n" + _grid(rows, cells(comparison, keep), width))
    names, lines = difference_cells(comparison)
    if lines:
        blocks.append("differences, of the same sentences:\n" + _grid(names, lines, width))
    blocks.append("\n".join(notes(comparison)))
    lines = "\n\n".join(block for block in blocks if block).split("\n")
    return "\n".join(map(printable, lines))


def counted_sentences(comparison: Comparison) -> str:
    """How many sentences were said, and how often."""
    seeds, count = comparison.settings.get("seeds", 1), len(comparison.sentences)
    return f"{count} sentences, each sampled {seeds} times" if seeds > 1 else f"{count} sentences"


def notes(comparison: Comparison) -> list[str]:
    """The best row, and metrics that are not judged or not available."""
    found = []
    if best := comparison.best():
        rows, why = best
        names = " and ".join(row.name for row in rows)
        all_tie = len(rows) == len(comparison.compared)
        found.append("None is better than the others by more than chance." if all_tie else f"Best: {names} ({why}).")
    if why := comparison.not_judged():
        found.append(why[:1].upper() + why[1:] + ".")
    elif comparison.tools.recognizer and not comparison.recordings:
        found.append("How often the recognizer itself errs is not known: there are no recordings of these sentences.")
    if comparison.strangers is not None:
        found.append(f"Similarity of recordings of different speakers here: {comparison.strangers:.3f}.")
    by_way: dict[str, list[str]] = {}
    for name, way in comparison.missing().items():
        by_way.setdefault(way, []).append(BY_NAME[name].title)
    return found + [f"Not available: {', '.join(titles)}. To have it: {way}." for way, titles in by_way.items()]


def _grid(names, lines, width):
    """Columns beside each other, as many as fit the width; the others below."""
    if not lines:
        return ""
    heads = _padded(["", *(head for head, _ in lines)])
    blocks = [heads]
    for place, name in enumerate(names):
        column = _padded([name, *(shown[place] for _, shown in lines)])
        if len(blocks[-1][0]) + len(column[0]) + 2 > width and blocks[-1] is not heads:
            blocks.append(heads)
        blocks[-1] = [f"{line}  {cell}" for line, cell in zip(blocks[-1], column)]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def _padded(column):
    return [cell.ljust(max(map(len, column))) for cell in column]


def as_json(comparison: Comparison, sounds: Mapping[int, str]) -> dict[str, Any]:
    """Everything, as JSON values; `sounds` has the files by `id` of the measured sentence."""
    names, best = [row.name for row in comparison.compared], comparison.best()
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
        "best": best and {"rows": [row.name for row in best[0]], "why": best[1], "of": names},
        "not_judged": comparison.not_judged(),
        "not_available": comparison.missing(),
        "likeness_of_different_speakers": comparison.strangers,
        "spoken": [_spoken(row, one, sounds.get(id(one))) for row in comparison.rows for one in row.measured],
    }


def _row(comparison, row):
    groups = {"all": everything, **comparison.groups()}
    figures = {name: {} for name in groups}
    for name, keep in groups.items():
        for metric in METRICS:
            if (figure := comparison.figure(row, metric, keep)) is not None:
                figures[name][metric.name] = figure._asdict() | {"sentences": len(row.parts(metric.name, keep))}
    return {"name": row.name, "kind": row.kind, "figures": figures}


def _spoken(row, one, sound):
    spoken, sentence = one.spoken, one.spoken.sentence
    measured = {name: part / whole * BY_NAME[name].scale for name, (part, whole) in one.parts.items() if whole}
    said = {"row": row.name, "id": sentence.id, "seed": spoken.seed, "text": sentence.text, "speaker": sentence.speaker}
    more = {"understood": one.understood, "doubts": spoken.doubts and list(spoken.doubts), "sound": sound}
    return said | more | {"seconds": one.seconds} | measured


def as_csv(comparison: Comparison) -> str:
    """A line for each figure."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    unjudged = comparison.unjudged()
    for row in comparison.rows:
        for group, found in _row(comparison, row)["figures"].items():
            for name, figure in found.items():
                values = [figure["value"], figure["low"], figure["high"]]
                numbers = ["" if value is None else f"{value:.6g}" for value in values]
                judged = "no" if name in unjudged and row.kind != "recordings" else "yes"
                writer.writerow(
                    [_cell(row.name), row.kind, group, name, BY_NAME[name].unit, *numbers, figure["sentences"], judged]
                )
    return file.getvalue()


def _cell(text):
    """A name that a spreadsheet would not compute."""
    return f"'{text}" if text[:1] in "=+-@" else text

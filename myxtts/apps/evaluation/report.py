"""Reports of an evaluation: text for a terminal, JSON, CSV, and `report.html` with tables, bars and audio players."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from myxtts.apps.evaluation.command import CSV_FILE, JSON_FILE, PAGE, SOUNDS
from myxtts.apps.evaluation.comparison import BY_NAME, FEW, LEVEL, METRICS, Comparison, Estimate, Metric, compare
from myxtts.apps.evaluation.sentences import Row
from myxtts.audio.encoding import write_audio
from myxtts.config.checks import counted, printable
from myxtts.hearing.measuring import Measurer, Sentence, spread
from myxtts.storage.files import csv_text, write_json, write_text, write_whole_folder

COLUMNS = ("row", "kind", "group", "metric", "unit", "value", "low", "high", "sentences", "evaluated")
MOST_SENTENCES, WORST = 40, 10
"""The HTML report plays up to `MOST_SENTENCES` sentences of each source, and each model's `WORST` worst sentences."""
BAR_WIDTH = 160


def evaluate_into(
    folder: Path, sources: Sequence[Row], sentences: Sequence[Sentence], measurer: Measurer, settings: dict
) -> Comparison:
    """Evaluates the sources and writes `evaluation.json`, `evaluation.csv`, and `report.html` with audio files.

    An existing folder is replaced only when all files are complete.
    """
    with write_whole_folder(folder, sync=False) as new:
        (new / SOUNDS).mkdir()
        paths: dict[int, str] = {}

        def keep(row):
            one = row.measured[-1]
            paths[id(one)] = f"{SOUNDS}/{len(paths):05d}.flac"
            write_audio(new / paths[id(one)], one.spoken.samples, one.spoken.sample_rate)
            if len(row.measured) % 20 == 1:
                print(f"{printable(row.name)}: {len(row.measured)} …", file=sys.stderr, flush=True)

        comparison = compare(sources, sentences, measurer, settings, keep)
        shown, kept = {one.id for one in spread(comparison.sentences, MOST_SENTENCES)}, {}
        for row in comparison.rows:  # the page plays the same sentences from all rows, and each model's worst
            some = [one for key, one in row.first_times.items() if key in shown]
            kept |= {id(one): paths[id(one)] for one in some + row.worst(WORST)}
        for path in set(paths.values()) - set(kept.values()):
            (new / path).unlink()
        write_text(new / PAGE, _page(comparison, kept))
        write_text(new / CSV_FILE, as_csv(comparison))
        write_json(new / JSON_FILE, as_json(comparison, kept))
    return comparison


def _page(comparison: Comparison, sounds: Mapping[int, str]) -> str:
    """Renders the HTML page. `sounds` maps `id(measurement)` to the path of the measurement's audio file."""
    source = Path(__file__).with_suffix(".html").read_text("utf-8")
    finalize = lambda value: printable(value) if type(value) is str else value
    return jinja2.Template(source, autoescape=True, finalize=finalize).render(
        title=", ".join(row.name for row in comparison.compared),
        counted=counted_sentences(comparison),
        level=f"{100 * LEVEL:.0f}",
        notes=notes(comparison),
        tables=tables(comparison),
        bars=_bars,
        width=BAR_WIDTH,
        zip=zip,
        sentences=spread(comparison.sentences, MOST_SENTENCES),
        rows=[(row.name, row.first_times, row.worst(WORST)) for row in comparison.rows],
        sound=lambda one: sounds.get(id(one)),
        metrics=METRICS,
    )


def _bars(estimates):
    """Converts each estimate to (low, value, high) in pixels on a common scale, or None if there is nothing to draw."""
    ends = [end for one in estimates if one for end in one if end is not None]
    least, most = min(ends, default=0), max(ends, default=0)
    place = lambda value: 4 + (BAR_WIDTH - 8) * (value - least) / (most - least)
    spans = [one and [one.value if end is None else end for end in (one.low, one.value, one.high)] for one in estimates]
    return [None if one is None or least == most else [f"{place(end):.1f}" for end in one] for one in spans]


class Line(NamedTuple):
    """Line of a results table: a metric, the texts of the cells, and the estimates that the cells show."""

    metric: Metric
    cells: list[str]
    estimates: list[Estimate | None]
    """The estimate that each cell shows; None if the cell shows no number."""


def tables(comparison: Comparison) -> list[tuple[str, list[str], list[Line]]]:
    """Returns (title, column names, lines) of each table. A table describes all sentences, a group, or differences."""
    missing, unjudged, rows, found = comparison.missing(), comparison.unjudged(), comparison.rows, []
    for group, ids in comparison.groups.items():
        lines = []
        for metric in METRICS:
            estimates = [row[group].get(metric.name) for row in comparison.figures]
            if metric.name in missing:
                lines.append(Line(metric, ["not available"] * len(rows), [None] * len(rows)))
            elif any(estimates):
                off = [metric.name in unjudged and row.kind != "recordings" for row in rows]
                cells = ["not evaluated" if is_off else number(one, metric) for one, is_off in zip(estimates, off)]
                lines.append(Line(metric, cells, [None if is_off else one for one, is_off in zip(estimates, off)]))
        have, total = [len(row.first_times.keys() & ids) for row in rows], counted(len(ids), "sentence")
        names = [row.name + f" ({count} of {total})" * (count < len(ids)) for row, count in zip(rows, have)]
        found.append(("" if group == "all" else group, names, lines))
    lines, names = [], [f"{row.name} − {comparison.compared[0].name}" for row in comparison.compared[1:]]
    for metric in METRICS:
        estimates = [row.get(metric.name) for row in comparison.differences]
        if any(estimates) and metric.name not in unjudged:
            lines.append(Line(metric, [number(one, metric, "+") for one in estimates], estimates))
    return found + ([("differences on the same sentences", names, lines)] if lines else [])


def number(estimate: Estimate | None, metric: Metric, sign: str = "") -> str:
    """Formats an estimate as `12.3 [10.1, 14.8]`, with a leading `+` if `sign` is "+". None becomes a dash."""
    if estimate is None:
        return "–"
    form = f"{sign}.{metric.decimals}f"
    interval = "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return f"{estimate.value:{form}}{interval}"


def as_text(comparison: Comparison, width: int = 120) -> str:
    """Formats the results as tables and notes for a terminal that is `width` characters wide."""
    head = f"{counted_sentences(comparison)}; brackets are {100 * LEVEL:.0f} % confidence intervals"
    grids = ((f"{title}:\n" if title else "") + _grid(*table, width) for title, *table in tables(comparison))
    blocks = head, *grids, "\n".join(notes(comparison))
    return "\n".join(map(printable, "\n\n".join(filter(None, blocks)).split("\n")))


def counted_sentences(comparison: Comparison) -> str:
    """Formats the number of sentences and, if each was sampled several times, the number of samples per sentence."""
    seeds, count = comparison.settings.get("seeds", 1), len(comparison.sentences)
    return counted(count, "sentence") + f", each sampled {seeds} times" * (seeds > 1)


def notes(comparison: Comparison) -> list[str]:
    """Returns sentences that tell which model is best, and which metrics are unreliable or not available."""
    count = len(comparison.sentences)
    found = [f"Only {counted(count, 'sentence')}, too few to compare models. Use 30 (--data, --texts)."] * (count < FEW)
    found += [f"{name} is left out: {why}" for name, why in comparison.left_out.items()]
    if best := comparison.best():
        rows, why = best
        all_tie = len(rows) == len(comparison.compared)
        names = " and ".join(row.name for row in rows)
        found.append("No model is significantly better than the others." if all_tie else f"Best: {names} ({why}).")
    if why := comparison.not_judged():
        found.append(why[:1].upper() + why[1:] + ".")
    elif comparison.measurer.recognizer and not comparison.recordings:
        found.append("The error rate of the recognizer itself is unknown: these sentences have no recordings.")
    if comparison.strangers is not None:
        found.append(f"Similarity of recordings of different speakers: {comparison.strangers:.3f}.")
    missing = comparison.missing()
    titles = lambda hint: ", ".join(BY_NAME[name].title for name, one in missing.items() if one == hint)
    return found + [f"Not available: {titles(hint)}. To get it: {hint}." for hint in dict.fromkeys(missing.values())]


def _grid(names: Sequence[str], lines: Sequence[Line], width: int) -> str:
    """Formats a table as text; columns that do not fit in `width` characters continue in another table below."""
    padded = lambda column: [cell.ljust(max(map(len, column))) for cell in column]
    heads = padded(["", *(line.metric.heading for line in lines)])
    blocks = [heads]
    for place, name in enumerate(names):
        column = padded([name, *(line.cells[place] for line in lines)])
        if len(blocks[-1][0]) + len(column[0]) + 2 > width and blocks[-1] is not heads:
            blocks.append(heads)
        blocks[-1] = [f"{line}  {cell}" for line, cell in zip(blocks[-1], column)]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def as_json(comparison: Comparison, sounds: Mapping[int, str]) -> dict[str, Any]:
    """Returns the content of `evaluation.json`. `sounds` maps the `id()` of a measurement to its audio file's path."""
    best, compared = comparison.best(), [row.name for row in comparison.compared]
    return {
        "format": "myxtts evaluation",
        "settings": comparison.settings,
        "rows": [
            {"name": row.name, "kind": row.kind, "figures": figures}
            for row, figures in zip(comparison.rows, _figures(comparison))
        ],
        "differences": [
            {"from": compared[0], "to": name} | {metric: one._asdict() for metric, one in found.items()}
            for name, found in zip(compared[1:], comparison.differences)
        ],
        "best": best and {"rows": [row.name for row in best[0]], "why": best[1], "of": compared},
        "left_out": comparison.left_out,
        "not_evaluated": comparison.not_judged(),
        "not_available": comparison.missing(),
        "likeness_of_different_speakers": comparison.strangers,
        "spoken": [_spoken(row, one, sounds.get(id(one))) for row in comparison.rows for one in row.measured],
    }


def _figures(comparison):
    """Yields the estimates of each row: `{group: {metric: {"value": …, "low": …, "high": …, "sentences": …}}}`."""
    for row, groups in zip(comparison.rows, comparison.figures):
        found = {}
        for group, figures in groups.items():
            count = lambda name, ids=comparison.groups[group]: {"sentences": len(row.parts(name, ids))}
            found[group] = {name: one._asdict() | count(name) for name, one in figures.items()}
        yield found


def _spoken(row, one, sound):
    """Converts a sentence's measurements, `one`, to JSON values. `sound` is the path of its audio file, or None."""
    spoken, sentence = one.spoken, one.spoken.sentence
    measured = {name: part / whole * BY_NAME[name].scale for name, (part, whole) in one.parts.items() if whole}
    key = {"row": row.name, "id": sentence.id, "seed": spoken.seed, "text": sentence.text, "speaker": sentence.speaker}
    more = {"understood": one.understood, "doubts": spoken.doubts and list(spoken.doubts), "sound": sound}
    return key | more | {"seconds": one.seconds} | measured


def as_csv(comparison: Comparison) -> str:
    """Formats the results as CSV: one line per combination of `Row`, group of sentences and metric."""
    unjudged, lines = comparison.unjudged(), [COLUMNS]
    for row, figures in zip(comparison.rows, _figures(comparison)):
        for group, found in figures.items():
            for name, figure in found.items():
                numbers = ["" if figure[end] is None else f"{figure[end]:.6g}" for end in ("value", "low", "high")]
                judged = "no" if name in unjudged and row.kind != "recordings" else "yes"
                start = [row.name, row.kind, group, name, BY_NAME[name].unit]
                lines.append([*start, *numbers, figure["sentences"], judged])
    return csv_text(lines)

"""A page with the figures and the sound, which needs no network: `report.html` beside a folder `sounds`."""

import html
from collections.abc import Mapping

from myxtts.apps.evaluation.comparison import Comparison
from myxtts.apps.evaluation.metrics import METRICS
from myxtts.apps.evaluation.statistics import LEVEL
from myxtts.apps.evaluation.tables import ARROWS, cells, counted_sentences, difference_cells, notes
from myxtts.config.checks import printable
from myxtts.hearing.measuring import Measured
from myxtts.hearing.spoken import spread

MOST_SENTENCES = 40
"""Sentences that can be heard from all rows."""
WORST = 10
"""Sentences of each model that went worst."""
BAR_WIDTH = 160
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1b1b1b;
  background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; } .wide th:first-child { position: sticky; left: 0; min-width: 8rem; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d8d8d8; padding: .4rem .8rem .4rem 0; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid #1b1b1b; }
td.off { color: #6b6b6b; } small { color: #5a5a5a; display: block; font-weight: normal; }
svg { display: block; } audio { width: 15rem; height: 2.2rem; }
.doubt { color: #a11; }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e6e6e6; } th, td { border-color: #3a3a3a; } thead th { border-color: #e6e6e6; }
  .wide th:first-child { background: #161616; } small, td.off { color: #a8a8a8; } .doubt { color: #f88; }
  svg { color: #8ab4f8; }
}
"""


def heard(comparison: Comparison) -> list[Measured]:
    """What the page lets one hear: some sentences of all rows, said with the first seed, and the worst of each model.

    The others need no file.
    """
    shown = {one.id for one in spread(comparison.sentences, MOST_SENTENCES)}
    found: list[Measured] = []
    for row in comparison.rows:
        some = [one for one in _first_times(row.measured) if one.spoken.sentence.id in shown]
        some += [one for one in row.worst(WORST) if one not in some] if row.kind == "model" else []
        found += some
    return found


def page(comparison: Comparison, sounds: Mapping[int, str]) -> str:
    """The page; `sounds` has the files, relative to it, by `id` of the measured sentence."""
    names = [row.name for row in comparison.rows]
    body = [f"<h1>How {_and([row.name for row in comparison.compared])} speak{_s(comparison)}</h1>"]
    body.append(f"<p>{counted_sentences(comparison)}. In brackets and as bars: {100 * LEVEL:.0f} % ")
    body.append("intervals over sentences. Recordings and their copy through the model's codes show what can be ")
    body.append("reached. Bars of one line share a scale, from the least to the greatest of its values.</p>")
    body.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes(comparison)) + "</ul>")
    body.append(_figures(comparison, names))
    for name, keep in comparison.groups().items():
        body.append(f"<h2>{_text(name.capitalize())}</h2>" + _grid(names, cells(comparison, keep)))
    heads, lines = difference_cells(comparison)
    if lines:
        body.append("<h2>Differences, of the same sentences</h2>" + _grid(heads, lines))
    body.append("<h2>Sound</h2>" + _sounds(comparison, names, sounds))
    for row in comparison.rows:
        if row.kind == "model" and row.measured:
            body.append(f"<h2>{_text(row.name)}: the {min(WORST, len(row.measured))} that went worst</h2>")
            body.append(_worst(row, sounds))
    body.append(_meanings())
    title = _and([row.name for row in comparison.compared])
    metas = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{metas}<title>{title}: evaluation</title><style>{_STYLE}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}<body>{"".join(body)}</body></html>\n'


def _figures(comparison, names):
    lines = []
    by_heading = {metric.heading: metric for metric in METRICS}
    for head, shown in cells(comparison):
        metric = by_heading[head]
        figures = [comparison.figure(row, metric) for row in comparison.rows]
        hidden = [cell != "–" and not cell[:1].lstrip("+-").isdigit() for cell in shown]
        bars = _bars([None if off else figure for figure, off in zip(figures, hidden)])
        row = "".join(
            f"<td{' class=off' if off else ''}>{_text(cell)}{bar}</td>" for cell, bar, off in zip(shown, bars, hidden)
        )
        lines.append(f"<tr><th scope=row>{_text(head)}<small>{ARROWS[metric.better]}</small></th>{row}</tr>")
    return _table(["", *names], lines)


def _bars(figures):
    """For each figure a bar over its interval with a mark at its value, all on the scale of the line."""
    ends = [end for one in figures if one for end in (one.value, one.low, one.high) if end is not None]
    if not ends or max(ends) == min(ends):
        return [""] * len(figures)
    least, most = min(ends), max(ends)
    at = lambda value: 4 + (BAR_WIDTH - 8) * (value - least) / (most - least)
    return ["" if one is None else _bar(at, one) for one in figures]


def _bar(at, figure):
    low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
    line = f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="6" y2="6" stroke="currentColor" stroke-width="3"/>'
    mark = f'<circle cx="{at(figure.value):.1f}" cy="6" r="4" fill="currentColor"/>'
    return f'<svg width="{BAR_WIDTH}" height="12" aria-hidden="true">{line}{mark}</svg>'


def _sounds(comparison, names, sounds):
    shown = {one.id: one for one in spread(comparison.sentences, MOST_SENTENCES)}
    said = [{one.spoken.sentence.id: one for one in reversed(_first_times(row.measured))} for row in comparison.rows]
    lines = []
    for key, sentence in shown.items():
        players = "".join(f"<td>{_player(one.get(key), sounds)}</td>" for one in said)
        who = _text(" · ".join(filter(None, (sentence.id, sentence.speaker, sentence.language))))
        lines.append(f"<tr><th scope=row dir=auto>{_text(sentence.text)}<small>{who}</small></th>{players}</tr>")
    return _table(["", *names], lines)


def _worst(row, sounds):
    lines = []
    for one in row.worst(WORST):
        sentence = one.spoken.sentence
        what = f"{_text(sentence.text)}<small>{_text(f'{sentence.id} · seed {one.spoken.seed}')}</small>"
        lines.append(f"<tr><th scope=row dir=auto>{what}</th><td>{_player(one, sounds)}</td></tr>")
    return _table(["", ""], lines)


def _player(one, sounds):
    if one is None:
        return "–"
    name = sounds.get(id(one))
    player = f'<audio controls preload="none" src="{html.escape(name)}"></audio>' if name else "–"
    understood = (
        "" if one.understood is None else f"<small dir=auto>understood: {_text(one.understood) or '(nothing)'}</small>"
    )
    doubts = f"<small class=doubt>{_text('; '.join(one.spoken.doubts))}</small>" if one.spoken.doubts else ""
    return player + understood + doubts


def _meanings():
    known = [metric for metric in METRICS if metric.meaning]
    items = "".join(f"<dt>{_text(one.heading)}</dt><dd>{_text(one.meaning)}</dd>" for one in known)
    return f"<h2>What the figures are</h2><dl>{items}</dl>"


def _grid(names, lines):
    rows = [
        f"<tr><th scope=row>{_text(head)}</th>{''.join(f'<td>{_text(cell)}</td>' for cell in shown)}</tr>"
        for head, shown in lines
    ]
    return _table(["", *names], rows)


def _table(heads, rows):
    head = "".join(f"<th scope=col>{_text(name)}</th>" for name in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _first_times(judged):
    """Of each sentence what was said with the first seed."""
    first = {}
    for one in judged:
        first.setdefault(one.spoken.sentence.id, one)
    return list(first.values())


def _and(names):
    return _text(" and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else ""))))


def _s(comparison):
    return "s" if len(comparison.compared) == 1 else ""


def _text(text):
    return html.escape(printable(str(text)))

"""Output of an evaluation: JSON, CSV, and `report.html` with tables, bars and audio players."""

import html
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from myxtts.apps.evaluation import tables
from myxtts.apps.evaluation.comparison import METRICS, Comparison, compare
from myxtts.apps.evaluation.sources import Source
from myxtts.apps.evaluation.statistics import LEVEL
from myxtts.apps.evaluation.subjects import CSV_FILE, JSON_FILE, PAGE, SOUNDS, check_output
from myxtts.audio.encoding import write_audio
from myxtts.config.checks import printable
from myxtts.hearing.measuring import Measured, Sentence, Tools, spread
from myxtts.storage.files import write_json, write_text, write_whole_folder

MOST_SENTENCES = 40
"""Number of sentences with the audio of all rows."""
WORST = 10
"""Number of worst sentences shown for each model."""
BAR_WIDTH = 160
SHOWN_EVERY = 20
"""Sentences between progress lines."""
ARROWS = {"low": "lower is better", "high": "higher is better", "": ""}


def evaluate_into(
    folder: Path, sources: Sequence[Source], sentences: Sequence[Sentence], tools: Tools, settings: dict
) -> str:
    """Writes `evaluation.json`, `evaluation.csv`, `report.html` and its audio; returns the table for a terminal.

    The folder is replaced when everything is complete.
    """
    check_output(folder)
    with write_whole_folder(folder, sync=False) as new:
        (new / SOUNDS).mkdir()
        paths: dict[int, str] = {}

        def keep(row):
            one = row.measured[-1]
            paths[id(one)] = f"{SOUNDS}/{len(paths):05d}.flac"
            write_audio(new / paths[id(one)], one.spoken.samples, one.spoken.sample_rate)
            if len(row.measured) % SHOWN_EVERY == 1:
                print(f"{printable(row.name)}: {len(row.measured)} …", file=sys.stderr, flush=True)

        comparison = compare(sources, sentences, tools, settings, keep)
        kept = {id(one): paths[id(one)] for one in _heard(comparison)}
        for path in set(paths.values()) - set(kept.values()):
            (new / path).unlink()
        write_text(new / PAGE, _page(comparison, kept))
        write_text(new / CSV_FILE, tables.as_csv(comparison))
        write_json(new / JSON_FILE, tables.as_json(comparison, kept))
    return tables.as_text(comparison, shutil.get_terminal_size((120, 24)).columns)


def _heard(comparison: Comparison) -> list[Measured]:
    """Returns the sentences with audio on the page: some of all rows, with the first seed, and each model's worst."""
    shown, found = {one.id for one in spread(comparison.sentences, MOST_SENTENCES)}, []
    for row in comparison.rows:
        some = [one for key, one in row.first_times.items() if key in shown]
        found += some + [one for one in row.worst(WORST) if one not in some]
    return found


def _page(comparison: Comparison, sounds: Mapping[int, str]) -> str:
    """Renders the page; `sounds` maps the `id` of a measured sentence to its file, relative to the page."""
    names, compared = [row.name for row in comparison.rows], [row.name for row in comparison.compared]
    parts = [_figures(names, tables.figure_lines(comparison))]
    for name, ids in comparison.groups().items():
        parts += [f"<h2>{_text(name.capitalize())}</h2>", _figures(names, tables.figure_lines(comparison, ids))]
    heads, lines = tables.difference_lines(comparison)
    if lines:
        parts += ["<h2>Differences on the same sentences</h2>", _figures(heads, lines)]
    audio = [_sounds(comparison, names, sounds)]
    for row in comparison.rows:
        if worst := row.worst(WORST):
            said = [(one, f"{one.spoken.sentence.id} · seed {one.spoken.seed}") for one in worst]
            rows = [_line(one.spoken.sentence.text, note, [_player(one, sounds)]) for one, note in said]
            audio += [f"<h2>{_text(row.name)}: the {len(worst)} worst sentences</h2>", _table(["", ""], rows)]
    meanings = (f"<dt>{_text(one.heading)}</dt><dd>{_text(one.meaning)}</dd>" for one in METRICS if one.meaning)
    return Template(Path(__file__).with_suffix(".html").read_text("utf-8")).substitute(
        title=_text(", ".join(compared)),
        sentences=tables.counted_sentences(comparison),
        level=f"{100 * LEVEL:.0f}",
        notes="".join(f"<li>{_text(note)}</li>" for note in tables.notes(comparison)),
        tables="\n".join(parts),
        audio="\n".join(audio),
        meanings="".join(meanings),
    )


def _figures(names, lines):
    rows = []
    for line in lines:
        cells = "".join(
            f"<td{'' if estimate else ' class=off'}>{_text(cell)}{bar}</td>"
            for cell, estimate, bar in zip(line.cells, line.estimates, _bars(line.estimates))
        )
        note = f"<small>{ARROWS[line.metric.better]}</small>"
        rows.append(f"<tr><th scope=row>{_text(line.metric.heading)}{note}</th>{cells}</tr>")
    return _table(["", *names], rows)


def _bars(estimates):
    """Draws each estimate as a bar over its interval with a mark at its value, all on one scale."""
    ends = [end for one in estimates if one for end in one if end is not None]
    least, most = min(ends, default=0), max(ends, default=0)
    if least == most:
        return [""] * len(estimates)
    bars = []
    for one in estimates:
        low, value, high = (
            4 + (BAR_WIDTH - 8) * ((one.value if end is None else end) - least) / (most - least)
            for end in ((one.low, one.value, one.high) if one else (least,) * 3)
        )
        line = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="6" y2="6" stroke="currentColor" stroke-width="3"/>'
        mark = f'<circle cx="{value:.1f}" cy="6" r="4" fill="currentColor"/>'
        bars.append(f'<svg width="{BAR_WIDTH}" height="12" aria-hidden="true">{line}{mark}</svg>' if one else "")
    return bars


def _sounds(comparison, names, sounds):
    rows = []
    for one in spread(comparison.sentences, MOST_SENTENCES):
        who = " · ".join(filter(None, (one.id, one.speaker, one.language)))
        players = [_player(row.first_times.get(one.id), sounds) for row in comparison.rows]
        rows.append(_line(one.text, who, players))
    return _table(["", *names], rows)


def _line(text, note, players):
    cells = "".join(f"<td>{player}</td>" for player in players)
    return f"<tr><th scope=row dir=auto>{_text(text)}<small>{_text(note)}</small></th>{cells}</tr>"


def _player(one, sounds):
    if one is None:
        return "–"
    name = sounds.get(id(one))
    player = f'<audio controls preload="none" src="{html.escape(name)}"></audio>' if name else "–"
    if one.understood is not None:
        player += f"<small dir=auto>recognized: {_text(one.understood) or '(nothing)'}</small>"
    return player + (f"<small class=doubt>{_text('; '.join(one.spoken.doubts))}</small>" if one.spoken.doubts else "")


def _table(heads, rows):
    head = "".join(f"<th scope=col>{_text(name)}</th>" for name in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _text(text):
    return html.escape(printable(str(text)))

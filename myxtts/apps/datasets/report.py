"""`report.html`: waveforms, statistics and audio players of a data set, without network access."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from statistics import median
from string import Template
from typing import Any

import numpy as np

from myxtts.apps.datasets.set_folder import REPORT
from myxtts.apps.datasets.source import PAUSE
from myxtts.config.checks import counted
from myxtts.storage.files import write_text

_ROW_SECONDS = 60
_MOST_ROWS = 240
_WIDTH, _HEIGHT = 1200, 56
_WORST = 10
_USUAL_SNR_DB, _USUAL_SECONDS = 40.0, 6.0


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Writes the report of a data set from the records of its recordings."""
    clips = [(record, row) for record in records for row in record["rows"] if row["clip"]]
    parts = dict(totals=_totals(records, clips), lengths=_histogram([_seconds(*clip) for clip in clips]))
    parts |= dict(most=_WORST, worst=_worst(records), left_out=_left_out(records))
    page = Template(Path(__file__).with_name("report.html").read_text("utf-8"))
    write_text(folder / REPORT, page.substitute(parts, recordings="\n".join(_recordings(records))))


def _seconds(record, row):
    return (row["end"] - row["start"]) / record["sample_rate"]


def duration(seconds: float) -> str:
    """Formats a duration in seconds or minutes."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _totals(records, clips):
    whole = sum(record["num_samples"] / record["sample_rate"] for record in records)
    kept, held = sum(_seconds(*clip) for clip in clips), [clip for clip in clips if clip[1]["validation"]]
    count, held_seconds = counted(len(records), "recording"), sum(_seconds(*clip) for clip in held)
    made = f"{counted(len(clips), 'clip')} of {duration(kept)} ({100 * kept / whole:.0f} %)"
    validation = f"Validation: {counted(len(held), 'clip')}, {duration(held_seconds)}"
    return f"<p>{count} of {duration(whole)}: {made}. {validation}. <code>segments.csv</code> lists all segments.</p>"


def _histogram(lengths):
    counts = np.bincount(np.array(lengths, int))
    bar = lambda count: f'<meter value="{count}" max="{counts.max()}"></meter>'
    return _table(["length", "clips", ""], [[f"{k}–{k + 1} s", count, bar(count)] for k, count in enumerate(counts)])


def _worst(records):
    ranked = []
    for record in records:
        clips = [row for row in record["rows"] if row["clip"]]
        usual = median([row["facts"]["characters_per_second"] for row in clips] or [0])
        ranked += [(_badness(row["facts"], usual), _seconds(record, row), row) for row in clips]
    rows = []
    for _, seconds, row in sorted(ranked, key=lambda one: -one[0])[:_WORST]:
        facts, name = row["facts"], escape(row["clip"], quote=True)
        player = f'<audio controls preload="none" src="{name}"></audio><br>{name}'
        values = (seconds, facts["characters_per_second"], facts["snr_db"], facts["end_db"])
        rows.append([player, f"<bdi>{escape(row['text'])}</bdi>", *(f"{value:.1f}" for value in values)])
    return _table(["clip", "text", "seconds", "letters per second", "SNR, dB", "loudest end, dB"], rows)


def _badness(facts, usual_rate):
    """Scores a clip by unusual speech rate, noise and loud ends; higher is worse."""
    rate = abs(facts["characters_per_second"] / usual_rate - 1) if usual_rate and facts["characters_per_second"] else 0
    noise = max(0.0, _USUAL_SNR_DB - facts["snr_db"]) / 20
    ends = max(0.0, facts["end_db"] + 40) / 20
    return 3 * rate + noise + ends


def _left_out(records):
    totals = defaultdict(list)
    for record in records:
        for row in record["rows"]:
            if not row["clip"]:
                totals[row["reason"]].append(_seconds(record, row))
    by_length = sorted(totals.items(), key=lambda one: -sum(one[1]))
    rows = [[escape(reason), len(seconds), duration(sum(seconds))] for reason, seconds in by_length]
    return _table(["reason", "segments", "duration"], rows)


def _table(heads, rows):
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _recordings(records):
    rows_left = _MOST_ROWS
    for record in records:
        seconds = record["num_samples"] / record["sample_rate"]
        loudness = "silent" if record["loudness"] is None else f"{record['loudness']:.1f} LUFS"
        facts = f"{duration(seconds)}, {record['sample_rate']} Hz, {loudness}, gain {record['gain_db']:+.1f} dB"
        lines = "".join(f"<p class=note>{escape(note)}</p>" for note in [facts, *record["notes"]])
        count = min(rows_left, -int(-seconds // _ROW_SECONDS))
        rows_left -= count
        waves = "".join(_wave(record, number * _ROW_SECONDS) for number in range(count))
        more = "" if count * _ROW_SECONDS >= seconds else "<p>The rest is not shown.</p>"
        drawn = f"<details open><summary>waveform, one minute per line</summary>{waves}{more}</details>"
        yield f"<h3>{escape(record['name'])}</h3>{lines}{drawn}"


def _wave(record, start):
    """Draws one minute: waveform, clips and dropped speech."""
    rate, step = record["sample_rate"], record["envelope_seconds"]
    peaks = bytes.fromhex(record["envelope"])[int(start / step) : int((start + _ROW_SECONDS) / step) + 1]
    scale, middle = _WIDTH / _ROW_SECONDS, _HEIGHT / 2
    shapes = []
    for row in record["rows"]:
        low, high = row["start"] / rate - start, row["end"] / rate - start
        if high > 0 and low < _ROW_SECONDS and row["reason"] != PAUSE:
            kind = ("held" if row["validation"] else "kept") if row["clip"] else "left"
            low, high = max(low, 0), min(high, _ROW_SECONDS)
            title = escape(row["text"] or row["reason"])
            box = f'x="{low * scale:.1f}" width="{(high - low) * scale - 1:.1f}" height="{_HEIGHT}"'
            shapes.append(f'<rect class="{kind}" {box}><title>{title}</title></rect>')
    tops = [f"{k * step * scale:.1f},{middle - peak * middle / 100:.1f}" for k, peak in enumerate(peaks)]
    bottoms = [f"{k * step * scale:.1f},{middle + peak * middle / 100:.1f}" for k, peak in enumerate(peaks)]
    shapes.append(f'<path d="M{" ".join([*tops, *reversed(bottoms)])}Z"/>')
    shapes.append(f'<text x="2" y="11">{timedelta(seconds=start)}</text>')
    return f'<svg class="wave" viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(shapes)}</svg>'

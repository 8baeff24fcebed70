"""Evaluation: speaks and measures the sentences, and writes the reports."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from myxtts.apps.evaluation.comparison import Comparison, Row
from myxtts.apps.evaluation.report import heard, page
from myxtts.apps.evaluation.sources import Source
from myxtts.apps.evaluation.subjects import CSV_FILE, JSON_FILE, PAGE, SOUNDS, check_output
from myxtts.apps.evaluation.tables import as_csv, as_json, as_text
from myxtts.audio.encoding import write_audio
from myxtts.config.checks import UserError, printable
from myxtts.hearing.measuring import Measurer, Tools
from myxtts.hearing.spoken import Sentence
from myxtts.storage.files import write_json, write_text, write_whole_folder

SHOWN_EVERY = 20
"""Sentences between progress lines."""


def compare(
    sources: Iterable[Source],
    sentences: Sequence[Sentence],
    tools: Tools,
    settings: dict,
    on_measured: Callable[[Row], None] = lambda row: None,
) -> Comparison:
    """Measures the speech of all sources.

    Args:
        on_measured: Called with the row after each sentence, while its last measurement still has the samples.
    """
    measure, rows = Measurer(tools), []
    for source in sources:
        row = Row(source.name, source.kind)
        for spoken in source.speak():
            row.measured.append(measure(spoken))
            on_measured(row)
            row.measured[-1].without_samples()
        if row.measured:
            rows.append(row)
        elif source.kind in ("model", "files"):
            raise UserError(f"{source.name} can say none of the {len(sentences)} sentences.")
    return Comparison(rows, list(sentences), tools, measure.similarity_of_strangers(sentences), settings)


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
        kept = {id(one): paths[id(one)] for one in heard(comparison)}
        for path in set(paths.values()) - set(kept.values()):
            (new / path).unlink()
        write_text(new / PAGE, page(comparison, kept))
        write_text(new / CSV_FILE, as_csv(comparison))
        write_json(new / JSON_FILE, as_json(comparison, kept))
    return as_text(comparison, shutil.get_terminal_size((120, 24)).columns)

"""Evaluates: what is compared says the same sentences, which are measured, and the pages are written."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from myxtts.apps.evaluation.comparison import Comparison, Row
from myxtts.apps.evaluation.report import heard, page
from myxtts.apps.evaluation.sentences import (
    espeak_data,
    in_voices,
    sentences_of_data,
    sentences_of_texts,
    sentences_of_wavs,
    voices_of,
)
from myxtts.apps.evaluation.sources import Source, files, model_sources, recordings
from myxtts.apps.evaluation.subjects import CSV_FILE, JSON_FILE, PAGE, SOUNDS, Subject, check_output
from myxtts.apps.evaluation.tables import as_csv, as_json, as_text
from myxtts.audio.encoding import write_audio
from myxtts.config.checks import UserError, printable
from myxtts.hearing.measuring import Measurer, Tools
from myxtts.hearing.spoken import Sentence
from myxtts.inference.synthesizer import Synthesizer
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.files import write_json, write_text, write_whole_folder
from myxtts.storage.provenance import read_config

SHOWN_EVERY = 20
"""Sentences from one line of progress to the next."""


def choose_sentences(
    judged: Sequence[Subject],
    data: str | None,
    texts: str | None,
    voices: Sequence[str],
    language: str,
    count: int,
    room: Path | None = None,
) -> list[Sentence]:
    """The sentences that all of them say.

    Args:
        room: Empty folder for recordings by eSpeak NG, which are the reference of the bundled model.

    Raises:
        UserError: There are none, or nobody whose voice they could be said in.
    """
    models = [one.folder for one in judged if one.is_model]
    data = data or _own_data(models)
    for voice in voices:
        if not Path(voice).is_file():
            raise UserError(f"--voices must be recordings. {voice} is not a file.")
    if texts:
        if not voices and data:
            voices = voices_of(sentences_of_data(data, models, language, count))
        if models and not voices:
            raise UserError("The texts need voices to be said in: give --voices FILE… or --data FOLDER.")
        return sentences_of_texts(texts, voices, language, count)
    if not data and room and any(map(is_base, models)):
        data = espeak_data(room, language)
    if data:
        found = sentences_of_data(data, models, language, count)
        return in_voices(found, voices) if voices else found
    if models:
        lack = f"Where the recordings lie that {model_name(models[0])} was trained on is not known, or they are gone"
        raise UserError(f"{lack}. Give --data FOLDER, or --texts FILE and --voices FILE….")
    return sentences_of_wavs(judged[0].folder, language, count)


def _own_data(models):
    """The validation data of the first run, or what it was trained on, where that is still there."""
    for folder in models:
        data = read_config(folder).data
        for named in filter(None, (data.val_data, data.train_data)):
            if Path(named).exists():
                return named
    return None


def rows_to_speak(
    judged: Sequence[Subject], sentences: Sequence[Sentence], seeds: Sequence[int], decoder: str | None = None
) -> list[Source]:
    """Recordings, and each subject with its resynthesis before it."""
    found = [recordings(sentences)] if any(one.recording for one in sentences) else []
    for one in judged:
        if one.is_model:
            load = partial(Synthesizer.load, one.folder, one.which, decoder=decoder)
            found += model_sources(one.name, load, sentences, seeds)
        else:
            found.append(files(one.name, one.folder, sentences))
    return found


def compare(
    sources: Iterable[Source],
    sentences: Sequence[Sentence],
    tools: Tools,
    settings: dict,
    on_measured: Callable[[Row], None] = lambda row: None,
) -> Comparison:
    """Has the sentences said, and measures them.

    Args:
        on_measured: Called with a row after each sentence; its last one has its samples until then.
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
    """Writes `evaluation.json`, `evaluation.csv`, `report.html` and its sounds; returns the table for a terminal.

    The folder is as before until all of it is there.
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

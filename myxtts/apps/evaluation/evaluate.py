"""Evaluates: what is compared says the same sentences, which are measured, and the pages are written."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from myxtts.apps.evaluation.tables import as_csv, as_json, as_text
from myxtts.audio.encoding import write_audio
from myxtts.config.checks import UserError, printable
from myxtts.hearing.measuring import Measurer, Tools
from myxtts.hearing.spoken import Sentence
from myxtts.inference.synthesizer import Synthesizer
from myxtts.storage.base_model import BASE_NAME, is_base, model_name
from myxtts.storage.files import read_json, write_json, write_text, write_whole_folder
from myxtts.storage.provenance import read_config

JSON_FILE, CSV_FILE, PAGE, SOUNDS = "evaluation.json", "evaluation.csv", "report.html", "sounds"
WRITTEN = (JSON_FILE, CSV_FILE, PAGE, SOUNDS)
MODEL_FILE = "config.json"
"""What the folder of a run or of a converted model has."""
WHICH = ("best", "last")
SHOWN_EVERY = 20
"""Sentences from one line of progress to the next."""


@dataclass(frozen=True)
class Subject:
    """What is to be judged: a folder, and of a run's checkpoints which."""

    folder: Path
    which: str
    name: str
    is_model: bool


def subjects(asked: Sequence[str], which: str, local_folder: Callable[[str], str] = str) -> list[Subject]:
    """Reads `FOLDER` and `FOLDER@best` or `FOLDER@last`; each gets a name that no other has.

    Args:
        local_folder: Gives the folder of a model that is named otherwise.

    Raises:
        UserError: One of them is no folder that can be judged.
    """
    found, result = [], []
    for one in asked:
        folder, at, chosen = one.rpartition("@")
        folder, chosen = (folder, chosen) if at and chosen in WHICH else (one, "")
        path, place = Path(local_folder(folder)), Path(folder).resolve()
        if not path.is_dir():
            rule = "What is evaluated must be the folder of a run, of a converted model, or of spoken files"
            raise UserError(f"{rule} with a metadata.csv. {one} is not a folder.")
        short, long = (BASE_NAME,) * 2 if is_base(path) else (place.name, f"{place.parent.name}/{place.name}")
        found.append((path, chosen or which, *(f"{name}@{chosen}" if chosen else name for name in (short, long))))
    shorts, names = Counter(short for _, _, short, _ in found), Counter()
    for path, chosen, short, long in found:
        name = long if shorts[short] > 1 else short
        names[name] += 1
        name = name if names[name] == 1 else f"{name} ({names[name]})"
        result.append(Subject(path, chosen, name, (path / MODEL_FILE).is_file()))
    return result


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


def check_output(folder: Path) -> None:
    """Raises `UserError` unless nothing is there, or only what an evaluation wrote."""
    if folder.is_symlink() or folder.exists() and not folder.is_dir():
        raise UserError(f"--output must name a folder. {folder} is something else.")
    if not folder.is_dir():
        return
    names = {one.name for one in folder.iterdir()}
    found = read_json(folder / JSON_FILE) if JSON_FILE in names else None
    is_ours = isinstance(found, dict) and found.get("format") == "myxtts evaluation"
    if names and not (is_ours and names <= set(WRITTEN)):
        raise UserError(f"--output must be a new folder or an earlier evaluation's. {folder} holds something else.")


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

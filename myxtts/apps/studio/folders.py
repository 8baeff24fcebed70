"""Files in the home folder of `myxtts ui`: runs, data sets, exports, an evaluation, the trash, and votes on models."""

import csv
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from filecmp import cmp
from pathlib import Path
from typing import NamedTuple

from scipy.stats import binomtest

from myxtts.apps.studio.processes import Tasks, output_path, process_of, status_of, trainings
from myxtts.apps.studio.texts import PageError
from myxtts.apps.studio.training_form import OWN, config_in
from myxtts.audio.files import AUDIO_EXTENSIONS, MEDIA_EXTENSIONS
from myxtts.config.checks import without_marks
from myxtts.data.corpora import SUBTITLES, CorpusFolder
from myxtts.storage.base_model import BASE_NAME, MODEL, SETTINGS, kind_of, model_name
from myxtts.storage.files import append_line, csv_delimiter, csv_text, free_path, read_csv, write_text, write_whole

DATA, EXPORTS, EVALUATION, TRASH = "_data", "_exports", "_evaluation", "_trash"
"""Names of folders next to the runs. No run can have one of these names, because they begin with an underscore."""
TEXT_SUFFIXES = (".txt", ".lab", ".csv", *SUBTITLES)
RECORDINGS = ".recordings"
"""Suffix of the folder `NAME.recordings`: the long recordings for the data set NAME, with a subfolder per upload."""
VOTES = "_votes.csv"
COLUMNS = ("time", "first", "second", "better", "blind", "text", "seed")
SAME = "same"
_NAME = re.compile(r"[^\W_][\w .-]{0,99}(?<! )")


def runs_in(folder: Path) -> list[str]:
    """Returns the names of runs, newest first. A run named `base` is `./base`, because `base` is the bundled model."""
    found = [path.parent for path in folder.glob(f"[!.]*/{SETTINGS}") if kind_of(path.parent) in (MODEL, SETTINGS)]
    found.sort(key=lambda path: status_of(path).st_mtime, reverse=True)
    return [model_name(path.relative_to(folder)) for path in found]


def named_folder(home: Path, name: str, kind: str = "run") -> Path:
    """Returns `home / name`. `kind` is `run` or `data`. Raises `UserError` if `name` is invalid for this kind."""
    if name == BASE_NAME or not (_NAME.fullmatch(without_marks(name or "")) or kind == "run" and name in runs_in(home)):
        raise PageError(f"bad_name_{kind}", repr(name)) if name else PageError(f"no_name_{kind}")
    return home / name


class DataSets:
    """The data sets that were made on the page, by name. Each one is a folder for `--train-data`."""

    def __init__(self, home: Path):
        self.home: Path = home / DATA

    def choices(self) -> list[tuple[str, str]]:
        """Returns a (name, folder) pair for each data set that has clips, as the choices of a drop-down."""
        found = [path for path in sorted(self.home.glob("[!.]*/")) if path.suffix != RECORDINGS]
        is_ready = lambda path: self.lists(path) or not (path / "sources").exists()  # else `make-dataset` made no clip
        return [(path.name, str(path)) for path in found if is_ready(path)]

    def place(self, named: str | None) -> str:
        """Returns the folder of the data set called `named`. If there is none, returns `named`, as it may be a path."""
        return dict(self.choices()).get((named or "").strip(), (named or "").strip())

    def folder(self, name: str) -> Path:
        """Returns the folder for a data set's name, whether or not it exists. Raises `UserError` for invalid names."""
        return named_folder(self.home, name, "data")

    def recordings(self, name: str) -> Path:
        """Returns the folder for the long recordings that a data set is cut from."""
        return self.folder(name).with_name(f"{name}{RECORDINGS}")

    def keep(self, name: str, files: Sequence[str] | None, is_heard: bool = False) -> Path | None:
        """Copies uploaded files for a data set. If they include subtitles, or if a recognizer is used (`is_heard`), the
        files are treated as long recordings and copied to a new folder in `recordings(name)`, which is returned.
        Otherwise, they are treated as clips with texts and copied to `folder(name)`, and None is returned. Raises
        `UserError` if a file has an unknown type or no text, or does not fit the existing data set."""
        folder, names = self.folder(name), [Path(file).name for file in files or ()]
        is_cut = is_heard or any(one.lower().endswith(SUBTITLES) for one in names)
        audio = MEDIA_EXTENSIONS if is_cut else AUDIO_EXTENSIONS
        for one in names:
            if not one.lower().endswith(known := (*audio, *TEXT_SUFFIXES)):
                is_media = one.lower().endswith(MEDIA_EXTENSIONS)
                raise PageError("convert_first" if is_media else "not_audio", one, ", ".join(known))
        if not (heard := [one for one in names if one.lower().endswith(audio)]):
            raise PageError("no_files")
        if twice := [one for one in names if names.count(one) > 1]:
            raise PageError("same_name", twice[0])
        listed = "metadata.csv" in names or (folder / "metadata.csv").is_file()
        for stem in () if is_heard or (listed and not is_cut) else [Path(one).stem for one in heard]:
            if not any(one.startswith(f"{stem}.") for one in {*names} - {*heard}):
                raise PageError("no_text_of", stem)
        is_unlisted = not is_cut and ("metadata.csv" in names) != (folder / "metadata.csv").is_file()
        if folder.exists() and (self.recordings(name).exists() != is_cut or is_unlisted):
            raise PageError("other_set", name)
        folder = free_path(self.recordings(name) / "upload") if is_cut else folder
        folder.mkdir(parents=True, exist_ok=not is_cut)
        copies = [folder / ("wavs" if listed and not is_cut and one in heard else "") / one for one in names]
        for file, copy in zip(files, copies):
            if copy.name in heard and copy.exists() and not cmp(file, copy, shallow=False):
                raise PageError("clip_exists", name, copy.name)
        for file, copy in zip(files, copies):
            copy.parent.mkdir(parents=True, exist_ok=True)
            with write_whole(copy) as temporary:
                shutil.copyfile(file, temporary)
        return folder if is_cut else None

    def add_recording(self, name: str, recording: str | None, text: str) -> Path:
        """Adds one clip and its text to a data set; returns the folder of the data set."""
        if not recording:
            raise PageError("no_recording")
        if not text.strip():
            raise PageError("no_words")
        folder, suffix = self.folder(name), Path(recording).suffix.lower()
        if suffix not in AUDIO_EXTENSIONS:
            raise PageError("convert_first", Path(recording).name)
        if self.recordings(name).exists() or (folder / "metadata.csv").is_file():
            raise PageError("other_set", name)
        folder.mkdir(parents=True, exist_ok=True)
        taken = {name.partition(".")[0] for name in os.listdir(folder)}
        target = folder / next(f"recorded_{n:04d}{suffix}" for n in range(1, 10**6) if f"recorded_{n:04d}" not in taken)
        write_text(target.with_suffix(".txt"), f"{text.strip()}\n")
        with write_whole(target) as temporary:
            shutil.copyfile(recording, temporary)
        return folder

    def lists(self, folder: str | Path) -> list[Path]:
        """Returns the paths of a data set's CSV lists; [] if the data set was not cut from recordings on the page."""
        lists = [Path(folder, name) for name in ("metadata_train.csv", "metadata_eval.csv")]
        return [path for path in lists if path.is_file()] if Path(folder).parent == self.home else []

    def doubts(self, folder: str) -> dict[tuple[str, str], str]:
        """Returns `{(clip, text): reason}` for the texts that `myxtts make-dataset` flagged as doubtful."""
        rows = read_csv(Path(folder, "segments.csv")) if self.lists(folder) else ()
        return {(row["clip"], row["text"].lstrip("'")): row["detail"] for row in rows if row["clip"] and row["detail"]}

    def correct(self, folder: str, loaded: Sequence, texts: Sequence, languages: Mapping[str, str] = {}) -> int:
        """Saves edited texts to a data set's CSV lists; returns their number. `loaded` and `texts` are the rows (clip,
        text, …) before and after the edit. Clips whose text is now empty are removed. `languages` maps old language
        codes of the clips to new ones. Raises `UserError` if an edited text has also been changed on disk."""
        plain = lambda rows: {row[0]: " ".join(str(row[1] or "").replace("|", " ").split()) for row in rows}
        before, given, lists = plain(loaded), plain(texts), {}
        for path in self.lists(folder):
            lines = (f"{line}\n" for line in CorpusFolder(folder).read_lines(path))
            lists[path] = [row for row in csv.reader(lines, delimiter="|") if row[1:]]  # without blank lines
        now = plain(row for rows in lists.values() for row in rows)
        given = {clip: text for clip, text in given.items() if text not in (before.get(clip, text), now.get(clip, ""))}
        if other := [clip for clip in given if now.get(clip) != before[clip]]:
            raise PageError("changed_elsewhere", other[0])
        for path, rows in lists.items():
            spoken = lambda row: [languages.get(one, one) for one in row[3:]]
            new = [[row[0], text, *row[2:3], *spoken(row)] for row in rows if (text := given.get(row[0], row[1]))]
            if any(row[0] != "audio_file" for row in new):  # not only the header
                write_text(path, csv_text(new, "|", is_safe=False))  # escaping would change texts
            else:
                path.unlink()  # a list without clips is an error
        train, held = (Path(folder, name) for name in ("metadata_train.csv", "metadata_eval.csv"))
        if lists and held.is_file() and not train.exists():
            held.replace(train)
        return len(given)


class Kept(NamedTuple):
    """A folder that the tab Models shows in its list. Its `kind` is `run`, `data`, `export` or `evaluation`."""

    kind: str
    folder: Path
    megabytes: float
    changed: str
    """Local date and time of the last change in the folder, `YYYY-MM-DD HH:MM`."""


def kept_in(home: Path) -> dict[str, Kept]:
    """Returns the runs (newest first), data sets, exports and the evaluation. Keys are paths relative to `home`."""
    found = [("run", home / name) for name in runs_in(home)]
    patterns = {"data": f"{DATA}/[!.]*/", "export": f"{EXPORTS}/[!.]*/", "evaluation": f"{EVALUATION}/"}
    found += [(kind, path) for kind, pattern in patterns.items() for path in home.glob(pattern)]
    kept, recordings = {}, {part for kind, folder in found for part in _parts(kind, folder)[:-1]}
    for kind, folder in ((kind, folder) for kind, folder in found if folder not in recordings):
        walks = (os.walk(part) for part in _parts(kind, folder))
        files = [status_of(Path(place, name)) for walk in walks for place, _, names in walk for name in names]
        megabytes = sum(one.st_size for one in files) / 2**20
        changed = time.localtime(max([one.st_mtime for one in files], default=status_of(folder).st_mtime))
        kept[str(folder.relative_to(home))] = Kept(kind, folder, megabytes, time.strftime("%Y-%m-%d %H:%M", changed))
    return kept


def _parts(kind, folder):
    """Returns the paths to move to the trash: a data set's recordings or a run's output file, if any, then `folder`."""
    beside = {"data": folder.with_name(f"{folder.name}{RECORDINGS}"), "run": output_path(folder)}
    return [path for path in (beside.get(kind), folder) if path and (path.exists() or path == folder)]


def removable(home: Path, place: str | None, tasks: Tasks) -> Kept:
    """Returns `kept_in(home)[place]`. Raises `UserError` if there is no such folder, or if the folder is in use."""
    if (one := kept_in(home).get(place or "")) is None:
        raise PageError("choose_kept")
    parts = [part.resolve() for part in _parts(one.kind, one.folder)]
    for run in filter(process_of, {*map(home.resolve().joinpath, runs_in(home)), *trainings}):
        if (run / OWN).is_file():
            named = [getattr(config_in(OWN, run).data, name) for name in ("train_data", "val_data")]
        else:  # a new run: its command names what it will use
            named = [word.partition("=")[2] for word in trainings[run].args[1:]]
        used = [Path(path).resolve() for path in (run, *filter(None, named))]
        if any(path.is_relative_to(part) for path in used for part in parts):
            raise PageError("in_use", one.folder.name, run.name)
    written = one.folder.with_name(one.folder.name.removesuffix(RECORDINGS))
    words = [re.sub("^--.*?=|@(best|last)$", "", word) for name in [*tasks.states] for word in tasks.arguments(name)]
    if process_of(written) or any(Path(word).resolve().is_relative_to(part) for word in words for part in parts):
        raise PageError("in_work", one.folder.name)
    return one


def to_trash(home: Path, place: str | None, tasks: Tasks) -> Path:
    """Moves the `removable` folder `home / place` and its `_parts` to the trash; returns the folder's new path."""
    one = removable(home, place, tasks)
    (home / TRASH).mkdir(exist_ok=True)
    trainings.pop(one.folder.resolve(), None)  # how its training ended does not concern a new run of this name
    return [path.replace(free_path(home / TRASH / path.name)) for path in _parts(one.kind, one.folder)][-1]


def add_vote(home: Path, sides: Sequence[str], better: int | None, blind: bool, text: str, seed: int) -> None:
    """Appends a vote on the two models `sides` to `_votes.csv`. `better` is the index of the winner, None for a tie.
    `text` and `seed` are those of the compared speech. `blind` tells whether the names of the models were hidden."""
    if not (home / VOTES).exists():
        append_line(home / VOTES, csv_text([COLUMNS], end=""))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = (at, *sides, SAME if better is None else sides[better], int(blind), text, seed)
    append_line(home / VOTES, csv_text([row], csv_delimiter((home / VOTES).read_text("utf-8", "replace")), end=""))


def count_votes(home: Path) -> list[list]:
    """Returns a row for each pair of models: both names, votes for each name, ties, and p-value of a sign test."""
    found: dict[tuple, Counter] = {}
    for one in read_csv(home / VOTES):
        if one.get("better"):
            found.setdefault(tuple(sorted((one["first"], one["second"]))), Counter())[one["better"]] += 1
    rows = [[*pair, votes[pair[0]], votes[pair[1]], votes[SAME]] for pair, votes in found.items()]
    return [[*row, round(binomtest(row[2], row[2] + row[3]).pvalue, 3) if any(row[2:4]) else 1.0] for row in rows]

"""The folders beside the runs: data sets, exports, the evaluation, the trash; and the votes."""

import csv
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from myxtts.apps.studio.processes import require_free
from myxtts.apps.studio.texts import PageError
from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.storage.base_model import BASE_NAME
from myxtts.storage.files import append_line, csv_text, free_path, write_text, write_whole

DATA, EXPORTS, EVALUATION, TRASH = "_data", "_exports", "_evaluation", "_trash"
"""Folders beside the runs; names of runs cannot begin with an underscore. The page deletes nothing in the trash."""
SUBTITLES = (".srt", ".vtt", ".ass")
TEXT_SUFFIXES = (".txt", ".lab", ".csv", *SUBTITLES)
LONG_SUFFIXES = (*AUDIO_EXTENSIONS, ".mp4", ".mkv", ".m4a")
"""Files that `myxtts make-dataset` can cut; videos and m4a need ffmpeg."""
RECORDINGS, BEFORE = ".recordings", ".before"
"""Suffixes of the folder beside a data set, and of a recording in it that another of its name is about to replace."""
LISTS = ("metadata_train.csv", "metadata_eval.csv")
"""Lists of clips and texts that `myxtts make-dataset` writes."""
VOTES = "_votes.csv"
COLUMNS = ("time", "first", "second", "better", "blind", "text", "seed")
SAME = "same"


def runs_in(folder: Path) -> list[str]:
    """Names of the runs in a folder, newest first."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()] if folder.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def named_folder(home: Path, name: str, kind: str = "run") -> Path:
    """`home / name`, the folder of a run or `data` set; raises `UserError` for names that could lead elsewhere."""
    if name == BASE_NAME or not re.fullmatch(r"[^\W_][\w .-]{0,99}", name or ""):
        raise PageError(f"bad_name_{kind}", repr(name or ""))
    return home / name


class DataSets:
    """Data sets by name, each a folder as `--train-data` takes it."""

    def __init__(self, home: Path):
        self.home: Path = home / DATA

    def choices(self) -> list[tuple[str, str]]:
        """Name and folder of each, for a drop-down."""
        found = sorted(path for path in self.home.glob("*/") if path.suffix != RECORDINGS)
        return [(path.name, str(path)) for path in found]

    def folder(self, name: str) -> Path:
        """Folder of a data set; raises `UserError` for an invalid name."""
        return named_folder(self.home, name, "data")

    def recordings(self, name: str) -> Path:
        """Folder of the recordings that a data set is cut from."""
        return self.folder(name).with_name(f"{name}{RECORDINGS}")

    def keep(self, name: str, files: Sequence[str], is_heard: bool = False) -> list[Path]:
        """Copies recordings with their texts into a data set; returns the copies that `myxtts make-dataset` is to cut.

        They go beside the set: recordings with subtitles, and all that a recognizer hears (`is_heard`).

        Raises:
            UserError: There is no recording, one has no text, a file is neither audio nor text, or the set has clips
                of the other kind.
        """
        folder, names = self.folder(name), [Path(file).name for file in files]
        is_cut = is_heard or any(one.lower().endswith(SUBTITLES) for one in names)
        audio = LONG_SUFFIXES if is_cut else AUDIO_EXTENSIONS
        for one in names:
            if not one.lower().endswith((*audio, *TEXT_SUFFIXES)):
                raise PageError("not_audio", ", ".join((*audio, *TEXT_SUFFIXES)), one)
        heard = [one for one in names if one.lower().endswith(audio)]
        if not heard:
            raise PageError("no_files")
        listed = "metadata.csv" in names or (folder / "metadata.csv").is_file()
        for stem in () if is_heard or (listed and not is_cut) else [Path(one).stem for one in heard]:
            if not any(one.startswith(f"{stem}.") for one in {*names} - {*heard}):
                raise PageError("no_text_of", stem)
        if folder.exists() and self.recordings(name).exists() != is_cut:
            raise PageError("other_set", name)
        folder = self.recordings(name) if is_cut else folder
        copies = [folder / ("wavs" if listed and not is_cut and one in heard else "") / one for one in names]
        for file, copy in zip(files, copies):
            copy.parent.mkdir(parents=True, exist_ok=True)
            if is_cut and copy.is_file():
                shutil.copyfile(copy, f"{copy}{BEFORE}")
            with write_whole(copy) as temporary:
                shutil.copyfile(file, temporary)
        return copies if is_cut else []

    def add_recording(self, name: str, recording: str | None, text: str) -> Path:
        """Adds a clip with its text; returns the set's folder."""
        if not recording:
            raise PageError("no_recording")
        if not text.strip():
            raise PageError("no_words")
        folder, suffix = self.folder(name), Path(recording).suffix.lower()
        if self.recordings(name).exists():
            raise PageError("other_set", name)
        folder.mkdir(parents=True, exist_ok=True)
        number = next(n for n in range(1, 10**6) if not list(folder.glob(f"recorded_{n:04d}.*")))
        target = folder / f"recorded_{number:04d}{suffix}"
        write_text(target.with_suffix(".txt"), f"{text.strip()}\n")
        with write_whole(target) as temporary:
            shutil.copyfile(recording, temporary)
        return folder

    def lists(self, folder: str) -> list[Path]:
        """The lists of clips of a data set that `make-dataset` cut here; none for any other folder."""
        own = Path(folder).parent == self.home
        return [path for path in (Path(folder, one) for one in LISTS) if own and path.is_file()]

    def correct(self, folder: str, texts: Sequence[Sequence[str]]) -> int:
        """Writes corrected texts, as rows of clip and text, into the lists of a set; returns how many changed.

        A clip with an empty text is removed from its list.
        """
        given, changed = {clip: " ".join(str(text or "").replace("|", " ").split()) for clip, text in texts}, 0
        for path in self.lists(folder):
            with open(path, encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file, delimiter="|"))
            new = [[row[0], given.get(row[0], row[1]), *row[2:]] for row in rows]
            changed += sum(one != other for one, other in zip(rows, new))
            write_text(path, csv_text((row for row in new if row[1]), "|"))
        return changed


class Kept(NamedTuple):
    """A run, data set or export, or the evaluation, as listed by `kept_in`."""

    kind: str
    """`run`, `data`, `export` or `evaluation`."""
    folder: Path
    size: str
    changed: str
    """Date and time of the last change in it."""


def kept_in(home: Path) -> dict[str, Kept]:
    """Runs, data sets, exports and the evaluation by their path within the folder of the runs; newest runs first."""
    found = [("run", home / name) for name in runs_in(home)]
    patterns = {"data": f"{DATA}/*/", "export": f"{EXPORTS}/*/", "evaluation": f"{EVALUATION}/"}
    found += [(kind, path) for kind, pattern in patterns.items() for path in home.glob(pattern)]
    return {str(path.relative_to(home)): _measure(kind, path) for kind, path in found}


def to_trash(home: Path, place: str | None) -> Path:
    """Moves an entry of `kept_in`, a data set with its recordings, into the trash; returns its new folder.

    Raises:
        UserError: There is no such entry, or a run trains in it.
    """
    one = kept_in(home).get(place or "")
    if one is None:
        raise PageError("choose_kept")
    require_free(one.folder)
    (home / TRASH).mkdir(exist_ok=True)
    for folder in (one.folder.with_name(f"{one.folder.name}{RECORDINGS}"), one.folder)[one.kind != "data" :]:
        if folder.is_dir():
            moved = folder.replace(free_path(home / TRASH / folder.name))
    return moved


def _measure(kind, folder):
    files = [Path(place, name).lstat() for place, _, names in os.walk(folder) for name in names]
    megabytes = sum(one.st_size for one in files) / 2**20
    size = f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
    changed = max([one.st_mtime for one in files], default=folder.stat().st_mtime)
    return Kept(kind, folder, size, time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)))


class Votes:
    """Votes for the better of two models, in a file beside the runs that is only appended to."""

    def __init__(self, home: Path):
        self.path: Path = home / VOTES

    def add(self, sides: Sequence[str], better: int | None, blind: bool, text: str, seed: int) -> None:
        """Appends a vote.

        Args:
            sides: Names of the two models, in the order of listening.
            better: Index of the better one; None for a tie.
        """
        if not self.path.exists():
            append_line(self.path, csv_text([COLUMNS], end=""))
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        chosen = SAME if better is None else sides[better]
        append_line(self.path, csv_text([(at, *sides, chosen, int(blind), text, seed)], end=""))

    def counts(self) -> list[list]:
        """For each pair: its names, the votes for each, and ties."""
        found: dict[tuple, Counter] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else ()
        for one in csv.DictReader(lines):
            if one.get("better"):
                pair = tuple(sorted((one["first"], one["second"])))
                found.setdefault(pair, Counter())[one["better"]] += 1
        return [[*pair, votes[pair[0]], votes[pair[1]], votes[SAME]] for pair, votes in found.items()]

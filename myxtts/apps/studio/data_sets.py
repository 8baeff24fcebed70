"""Data sets beside the runs, from uploaded files and from recordings made in the page."""

import csv
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

from myxtts.apps.studio.run_view import named_folder
from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import UserError, require
from myxtts.storage.files import write_text, write_whole

FOLDER, EXPORTS, EVALUATION = "_data", "_exports", "_evaluation"
"""Folders beside the runs; names of runs cannot begin with an underscore."""
TEXT_SUFFIXES = (".txt", ".lab", ".csv", ".srt", ".vtt", ".ass")
LONG_SUFFIXES = (*AUDIO_EXTENSIONS, ".mp4", ".mkv", ".m4a")
"""Files that `myxtts make-dataset` can cut; videos and m4a need ffmpeg."""
RECORDINGS = "recordings"
LISTS = ("metadata_train.csv", "metadata_eval.csv")
"""Lists of clips and texts that `myxtts make-dataset` writes."""


class DataSets:
    """Data sets by name, each a folder as `--train-data` takes it."""

    def __init__(self, home: Path):
        self.home: Path = home / FOLDER

    def choices(self) -> list[tuple[str, str]]:
        """Name and folder of each, for a drop-down."""
        found = sorted(path for path in self.home.glob("*/") if path.suffix != f".{RECORDINGS}")
        return [(path.name, str(path)) for path in found]

    def folder(self, name: str) -> Path:
        """Folder of a data set; raises `UserError` for an invalid name."""
        return named_folder(self.home, name, "data set")

    def keep(self, name: str, files: Sequence[str], is_long: bool = False) -> Path:
        """Copies recordings, and texts of the same names or a `metadata.csv`, into a data set; returns their folder.

        Args:
            is_long: Copy them beside the set, as input of `myxtts make-dataset`.

        Raises:
            UserError: There is no recording, or a file is neither audio nor text.
        """
        folder, listed = self.folder(name), any(Path(file).name == "metadata.csv" for file in files)
        if is_long:
            folder = folder.with_name(f"{folder.name}.{RECORDINGS}")
        sounds = LONG_SUFFIXES if is_long else AUDIO_EXTENSIONS
        names = [Path(file).name for file in files]
        known = (*sounds, *TEXT_SUFFIXES)
        for name in names:
            require(name.lower().endswith(known), "A file", f"audio or text ({', '.join(known)})", name)
        if not any(name.lower().endswith(sounds) for name in names):
            raise UserError(f"Add recordings: files that end in {', '.join(sounds)}.")
        for file, name in zip(files, names):
            is_inner = listed and not is_long and name.lower().endswith(sounds)
            place = folder / "wavs" if is_inner else folder
            place.mkdir(parents=True, exist_ok=True)
            with write_whole(place / name) as temporary:
                shutil.copyfile(file, temporary)
        return folder

    def add_recording(self, name: str, recording: str | None, text: str) -> Path:
        """Adds a clip with its text; returns the set's folder."""
        if not recording:
            raise UserError("No recording. Record a sentence first.")
        if not text.strip():
            raise UserError("Enter the text of the recording.")
        folder, suffix = self.folder(name), Path(recording).suffix.lower()
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
            content = io.StringIO()
            csv.writer(content, delimiter="|", lineterminator="\n").writerows(row for row in new if row[1])
            write_text(path, content.getvalue())
        return changed

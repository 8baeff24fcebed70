"""Recordings that were dropped on the page or made in it, kept as data sets beside the runs."""

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

from myxtts.apps.studio.run_view import named_folder
from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import UserError
from myxtts.storage.files import write_text, write_whole

FOLDER = "_data"
"""Within that of the runs; no run can have this name."""
TEXT_SUFFIXES = (".txt", ".lab", ".csv", ".srt", ".vtt", ".ass")
LONG_SUFFIXES = (*AUDIO_EXTENSIONS, ".mp4", ".mkv", ".m4a")
"""What `myxtts make-dataset` can cut; videos and m4a need ffmpeg."""
RECORDINGS = "recordings"
MOST_ROWS = 500
"""Of a table that is shown."""


class DataSets:
    """Data sets by name, each a folder as `--train-data` takes it."""

    def __init__(self, home: Path):
        self.home: Path = home / FOLDER

    def names(self) -> list[str]:
        """Of all there are."""
        return sorted(path.name for path in self.home.iterdir() if path.is_dir()) if self.home.is_dir() else []

    def folder(self, name: str) -> Path:
        """Where a set is; raises `UserError` for what is no name."""
        return named_folder(self.home, name, "data set")

    def keep(self, name: str, files: Sequence[str]) -> Path:
        """Copies clips, and texts of the same names or a `metadata.csv`, into a set; returns its folder.

        Raises:
            UserError: There is no recording among them, or a file that is neither sound nor text.
        """
        folder, listed = self.folder(name), any(Path(file).name == "metadata.csv" for file in files)
        self._copy(files, folder, AUDIO_EXTENSIONS, "wavs" if listed else "")
        return folder

    def keep_long(self, name: str, files: Sequence[str]) -> tuple[Path, Path]:
        """Copies long recordings, and subtitles or transcripts of the same names; returns where they are, and the set's
        folder, for `myxtts make-dataset` to fill."""
        folder = self.folder(name)
        recordings = folder.with_name(f"{folder.name}.{RECORDINGS}")
        self._copy(files, recordings, LONG_SUFFIXES)
        return recordings, folder

    def add_recording(self, name: str, recording: str | None, text: str) -> Path:
        """Adds one clip with what is said in it; returns the set's folder."""
        if not recording:
            raise UserError("There is no recording. Record a sentence first.")
        if not text.strip():
            raise UserError("Write what is said in the recording.")
        folder, suffix = self.folder(name), Path(recording).suffix.lower()
        folder.mkdir(parents=True, exist_ok=True)
        number = next(n for n in range(1, 10**6) if not list(folder.glob(f"recorded_{n:04d}.*")))
        target = folder / f"recorded_{number:04d}{suffix}"
        write_text(target.with_suffix(".txt"), f"{text.strip()}\n")
        with write_whole(target) as temporary:
            shutil.copyfile(recording, temporary)
        return folder

    def cuts(self, folder: Path) -> tuple[list[str], list[list[str]]]:
        """Names of columns and rows to show of what became of a long recording; none where nothing was cut."""
        try:
            with open(folder / "segments.csv", encoding="utf-8", newline="") as file:
                rows = [row for row, _ in zip(csv.reader(file), range(MOST_ROWS + 1))]
        except FileNotFoundError:
            rows = []
        if not rows:
            return [], []
        are_seconds = [name.endswith("_seconds") for name in rows[0]]
        headers = [
            name.removesuffix("_seconds").replace("_", " ") + " (s)" * of for name, of in zip(rows[0], are_seconds)
        ]
        shown = [[f"{float(cell):.2f}" if of else cell for cell, of in zip(row, are_seconds)] for row in rows[1:]]
        return headers, shown

    def _copy(self, files, folder, sounds, sounds_in=""):
        names = [Path(file).name for file in files]
        foreign = [name for name in names if not name.lower().endswith((*sounds, *TEXT_SUFFIXES))]
        if foreign:
            known = ", ".join((*sounds, *TEXT_SUFFIXES))
            raise UserError(f"Files must be sound or text ({known}). Received: {foreign[0]}.")
        if not any(name.lower().endswith(sounds) for name in names):
            raise UserError(f"Drop recordings: files with the endings {', '.join(sounds)}.")
        for file, name in zip(files, names):
            place = folder / sounds_in if name.lower().endswith(sounds) else folder
            place.mkdir(parents=True, exist_ok=True)
            with write_whole(place / name) as temporary:
                shutil.copyfile(file, temporary)

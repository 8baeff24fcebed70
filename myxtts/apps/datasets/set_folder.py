"""The folder of a data set: clips in `wavs/`, CSV lists of clips and segments, a JSON file per recording, a report."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import numpy as np

from myxtts.config.checks import UserError, counted
from myxtts.data.corpora import CorpusFolder
from myxtts.data.doctor import id_hash
from myxtts.storage import files

MARK = "make_dataset.json"
TRAINING, VALIDATION, SEGMENTS, REPORT = "metadata_train.csv", "metadata_eval.csv", "segments.csv", "report.html"
WAVS, SOURCES = "wavs", "sources"
SEGMENT_COLUMNS = ("source", "start_seconds", "end_seconds", "verdict", "reason", "detail", "clip", "text")
PAUSE = "pause"

_FORMAT = 1
_ROW_SECONDS, _MOST_ROWS = 60, 240
_WIDTH, _HEIGHT = 1200, 56
_WORST = 10


class SetFolder:
    """A data set on disk, opened by `open_set`. Adding a recording does not change the CSV lines of other recordings.

    A recording belongs to the set only if its JSON record exists in `sources/`. The record is therefore written last.
    """

    def __init__(self, path: Path):
        self.path = path
        self._last_number = max((one["number"] for one in self.records()), default=0)

    def path_of(self, source_id: str, suffix: str = ".json") -> Path:
        """Returns the path of a recording's record or, with the suffix `.heard`, of its cached recognizer results."""
        return self.path / SOURCES / f"{source_id}{suffix}"

    def records(self) -> list[dict[str, Any]]:
        """Returns the records of all recordings in the order in which they were added."""
        return sorted(map(files.read_json, (self.path / SOURCES).glob("*.json")), key=lambda record: record["number"])

    def hold_back(self, record: dict[str, Any], share: float, seed: int) -> None:
        """Marks a fraction `share` of clips for validation. Keeps neighboring clips together, as they are similar."""
        rate, blocks = record["sample_rate"], defaultdict(list)
        length = min(0.1 * record["num_samples"] / rate, 120.0)  # of a block, in seconds
        for row in record["rows"]:
            if row["clip"]:
                blocks[int(row["start"] / rate / length)].append(row)
        chance = lambda key: id_hash(f"{seed} {record['digest']} {key}") / 2**64
        has_others = lambda name: any(not line.startswith(f"{WAVS}/{record['id']}/") for line in self._lines(name))
        count = max(int(len(blocks) * share + chance("count")), share > 0 and not has_others(VALIDATION))
        most = len(blocks) if has_others(TRAINING) else len(blocks) - 1
        for row in (row for key in sorted(blocks, key=chance)[: max(0, min(count, most))] for row in blocks[key]):
            row["validation"] = True

    def add(self, record: dict[str, Any]) -> None:
        """Adds a recording: appends its clips to the CSV lists, writes its record, and deletes its recognizer cache."""
        source_id, rate = record["id"], record["sample_rate"]
        for name, held in ((TRAINING, False), (VALIDATION, True)):
            rows = [row for row in record["rows"] if row["clip"] and row["validation"] == held]
            lines = [(row["clip"], row["text"], record["speaker"], record["language"]) for row in rows]
            self._append(name, ("audio_file", "text", "speaker_name", "language"), lines, f"{WAVS}/{source_id}/", "|")
        lines = []
        for row in record["rows"]:
            times = (f"{row['start'] / rate:.6f}", f"{row['end'] / rate:.6f}")
            row = {**row, "verdict": "kept" if row["clip"] else "left out"}
            lines.append((source_id, *times, *(row[name] for name in SEGMENT_COLUMNS[3:])))
        self._append(SEGMENTS, SEGMENT_COLUMNS, lines, f"{source_id},", ",")
        self._last_number += 1
        files.write_json(self.path_of(source_id), {**record, "number": self._last_number})
        self.path_of(source_id, ".heard").unlink(missing_ok=True)

    def _append(self, name, columns, lines, start, separator):
        """In the CSV file `name` with header `columns`, deletes lines that begin with `start`, then appends `lines`."""
        kept = [line for line in self._lines(name) if not line.startswith(start)]
        if not kept and not lines:
            (self.path / name).unlink(missing_ok=True)
            return
        content = files.csv_text(lines, separator, is_safe=name == SEGMENTS)  # escaping would change texts in the lists
        files.write_text(self.path / name, "\n".join([separator.join(columns), *kept, content]))

    def _lines(self, name):
        path = self.path / name
        return CorpusFolder(self.path).read_lines(path)[1:] if path.is_file() else []


@contextmanager
def open_set(path: Path) -> Iterator[SetFolder]:
    """Opens or creates the folder of a data set, and locks it during the `with` block. If the folder is
    new and nothing was added, it is deleted afterwards, together with the parent folders that were created for it.
    Raises `UserError` if the folder has other content, or another process writes to it."""
    if path.exists() and not path.is_dir():
        raise UserError(f"--output must be a folder. {path} is a file.")
    names = {one.name for one in path.iterdir() if not one.name.startswith(".")} if path.is_dir() else set()
    if MARK not in names and not names <= {WAVS, SOURCES}:
        raise UserError(f"--output must be a new folder or a make-dataset data set. {path} has other content.")
    folders, made = (path / WAVS, path / SOURCES), [place for place in path.parents if not place.exists()]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with files.locked_folder(path, f"Another run is writing to {path}. Wait for it, or choose another --output."):
        for folder in (path, *folders):
            files.remove_leftovers(folder)
        if not (path / MARK).is_file():
            files.write_json(path / MARK, {"format": _FORMAT})
        if files.read_json(path / MARK).get("format") != _FORMAT:
            raise UserError(f"{path} was made by another version of make-dataset. Choose another --output.")
        try:
            yield SetFolder(path)
        finally:
            is_unused = {one.name for one in path.iterdir()} == {MARK, WAVS, SOURCES}
            if MARK not in names and is_unused and not any(any(one.iterdir()) for one in folders):
                (path / MARK).unlink()
                with suppress(OSError):  # a new parent folder has other files by now
                    for folder in (*folders, path, *made):
                        folder.rmdir()


def source_id(name: str, digest: str) -> str:
    """Returns a recording's id: its file name with `_` for special characters, then the start of the hash `digest`."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', Path(name).stem).strip('_')[:40] or 'source'}-{digest[:10]}"


def duration(seconds: float) -> str:
    """Formats a duration for display, in seconds if it is below a minute, else in minutes."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def describe(record: dict[str, Any]) -> str:
    """Summarizes a recording in one line: its length, its clips, and the time dropped for each reason."""
    seconds, count = defaultdict(float), sum(bool(row["clip"]) for row in record["rows"])
    for row in record["rows"]:
        seconds[row["reason"]] += (row["end"] - row["start"]) / record["sample_rate"]
    whole, clips = duration(record["num_samples"] / record["sample_rate"]), duration(seconds.pop("", 0.0))
    left = [f"{reason} {duration(one)}" for reason, one in sorted(seconds.items(), key=lambda one: -one[1])]
    return f"{record['name']}: {whole}, {counted(count, 'clip')} of {clips}; dropped: {', '.join(left) or 'nothing'}"


def clips_of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of all clips in `records`, worst quality first. Each row also gets `seconds` and `speaker`."""
    clips = []
    for record in records:
        kept = [row for row in record["rows"] if row["clip"]]
        usual = median([row["facts"]["characters_per_second"] for row in kept] or [0])
        for row in kept:
            facts, seconds = row["facts"], (row["end"] - row["start"]) / record["sample_rate"]
            rate = facts["characters_per_second"]
            badness = 3 * bool(row["detail"]) + (3 * abs(rate / usual - 1) if usual and rate else 0)
            badness += max(0.0, 40.0 - facts["snr_db"]) / 20 + max(0.0, facts["end_db"] + 40) / 20
            clips.append((-badness, row | {"seconds": seconds, "speaker": record["speaker"]}))
    return [clip for _, clip in sorted(clips, key=lambda one: one[0])]


def describe_doubts(clips: Sequence[dict[str, Any]], speaker: str) -> list[str]:
    """Returns report lines: the number of doubtful texts of `speaker`, and the worst of them. [] if there are none."""
    clips = [clip for clip in clips if clip["speaker"] == speaker]
    found = sorted((one for one in clips if one["detail"]), key=lambda one: one["facts"].get("word_probability", 1.0))
    lines = [f"  {one['clip']}, {one['seconds']:.1f} s, {one['detail']}: {one['text'][:100]}" for one in found[:_WORST]]
    head = f"Doubtful texts: {len(found)} of {counted(len(clips), 'clip')}; {SEGMENTS} lists all. The worst:"
    return [head, *lines] if found else []


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Writes `report.html` about all recordings, with waveforms, statistics and audio players. It works offline."""
    clips, left, rows_left, waves = clips_of(records), defaultdict(list), _MOST_ROWS, []
    for record in records:
        for row in record["rows"]:
            if not row["clip"]:
                times = row["start"] / record["sample_rate"], row["end"] / record["sample_rate"]
                left[row["reason"]].append((record["name"], *times, row["detail"] or row["text"]))
        seconds = record["num_samples"] / record["sample_rate"]
        count = min(rows_left, -int(-seconds // _ROW_SECONDS))
        rows_left -= count
        minutes = [_minute(record, number * _ROW_SECONDS) for number in range(count)]
        waves.append((record, seconds, minutes, count * _ROW_SECONDS < seconds))
    page = jinja2.Template(Path(__file__).with_name("report.html").read_text("utf-8"), autoescape=True).render(
        clips=clips,
        lengths=np.bincount(np.array([clip["seconds"] for clip in clips], int)).tolist(),
        left=sorted(left.items(), key=lambda one: -sum(end - start for _, start, end, _ in one[1])),
        waves=waves,
        **{"most": _WORST, "width": _WIDTH, "height": _HEIGHT, "counted": counted, "duration": duration},
    )
    files.write_text(folder / REPORT, page)


def _minute(record, start):
    """Draws one minute of a recording, from `start` seconds. Returns the start time, a box `(kind, x, width, text)` for
    each segment that is not a pause, and the points of an SVG waveform."""
    rate, step, scale, boxes = record["sample_rate"], record["envelope_seconds"], _WIDTH / _ROW_SECONDS, []
    for row in record["rows"]:
        low, high = (min(max(row[side] / rate - start, 0), _ROW_SECONDS) for side in ("start", "end"))
        if high > low and row["reason"] != PAUSE:
            kind = ("held" if row["validation"] else "kept") if row["clip"] else "left"
            boxes.append((kind, low * scale, (high - low) * scale - 1, row["text"] or row["reason"]))
    peaks = bytes.fromhex(record["envelope"])[int(start / step) : int((start + _ROW_SECONDS) / step) + 1]
    heights = [(k * step * scale, peak * _HEIGHT / 200) for k, peak in enumerate(peaks)]
    sides = [(x, -y) for x, y in heights] + heights[::-1]
    return timedelta(seconds=start), boxes, " ".join(f"{x:.1f},{_HEIGHT / 2 + y:.1f}" for x, y in sides)

"""From a folder of recordings and transcripts to a list of utterances.

Four layouts are recognised:

- `metadata.csv` with lines `id|text|normalized text` and audio in `wavs/` or beside it (LJSpeech), without a header;
  the third column may be missing or empty, a fourth names the speaker when most lines have one;
- the same with a header that names the columns, as in `audio_file|text|speaker_name`;
- one folder per speaker, each in one of the other layouts;
- audio files beside `.txt` files of the same names.

A `speakers.csv` beside a `metadata.csv`, with the header `id,speaker` or `id,speaker,language`, tells the speakers.

The folder is somebody else's: nothing in it is changed, nothing outside it is opened, sizes are limited, and every line
ends up either as an utterance or as a rejection with its reason.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data.corpus_folder import (
    MAX_LINE_CHARACTERS,
    MAX_NAME_CHARACTERS,
    ClipRefused,
    CorpusError,
    CorpusFolder,
    has_control_characters,
    parts_to_id,
    printable,
)

_LAYOUTS = (
    "Give a folder with a metadata.csv (one line 'id|text|normalized text' per clip, audio in wavs/), or with one such "
    "folder per speaker, or with audio files beside .txt files of the same names."
)
_HEADER_NAMES = {
    "id": (
        "id",
        "audio_file",
        "audio",
        "audio_path",
        "file",
        "file_name",
        "filename",
        "path",
        "wav",
        "wav_path",
        "wav_file",
        "clip",
    ),
    "text": ("text", "sentence", "transcript", "transcription", "raw_text"),
    "normalized": (
        "normalized",
        "normalised",
        "normalized_text",
        "normalised_text",
        "normalized text",
        "normalized_transcription",
        "normalized transcription",
        "text_normalized",
    ),
    "speaker": ("speaker", "speaker_name", "speaker_id"),
    "language": ("language", "lang", "locale"),
}
_COLUMN_OF_NAME = {name: column for column, names in _HEADER_NAMES.items() for name in names}
_LJSPEECH_COLUMNS = ("id", "text", "normalized")


@dataclass(frozen=True)
class Utterance:
    """One clip and what is said in it.

    `id` is unique within its corpus; `line` is where its list names it, None when there is no list.
    """

    id: str
    wav_path: Path
    text: str
    speaker: str
    language: str
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Finding:
    """What is wrong with one line or file. `reason` is fit to count by; `detail` is a sentence for people.

    `path` is the file to look at, relative to the corpus: the audio, or the list where its line is at fault.
    """

    id: str
    line: int | None
    path: str | None
    reason: str
    detail: str


class Rejection(Finding):
    """A finding for which the clip is not used."""


@dataclass(frozen=True)
class Corpus:
    """What a folder holds. `format` names the layout: "ljspeech", "header", "speaker folders" or "text files"."""

    root: Path
    format: str
    utterances: tuple[Utterance, ...]
    rejections: tuple[Rejection, ...]
    notes: tuple[str, ...]

    @property
    def given(self):
        """How many clips the folder names, usable or not."""
        return len(self.utterances) + len(self.rejections)


def load_corpus(root, language="en"):
    """Lists the utterances of a data set in any of the layouts above. Audio is found, not opened.

    Args:
        root: The folder of the data set.
        language: Of every clip for which the data set does not name one.

    Raises:
        CorpusError: The folder is missing, has no layout that is known, or a list in it is empty, too large, not UTF-8
            (or UTF-16 with a byte-order mark), or has speakers where text belongs.
    """
    root = Path(root)
    if not root.exists():
        raise CorpusError(f"The data set folder {root} does not exist. {_LAYOUTS}")
    if not root.is_dir():
        raise CorpusError(f"The data set {root} is not a folder. {_LAYOUTS}")
    reader = _Reader(CorpusFolder(root), language)
    root = reader.folder.root
    layout = reader.read_folder(root, prefix="", speaker=root.name)
    if layout is None:
        layout = "speaker folders"
        reader.read_speaker_folders()
    return Corpus(root, layout, tuple(reader.utterances), tuple(reader.rejections), tuple(reader.notes))


@dataclass(frozen=True)
class _Table:
    """One `metadata.csv` with what it takes to understand its lines."""

    path: Path
    prefix: str
    speaker: str
    columns: tuple[str | None, ...]
    speakers: dict | None

    @cached_property
    def least_columns(self):
        """Only a second text column and what follows it may be left out at the end of a line."""
        needed = [self.columns.index(column) for column in ("id", "speaker", "language") if column in self.columns]
        texts = [self.columns.index(column) for column in ("text", "normalized") if column in self.columns]
        return max(*needed, min(texts)) + 1


class _Reader:
    def __init__(self, folder, language):
        self.folder = folder
        self.language = language
        self.utterances = []
        self.rejections = []
        self.notes = []
        self._first_uses = {}

    def read_folder(self, path, prefix, speaker):
        """Reads one folder in one of the flat layouts. Returns the layout, None where it has none."""
        try:
            files = self.folder.files(path)
        except ClipRefused as refused:
            self.notes.append(f"The folder {self.folder.relative(path)} was left out: {refused.detail}")
            return None
        if "metadata.csv" in files:
            return self._read_table(path / "metadata.csv", prefix, speaker)
        stems = {os.path.splitext(key)[0] for key in files if key.endswith(AUDIO_EXTENSIONS)}
        transcripts = {os.path.splitext(key)[0] for key in files if key.endswith(".txt")}
        if stems.isdisjoint(transcripts):
            return None
        for stem in sorted(stems | transcripts):
            with_prefix = prefix + stem
            self._take(
                self._pair_to_utterance, (path, with_prefix, stem, speaker), with_prefix, None, path / f"{stem}.txt"
            )
        return "text files"

    def read_speaker_folders(self):
        paths = self.folder.subfolders()
        layouts = {
            path.name: self.read_folder(path, f"{path.name}/", path.name)
            for path in paths
            if not has_control_characters(path.name)
        }
        if not any(layouts.values()):
            raise CorpusError(f"{self.folder.root} holds no metadata.csv. {_LAYOUTS}")
        self.notes.extend(
            f"The folder {self.folder.relative(path)} was left out: it has neither metadata.csv nor "
            "audio with .txt files, or a name that cannot be printed."
            for path in paths
            if layouts.get(path.name) is None
        )

    def _read_table(self, path, prefix, speaker):
        lines = self.folder.read_lines(path)
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        columns = None if first is None else _header_to_columns(lines[first])
        header_line = None if columns is None else first
        if first is None or header_line == len(lines) - 1:
            raise CorpusError(f"{path} is empty: no clips. Write one line 'id|text|normalized text' per clip.")
        if columns is not None:
            header = printable(lines[first][:100])
            self.notes.append(f"Line {first + 1} of {self.folder.relative(path)} was read as a header: {header}")
        columns = columns or _columns_without_header(path, lines)
        table = _Table(path, prefix, speaker, columns, self._read_speakers(path.parent / "speakers.csv"))
        id_column = columns.index("id")
        for index, line in enumerate(lines):
            if index == header_line:
                continue
            name = "".join(line.split("|", id_column + 1)[id_column : id_column + 1]).strip()
            self._take(self._line_to_utterance, (table, line, index + 1), name[:MAX_NAME_CHARACTERS], index + 1, path)
        return "ljspeech" if header_line is None else "header"

    def _take(self, make_utterance, arguments, name, line, path):
        """Adds one utterance or one rejection."""
        try:
            utterance = make_utterance(*arguments)
        except ClipRefused as refused:
            path = self.folder.relative(refused.path or path)
            self.rejections.append(Rejection(printable(name), line, path, refused.reason, refused.detail))
        else:
            self._first_uses[utterance.id] = utterance
            self.utterances.append(utterance)

    def _line_to_utterance(self, table, line, number):
        if not line.strip():
            raise ClipRefused("empty line", "The line is empty.")
        if line.lstrip().startswith("#") and "|" not in line:
            raise ClipRefused("comment line", "The line is a comment.")
        if len(line) > MAX_LINE_CHARACTERS:
            raise ClipRefused(
                "line too long", f"The line has {len(line)} characters; the most is {MAX_LINE_CHARACTERS}."
            )
        cells = line.split("|")
        if not table.least_columns <= len(cells) <= len(table.columns):
            raise ClipRefused(
                "wrong number of columns",
                f"The line has {len(cells)} "
                f"column{'s' * (len(cells) != 1)} instead of {len(table.columns)}; '|' separates them.",
            )
        cells = {column: cell.strip() for column, cell in zip(table.columns, cells)}
        parts = self.folder.name_to_parts(cells["id"])
        clip_id = table.prefix + parts_to_id(parts)
        text = _checked_text(cells.get("normalized") or cells.get("text", ""))
        first = self._first_uses.get(clip_id)
        if first is not None:
            same = "the same text" if first.text == text else "another text"
            raise ClipRefused(
                "duplicate id", f"Line {first.line} names this clip already, with {same}; that line is used."
            )
        wav_path = self.folder.find_audio((table.path.parent / "wavs", table.path.parent), parts)
        speaker, language = self._speaker_and_language(table, cells, parts_to_id(parts))
        return Utterance(clip_id, wav_path, text, speaker, language, number)

    def _pair_to_utterance(self, path, clip_id, stem, speaker):
        files = self.folder.files(path)
        if f"{stem}.txt" not in files:
            raise ClipRefused("no text", f"There is no {printable(stem)}.txt beside the audio.")
        wav_path = self.folder.find_audio((path,), self.folder.name_to_parts(stem))
        try:
            text = self.folder.read_text(path / files[f"{stem}.txt"], MAX_LINE_CHARACTERS)
        except CorpusError as error:
            raise ClipRefused("unreadable text", str(error)) from error
        return Utterance(clip_id, wav_path, _checked_text(" ".join(text.split())), speaker, self.language)

    def _speaker_and_language(self, table, cells, name):
        listed = (table.speakers or {}).get(name, ("", ""))
        speaker = cells.get("speaker") or listed[0]
        if not speaker and (table.speakers is not None or "speaker" in table.columns):
            raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
        language = cells.get("language") or listed[1]
        if any(len(label) > MAX_NAME_CHARACTERS or has_control_characters(label) for label in (speaker, language)):
            raise ClipRefused("bad label", "Its speaker or language is too long or holds control characters.")
        return speaker or table.speaker, language.lower().replace("_", "-") or self.language

    def _read_speakers(self, path):
        """Reads `speakers.csv` to `{id: (speaker, language or "")}`; None where there is none."""
        if path.name not in self.folder.files(path.parent):
            return None
        lines = self.folder.read_lines(path) or [""]
        columns = [_COLUMN_OF_NAME.get(cell.strip().lower()) for cell in lines[0].split(",")]
        if "id" not in columns or "speaker" not in columns:
            raise CorpusError(
                f"{path} must begin with the line 'id,speaker' or 'id,speaker,language'. Received: {lines[0][:100]!r}."
            )
        speakers, faulty = {}, []
        for number, line in enumerate(lines[1:], 2):
            cells = line.split(",")
            row = {column: cell.strip() for column, cell in zip(columns, cells)}
            parts = [part for part in row["id"].replace("\\", "/").split("/") if part] if "id" in row else []
            labels = (row.get("speaker", ""), row.get("language", ""))
            if len(cells) != len(columns) or not parts or speakers.setdefault(parts_to_id(parts), labels) != labels:
                faulty.append(number)
        if faulty:
            self.notes.append(
                f"{len(faulty)} lines of {self.folder.relative(path)} were left out, being incomplete or "
                f"at odds with an earlier line; the first is line {faulty[0]}."
            )
        return speakers


def _header_to_columns(line):
    """The meaning of each column, None for an unknown one; None when the line is no header."""
    columns = [_COLUMN_OF_NAME.get(cell.strip().lower()) for cell in line.split("|")]
    known = [column for column in columns if column]
    is_header = "id" in known and ("text" in known or "normalized" in known) and len(set(known)) == len(known)
    return tuple(columns) if is_header else None


def _columns_without_header(path, lines):
    rows = [line.split("|") for line in lines if "|" in line]
    sizes = Counter(map(len, rows))
    # A '|' in the text of the only line is more likely than a speaker.
    if sizes[4] > 1 and sizes[4] > len(rows) / 2:
        return (*_LJSPEECH_COLUMNS, "speaker")
    # `id|text|speaker`, as some tools write it, would otherwise be trained as the speaker's name spoken.
    texts = [(row[1].casefold().split(), row[2].casefold().split()) for row in rows if len(row) == 3 and row[2].strip()]
    sentences, names = {tuple(text) for text, _ in texts}, {tuple(third) for _, third in texts}
    alike = any(not set(text).isdisjoint(third) for text, third in texts)
    if len(sentences) >= 8 and len(names) <= len(sentences) / 4 and not alike:
        raise CorpusError(
            f"{path} has no header, and its third column, where the normalized text belongs, looks like "
            f"a speaker: {len(names)} values in {len(texts)} lines. Write 'id|text|speaker' above them."
        )
    return _LJSPEECH_COLUMNS


def _checked_text(text):
    if not any(map(str.isalnum, text)):
        raise ClipRefused("no text", "The transcript is empty or holds no letter and no digit.")
    return text

"""What all corpus formats share: the records they make, and the reading that collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora.folder import MAX_NAME_CHARACTERS, ClipRefused, CorpusFolder, printable


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
    validation: bool = field(default=False, compare=False)
    """Whether the data set itself keeps the clip for validation."""
    num_samples: int = field(default=0, compare=False)
    """Length at 22 050 Hz once the audio has been read, else 0."""

    @property
    def seconds(self) -> float:
        return self.num_samples / MODEL_SAMPLE_RATE


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


@dataclass(frozen=True)
class Corpus:
    """What a folder, or a list in the folder `root`, holds. `format` is the name of its `CorpusFormat`."""

    root: Path
    format: str
    utterances: tuple[Utterance, ...]
    rejections: tuple[Finding, ...]
    notes: tuple[str, ...]
    is_list: bool = False
    """Whether one list was named: `root`, its folder, may then hold anything else."""

    @property
    def given(self) -> int:
        """How many clips the folder names, usable or not."""
        return len(self.utterances) + len(self.rejections)


class Place(NamedTuple):
    """What one format reads: a folder, of which `list_path` may be the one list to read.

    `prefix` begins the ids of its clips, `speaker` is theirs where none is named, and `validation` says whether they
    are kept for validation.
    """

    path: Path
    prefix: str
    speaker: str
    list_path: Path | None = None
    validation: bool = False

    def below(self, path: Path, **changes) -> Place:
        """A folder below this one: its ids begin with the way to it."""
        return self._replace(path=path, prefix=f"{self.prefix}{path.relative_to(self.path).as_posix()}/", **changes)


@dataclass(frozen=True)
class CorpusFormat:
    """One layout: how to tell it from others, and how to read it."""

    name: str
    priority: int
    """Formats of lower numbers are asked first."""
    hint: str
    """What such a folder holds, to follow "a folder with"."""
    read: Callable[[Reading, Place], bool]
    """Called as `read(reading, place)`: returns False at once if the folder has another layout; else adds at least one
    utterance or rejection, or raises `CorpusError`. `ClipRefused` means that the folder must not be read at all."""


class Reading:
    """One data set while it is read: formats find their files in `folder` and add what they make of them."""

    def __init__(self, folder: CorpusFolder, language: str, formats: list[CorpusFormat]):
        self.folder = folder
        self.language = language
        """Of clips for which nothing names one; empty where the user names none either."""
        self.formats = formats
        """Those that may be tried."""
        self.utterances: list[Utterance] = []
        self.rejections: list[Finding] = []
        self.notes: list[str] = []
        self._first_uses: dict[str, Utterance] = {}

    @contextmanager
    def clip(self, name: str, line: int | None, path: Path) -> Iterator[None]:
        """Around code that adds one utterance: `ClipRefused` becomes a rejection, at `path` unless it names a file."""
        try:
            yield
        except ClipRefused as refused:
            name, path = printable(name[:MAX_NAME_CHARACTERS]), self.folder.relative(refused.path or path)
            self.rejections.append(Finding(name, line, path, refused.reason, refused.detail))

    def add(self, utterance: Utterance):
        """Adds a clip that can be used as far as its list tells."""
        self._first_uses[utterance.id] = utterance
        self.utterances.append(utterance)

    def check_new(self, clip_id: str, text: str):
        """Raises `ClipRefused` where an earlier line names this clip."""
        first = self._first_uses.get(clip_id)
        if first is not None:
            same = "the same text" if first.text == text else "another text"
            where = "The validation list" if first.validation else f"Line {first.line}"
            detail = f"{where} already names this clip, with {same}; that line is used."
            raise ClipRefused("duplicate id", detail)


def checked_text(text: str) -> str:
    """Returns `text`; raises `ClipRefused` where there is nothing in it to say."""
    if not any(map(str.isalnum, text)):
        raise ClipRefused("no text", "The transcript is empty or holds no letter and no digit.")
    return text

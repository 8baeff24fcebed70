"""Records that all corpus formats produce, and the reading that collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora.folder import MAX_NAME_CHARACTERS, ClipRefused, CorpusFolder, is_name, parts_to_id, printable


@dataclass(frozen=True)
class Utterance:
    """One clip with its transcript. `id` is unique within its corpus; `line` is its line in the list, if there is one.

    `validation` marks clips that the data set itself keeps for validation. `num_samples` is the length at 22 050 Hz, 0
    until the audio has been read.
    """

    id: str
    wav_path: Path
    text: str
    speaker: str
    language: str
    line: int | None = field(default=None, compare=False)
    validation: bool = field(default=False, compare=False)
    num_samples: int = field(default=0, compare=False)

    @property
    def seconds(self) -> float:
        return self.num_samples / MODEL_SAMPLE_RATE


@dataclass(frozen=True)
class Finding:
    """A problem of one clip: `reason` is a short fixed phrase to count by, `detail` a sentence for people.

    `path` is the file at fault, relative to the corpus: the audio, or the list whose line is wrong.
    """

    id: str
    line: int | None
    path: str | None
    reason: str
    detail: str


@dataclass(frozen=True)
class Corpus:
    """Content of a data set: `root` is its folder, `format` the name of its `CorpusFormat`."""

    root: Path
    format: str
    utterances: tuple[Utterance, ...]
    rejections: tuple[Finding, ...]
    notes: tuple[str, ...]


class Place(NamedTuple):
    """A folder that a format reads, or the single list `list_path` in it.

    `prefix` starts the ids of its clips, `speaker` and `language` are their defaults, and `validation` marks them as
    validation clips.
    """

    path: Path
    prefix: str
    speaker: str
    list_path: Path | None = None
    validation: bool = False
    language: str = ""

    def below(self, path: Path, **changes) -> Place:
        """Returns the place of a folder below this one; its path is added to the prefix of ids."""
        return self._replace(path=path, prefix=f"{self.prefix}{path.relative_to(self.path).as_posix()}/", **changes)


@dataclass(frozen=True)
class CorpusFormat:
    """One layout: how to recognize and read it."""

    name: str
    priority: int
    """Formats with lower numbers are tried first."""
    hint: str
    """Content of such a folder, to follow "a folder with"."""
    read: Callable[[Reading, Place], bool]
    """Called as `read(reading, place)`. Returns False if the folder has another layout; otherwise adds at least one
    utterance or rejection, or raises `CorpusError`. `ClipRefused` means that the folder must not be read at all."""
    takes_list: bool = False
    """Whether it also reads a single list, `place.list_path`."""


class Reading:
    """State while one data set is read: formats find their files in `folder` and add utterances.

    `language` is the language of clips whose data names none, empty if the user gave none. `formats` are those to try.
    """

    def __init__(self, folder: CorpusFolder, language: str, formats: list[CorpusFormat]):
        self.folder, self.language, self.formats = folder, language, formats
        self.utterances: list[Utterance] = []
        self.rejections: list[Finding] = []
        self.notes: list[str] = []
        self._first_uses: dict[str, Utterance] = {}

    @contextmanager
    def clip(self, name: str, line: int | None, path: Path) -> Iterator[None]:
        """Context for adding one utterance: `ClipRefused` becomes a rejection, at `path` unless it names a file."""
        try:
            yield
        except ClipRefused as refused:
            name, path = printable(name[:MAX_NAME_CHARACTERS]), self.folder.relative(refused.path or path)
            self.rejections.append(Finding(name, line, path, refused.reason, refused.detail))

    def add(
        self,
        place: Place,
        cells: dict[str, str],
        line: int | None,
        audio_places: Sequence[Path],
        speakers: dict[str, tuple[str, str]] | None = None,
        name: str | None = None,
    ):
        """Adds the utterance of one clip, or raises `ClipRefused`.

        `cells` has `id`, which names the audio, `text` or `normalized`, and perhaps `speaker` and `language`;
        `speakers` is `{id: (speaker, language)}` of a `speakers.csv`. `name` is the clip's id within `place`, by
        default that of its audio.
        """
        parts = self.folder.name_to_parts(cells["id"])
        name = name or parts_to_id(parts)
        clip_id, text = place.prefix + name, cells.get("normalized") or cells.get("text", "")
        if not any(map(str.isalnum, text)):
            raise ClipRefused("no text", "The transcript is empty or has no letter and no digit.")
        if first := self._first_uses.get(clip_id):
            same = "the same text" if first.text == text else "another text"
            where = "The validation list" if first.validation else f"Line {first.line}"
            raise ClipRefused("duplicate id", f"{where} already names this clip, with {same}; that line is used.")
        path = self.folder.find_audio(audio_places, parts)
        listed = (speakers or {}).get(name, ("", ""))
        speaker, language = cells.get("speaker") or listed[0], cells.get("language") or listed[1] or place.language
        if not speaker and (speakers is not None or "speaker" in cells):
            raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
        if not (is_name(speaker) and is_name(language)):
            detail = "Its speaker or language is too long, or has control or direction characters."
            raise ClipRefused("bad label", detail)
        speaker, language = speaker or place.speaker, language.lower().replace("_", "-") or self.language
        utterance = Utterance(clip_id, path, text, speaker, language, line, place.validation)
        self._first_uses[clip_id] = utterance
        self.utterances.append(utterance)

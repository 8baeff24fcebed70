"""Data types of the corpus formats: utterances, problems with clips, and the `Reading` that collects both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from myxtts.config.checks import UNPRINTABLE, counted, printable
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora.folder import MAX_NAME_LENGTH, ClipRefused, CorpusFolder, is_name, parts_to_id, relative_path
from myxtts.storage.speakers import composed
from myxtts.text.languages import get_language


@dataclass(frozen=True)
class Utterance:
    """One clip with its transcript.

    `id` is unique within the corpus. `line` is the line number in the list of clips, if any. `validation` is True for
    clips of the data set's own validation split. `num_samples` is the length at 22 050 Hz, 0 until the audio is read.
    `audio` is a digest of the 16-bit samples, empty until the audio is read. `tokens` are the transcript's token ids,
    empty until a data set is opened for training.
    """

    id: str
    wav_path: str
    text: str
    speaker: str
    language: str
    line: int | None = field(default=None, compare=False)
    validation: bool = field(default=False, compare=False)
    num_samples: int = field(default=0, compare=False)
    audio: str = field(default="", compare=False)
    tokens: tuple[int, ...] = field(default=(), compare=False)

    @property
    def seconds(self) -> float:
        return self.num_samples / MODEL_SAMPLE_RATE


@dataclass(frozen=True)
class Finding:
    """Problem with one clip: `reason` is a fixed phrase, such as "no text", and `detail` is a sentence for users.

    `path` is the file with the problem, relative to the corpus: the audio file or the list.
    """

    id: str
    line: int | None
    path: str | None
    reason: str
    detail: str


@dataclass(frozen=True)
class Corpus:
    """Content of a data set in the folder `root`; `format` is the name of its `CorpusFormat`. `warnings` describe
    problems of the accepted clips, `utterances`, and are empty until `inspect_corpus` has read the audio."""

    root: Path
    format: str
    utterances: tuple[Utterance, ...]
    rejections: tuple[Finding, ...]
    notes: tuple[str, ...]
    warnings: tuple[Finding, ...] = ()
    lists: tuple[str, ...] = ()  # paths of the lists of clips, relative to `root`

    @property
    def given(self) -> int:
        """Number of clips in the data set, accepted or rejected."""
        return len(self.utterances) + len(self.rejections)

    def finding(self, clip: Utterance, reason: str, detail: str) -> Finding:
        """Creates the `Finding` of a problem with the clip's audio file or its text."""
        return Finding(clip.id, clip.line, relative_path(Path(clip.wav_path), self.root), reason, detail)

    def encoded(self, encode: Callable[[str, str], tuple[Sequence[int], str | None]]) -> Self:
        """Encodes the texts of the clips to token ids, and returns a copy of the corpus with these ids.
        `encode(text, language)` must return `(ids, reason)`. If `reason` is not None, the clip is rejected."""
        results = [(clip, *encode(clip.text, clip.language)) for clip in self.utterances]
        refused = [self.finding(clip, "text not usable", fault) for clip, _, fault in results if fault]
        accepted = tuple(replace(clip, tokens=tuple(ids)) for clip, ids, fault in results if not fault)
        return replace(self, utterances=accepted, rejections=(*self.rejections, *refused))


class Place(NamedTuple):
    """Folder that a format reads, and defaults for the clips in it. If `list_path` is set, only this list is read.

    The ids of the clips begin with `prefix`. `speaker` and `language` are used if a clip has no such label.
    If `validation` is true, the clips are for validation.
    """

    path: Path
    prefix: str
    speaker: str
    list_path: Path | None = None
    validation: bool = False
    language: str = ""

    def below(self, path: Path, **changes) -> Self:
        """Returns the `Place` of the subfolder `path`, with an extended `prefix` and with `changes` to other fields."""
        return self._replace(path=path, prefix=f"{self.prefix}{path.relative_to(self.path).as_posix()}/", **changes)


@dataclass(frozen=True)
class CorpusFormat:
    """Reader of one layout of data sets."""

    name: str
    priority: int
    """Order in which formats are tried, lowest first."""
    hint: str
    """Description of the layout, which error messages show after the words "a folder with"."""
    read: Callable[["Reading", Place], object]
    """Function that adds the clips and rejections of a `Place` to a `Reading`, unless the place has another layout.
    Raises `CorpusError` if a list cannot be read, and `ClipRefused` if the folder cannot or must not be opened."""
    takes_list: bool = False
    """Whether `read` can also read a single list, `place.list_path`, instead of a folder."""


class Reading:
    """State while one data set is read: its files, and the utterances, rejections and notes found so far.

    `language` is the default for clips without a language, or empty. If a data set has one folder per speaker,
    `formats` are tried on each of these folders. `lists` are the paths of the lists of clips that were read.
    """

    def __init__(self, folder: CorpusFolder, language: str, formats: list[CorpusFormat]):
        self.folder, self.language, self.formats = folder, to_code(language), formats
        self.utterances: list[Utterance] = []
        self.rejections: list[Finding] = []
        self.lists: list[str] = []
        self._notes: dict[tuple[str, str], list[str]] = {}
        self._first_uses: dict[str, Utterance] = {}

    def read(self, formats: Iterable[CorpusFormat], place: Place) -> str | None:
        """Reads a place with the first of `formats` that finds clips there. Returns the format's name, or None."""
        before = len(self.utterances) + len(self.rejections)
        for form in formats:
            form.read(self, place)
            if len(self.utterances) + len(self.rejections) > before:
                return form.name
        return None

    def note(self, start: str, subject: str = "", end: str = "."):
        """Adds the note `start` + `subject` + `end`. Notes that differ only in `subject` are merged and counted."""
        self._notes.setdefault((start, end), []).append(subject)

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes, in the order in which they were first added."""
        more = lambda subjects: f" (and {counted(len(subjects) - 1, 'other')})" if subjects[1:] else ""
        return tuple(f"{start}{one[0]}{more(one)}{end}" for (start, end), one in self._notes.items())

    @contextmanager
    def clip(self, name: str, line: int | None, path: Path) -> Iterator[None]:
        """Context manager that catches `ClipRefused` and rejects the clip `name`, in line `line` of file `path`."""
        try:
            yield
        except ClipRefused as refused:
            name, path = printable(name[:MAX_NAME_LENGTH]), self.folder.relative(refused.path or path)
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
        """Adds the utterance of one clip. Raises `ClipRefused` if the clip cannot be used.

        Args:
            cells: `{column: cell}` with `id` (audio file), `text` or `normalized`, and perhaps `speaker`, `language`.
            line: Line number in the list; None if there is no list.
            audio_places: Folders that may contain the audio file.
            speakers: `{id: (speaker, language)}` from a `speakers.csv`.
            name: Id of the clip without the prefix of `place`. By default, it is derived from the audio file's name.
        """
        parts = self.folder.name_to_parts(cells["id"])
        name = name or parts_to_id(parts)
        clip_id = place.prefix + name
        text = cells.get("normalized") or cells.get("text", "")
        if not any(map(str.isalnum, text)):
            raise ClipRefused("no text", "The transcript is empty, or has no letters or digits.")
        if first := self._first_uses.get(clip_id):
            same = "the same text" if first.text == text else "another text"
            where = "The validation list" if first.validation else f"Line {first.line}" if first.line else "A file"
            raise ClipRefused("duplicate id", f"{where} already names this clip, with {same}; that one is used.")
        path = str(self.folder.find_audio(audio_places, parts))
        listed_speaker, listed_language = (speakers or {}).get(name, ("", ""))
        speaker = cells.get("speaker") or listed_speaker
        language = cells.get("language") or listed_language or place.language
        if not speaker and (speakers is not None or "speaker" in cells):
            raise ClipRefused("no speaker", "Neither its line nor speakers.csv names its speaker.")
        if not (is_name(speaker) and is_name(language)):
            raise ClipRefused("bad label", "Its speaker or language is too long, or has control characters.")
        speaker = composed(speaker or UNPRINTABLE.sub("", place.speaker))  # a folder may have any name
        clip = Utterance(clip_id, path, text, speaker, to_code(language) or self.language, line, place.validation)
        self.utterances.append(clip)
        self._first_uses[clip_id] = clip


@lru_cache(1000)
def to_code(language: str) -> str:
    """Returns the language code of a label such as `German` or `de_DE`; converts other labels to lower case."""
    with suppress(ValueError):
        language = get_language(language).code
    return language.lower().replace("_", "-")

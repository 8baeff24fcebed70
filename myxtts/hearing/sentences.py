"""What is said to be judged: the same sentences for all that are compared."""

import csv
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import AudioError, read_audio
from myxtts.config.checks import UserError, read_bounded
from myxtts.data.corpora import Utterance, load_corpus
from myxtts.data.splits import split_by_hash
from myxtts.storage.files import CheckpointError
from myxtts.storage.provenance import read_config
from myxtts.text.languages import get_language

logger = logging.getLogger(__name__)

MOST_TEXT_BYTES = 4 * 2**20
MOST_SECONDS = 30.0
"""Of a recording that is judged by."""
KNOWN_SHARE = 0.5
"""Of a data set's clips that a run must know by name for the data set to count as the one it was trained on."""
CLIP_LIST = "clips_train.csv"


@dataclass(frozen=True)
class Sentence:
    """A text, whose voice it is to be said in, and a recording of it where there is one."""

    id: str
    text: str
    language: str
    speaker: str = ""
    voice: str | None = None
    """File with the voice that it is said in; None for what is spoken already."""
    recording: str | None = None
    """File in which the speaker says it."""
    seen: bool | None = None
    """Whether the speaker was trained on; None where that is not known."""


@dataclass(frozen=True)
class TrainedOn:
    """What a run was trained on, as its folder says."""

    ids: frozenset[str]
    """Clips that losses came from."""
    listed: frozenset[str]
    """All clips that its list names, those that were left out and those of the validation too."""
    folder: str

    @classmethod
    def read(cls, run: Path) -> "TrainedOn | None":
        """None where the folder is not one of a run with its list of clips."""
        try:
            data = read_config(run).data
            with open(run / CLIP_LIST, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            named = [(row["id"], row["verdict"] != "rejected") for row in rows]
        except (OSError, CheckpointError, KeyError):
            return None
        # Its writer puts an apostrophe before what a spreadsheet would compute.
        named = [(re.sub("^'(?=[=+@-])", "", name), accepted) for name, accepted in named]
        clips = [Utterance(name, Path(), "", "", "") for name, accepted in named if accepted]
        if not data.val_data:
            clips = split_by_hash(clips, data.validation_share)[0]
        return cls(frozenset(clip.id for clip in clips), frozenset(name for name, _ in named), str(data.train_data))

    def knows(self, utterances: Sequence[Utterance], folder: Path) -> bool:
        """Whether these clips are those it was trained on, perhaps with more."""
        known = sum(one.id in self.listed for one in utterances)
        same = Path(self.folder).exists() and Path(self.folder).resolve() == folder.resolve()
        return bool(known) and (same or known >= KNOWN_SHARE * min(len(utterances), len(self.listed)))


def sentences_of_data(folder: str | Path, runs: Iterable[Path], language: str, count: int) -> list[Sentence]:
    """At most `count` clips of a data set that none of the runs was trained on, spread over speakers and names.

    Each is to be said in the voice of the longest other clip of its speaker, of those trained on where there are any.

    Raises:
        UserError: There is no such clip.
    """
    corpus = load_corpus(folder, language)
    trained = _trained(corpus.utterances, Path(folder), runs)
    held = [one for one in corpus.utterances if one.id not in trained]
    if kept := [one for one in held if one.validation]:
        held = kept
    if not held:
        raise UserError(f"Every clip of {folder} was trained on. Name another data set with --data, or give --texts.")
    held = sorted(held, key=lambda one: (one.speaker, one.id))
    voices = _Voices(corpus.utterances, trained)
    found = []
    for one in spread(held, count):
        try:
            read_audio(one.wav_path, max_seconds=MOST_SECONDS)
        except AudioError as error:
            logger.warning("%s It is left out.", error)
            continue
        voice = voices.of(one)
        seen = None if not trained else one.speaker in voices.trained_speakers
        found.append(
            Sentence(one.id, one.text, one.language, one.speaker, str(voice.wav_path), str(one.wav_path), seen)
        )
    if not found:
        raise UserError(f"None of the clips of {folder} that were not trained on can be read.")
    return found


def _trained(utterances, folder, runs):
    """Ids of the clips that any of the runs was trained on."""
    trained, names = set(), {one.id for one in utterances}
    for run in runs:
        known = TrainedOn.read(run)
        if known and known.knows(utterances, folder):
            validation = {one.id for one in utterances if one.validation} & known.listed
            own = known.listed - validation if validation and validation != known.listed else known.ids
            trained |= own & names
    return trained


class _Voices:
    """The recording that a speaker's voice is taken from."""

    def __init__(self, utterances, trained):
        self.by_speaker = defaultdict(list)
        for one in utterances:
            self.by_speaker[one.speaker, one.language].append(one)
        self.trained = trained
        self.trained_speakers = {one.speaker for one in utterances if one.id in trained}
        self._longest = {}

    def of(self, utterance: Utterance) -> Utterance:
        key = utterance.speaker, utterance.language
        if key not in self._longest:
            same = self.by_speaker[key]
            pool = [one for one in same if one.id in self.trained] or same
            self._longest[key] = sorted(pool, key=lambda one: -_seconds(one.wav_path))[:2]
        # Not the recording itself, where there is another.
        others = [one for one in self._longest[key] if one.id != utterance.id]
        return others[0] if others else utterance


def _seconds(path):
    try:
        seconds = soundfile.info(str(path)).duration
    except soundfile.LibsndfileError:
        return 0.0
    return seconds if seconds <= MOST_SECONDS else 0.0


def sentences_of_texts(path: str, voices: Sequence[str], language: str, count: int) -> list[Sentence]:
    """The texts of a file, a line each, said by the voices in turn; empty lines and those with # are passed over."""
    try:
        content = read_bounded(Path(path), MOST_TEXT_BYTES)
    except FileNotFoundError:
        raise UserError(f"--texts must be a file with a sentence on each line. {path} is not there.") from None
    except ValueError as error:
        raise UserError(f"--texts {path} {error}.") from error
    lines = [line.strip() for line in re.split("\r\n|\r|\n", content)]
    texts = [line for line in lines if line and not line.startswith("#")]
    if not texts:
        raise UserError(f"--texts {path} holds no sentence.")
    code = get_language(language).code
    texts = spread(texts, count)
    names = [str(voice) for voice in voices]
    return [
        Sentence(f"text_{number:03d}", text, code, *_named(names[(number - 1) % len(names)] if names else None))
        for number, text in enumerate(texts, 1)
    ]


def _named(voice):
    return (Path(voice).stem, voice) if voice else ("", None)


def sentences_of_wavs(folder: str | Path, language: str, count: int) -> list[Sentence]:
    """What a folder of spoken files says that it says, to be judged by itself."""
    held = sorted(load_corpus(folder, language).utterances, key=lambda one: (one.speaker, one.id))
    return [Sentence(one.id, one.text, one.language, one.speaker) for one in spread(held, count)]


def voices_of(sentences: Sequence[Sentence]) -> list[str]:
    """One voice for each speaker, in their order."""
    by_speaker = {one.speaker: one.voice for one in reversed(sentences) if one.voice}
    return [by_speaker[name] for name in sorted(by_speaker)]


def in_voices(sentences: Sequence[Sentence], voices: Sequence[str]) -> list[Sentence]:
    """The sentences, said by these voices in turn; recordings of another voice are not compared with."""
    return [
        replace(one, speaker=Path(voice).stem, voice=str(voice), recording=None, seen=None)
        for one, voice in zip(sentences, np.resize(list(voices), len(sentences)))
    ]


def spread(items: Sequence, count: int) -> list:
    """At most `count` of the items, at equal distances."""
    if len(items) <= count:
        return list(items)
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, count).round()]

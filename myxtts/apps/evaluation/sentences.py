"""The sentences of an evaluation: the same for all that are compared."""

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
from myxtts.hearing.spoken import Sentence, spread
from myxtts.storage.files import CheckpointError
from myxtts.storage.provenance import read_config
from myxtts.text.languages import get_language

logger = logging.getLogger(__name__)

MOST_TEXT_BYTES = 4 * 2**20
MOST_SECONDS = 30.0
"""Length of the longest recording that is used."""
KNOWN_SHARE = 0.5
"""Of a data set's clips that a run must know by name for the data set to count as the one it was trained on."""
CLIP_LIST = "clips_train.csv"


@dataclass(frozen=True)
class TrainedOn:
    """The training data of a run, from its folder."""

    ids: frozenset[str]
    """Clips that were trained on."""
    listed: frozenset[str]
    """All clips in its list, rejected and validation clips included."""
    folder: str

    @classmethod
    def read(cls, run: Path) -> "TrainedOn | None":
        """None where the folder is not one of a run with its list of clips."""
        try:
            data = read_config(run).data
            with open(run / CLIP_LIST, encoding="utf-8", newline="") as file:
                named = [(row["id"], row["verdict"] != "rejected") for row in csv.DictReader(file)]
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
    voices, found = _Voices(corpus.utterances, trained), []
    trained_speakers = {one.speaker for one in corpus.utterances if one.id in trained}
    for one in spread(held, count):
        try:
            read_audio(one.wav_path, max_seconds=MOST_SECONDS)
        except AudioError as error:
            logger.warning("%s It is left out.", error)
            continue
        files, seen = (str(voices.of(one).wav_path), str(one.wav_path)), one.speaker in trained_speakers
        found.append(Sentence(one.id, one.text, one.language, one.speaker, *files, seen if trained else None))
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
        self._by_speaker, self._trained, self._longest = defaultdict(list), trained, {}
        for one in utterances:
            self._by_speaker[one.speaker, one.language].append(one)

    def of(self, utterance: Utterance) -> Utterance:
        key = utterance.speaker, utterance.language
        if key not in self._longest:
            same = self._by_speaker[key]
            pool = [one for one in same if one.id in self._trained] or same
            self._longest[key] = sorted(pool, key=lambda one: -_seconds(one.wav_path))[:2]
        # Not the recording itself, if there is another.
        return next((one for one in self._longest[key] if one.id != utterance.id), utterance)


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
    found = [Sentence(f"text_{number:03d}", text, code) for number, text in enumerate(spread(texts, count), 1)]
    return in_voices(found, voices) if voices else found


def sentences_of_wavs(folder: str | Path, language: str, count: int) -> list[Sentence]:
    """The texts of a folder of spoken files, to evaluate it by itself."""
    held = sorted(load_corpus(folder, language).utterances, key=lambda one: (one.speaker, one.id))
    return [Sentence(one.id, one.text, one.language, one.speaker) for one in spread(held, count)]


def voices_of(sentences: Sequence[Sentence]) -> list[str]:
    """One voice for each speaker, in their order."""
    by_speaker = {one.speaker: one.voice for one in reversed(sentences) if one.voice}
    return [by_speaker[name] for name in sorted(by_speaker)]


def in_voices(sentences: Sequence[Sentence], voices: Sequence[str]) -> list[Sentence]:
    """The sentences, said by these voices in turn, and without recordings, which are of another voice."""
    return [
        replace(one, speaker=Path(voice).stem, voice=str(voice), recording=None, seen=None)
        for one, voice in zip(sentences, np.resize(list(voices), len(sentences)))
    ]

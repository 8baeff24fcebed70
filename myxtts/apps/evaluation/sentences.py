"""The sentences of an evaluation: the same for all that are compared."""

import csv
import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import AudioError, read_audio
from myxtts.config.checks import UserError, read_bounded
from myxtts.data.corpora import Utterance, load_corpus
from myxtts.data.sample_corpus import VOICES, Clip, speak_clips, unheard_sentences
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


def sentences_of_data(folder: str | Path, runs: Iterable[Path], language: str, count: int) -> list[Sentence]:
    """At most `count` clips of a data set that none of the runs was trained on, spread over speakers and names.

    Each is to be said in the voice of the longest other clip of its speaker, of those trained on where there are any.

    Raises:
        UserError: There is no such clip.
    """
    corpus = load_corpus(folder, language)
    trained = set().union(*(trained_ids(run, corpus.utterances, Path(folder)) for run in runs))
    held = [one for one in corpus.utterances if one.id not in trained]
    if kept := [one for one in held if one.validation]:
        held = kept
    if not held:
        raise UserError(f"Every clip of {folder} was trained on. Name another data set with --data, or give --texts.")
    chosen, found = spread(sorted(held, key=lambda one: (one.speaker, one.id)), count), []
    longest = _longest(corpus.utterances, trained, {(one.speaker, one.language) for one in chosen})
    trained_speakers = {one.speaker for one in corpus.utterances if one.id in trained}
    for one in chosen:
        try:
            read_audio(one.wav_path, max_seconds=MOST_SECONDS)
        except AudioError as error:
            logger.warning("%s It is left out.", error)
            continue
        # Not the recording itself, if there is another.
        voice = next((other for other in longest[one.speaker, one.language] if other.id != one.id), one)
        seen = one.speaker in trained_speakers if trained else None
        files = str(voice.wav_path), str(one.wav_path)
        found.append(Sentence(one.id, one.text, one.language, one.speaker, *files, seen))
    if not found:
        raise UserError(f"None of the clips of {folder} that were not trained on can be read.")
    return found


def espeak_data(folder: Path, language: str) -> Path:
    """A data set for the bundled model: eSpeak NG says sentences of the sample corpus that no clip of either holds.

    Raises:
        UserError: The bundled model does not speak the language, or eSpeak NG cannot be used.
    """
    code = get_language(language).code
    voices = [voice for voice in VOICES if voice.language == code]
    if not voices:
        known = ", ".join(dict.fromkeys(voice.language for voice in VOICES))
        raise UserError(f"--language must be one that base speaks: {known}. Received: {language}.")
    clips = [
        Clip(f"{code}_{number:02d}", text, voices[number % len(voices)])
        for number, text in enumerate(unheard_sentences(code))
    ]
    try:
        speak_clips(clips, folder)
    except RuntimeError as error:
        raise UserError(f"Recordings to compare base with cannot be made: {error} Give --data FOLDER.") from error
    return folder


def trained_ids(run: Path, utterances: Sequence[Utterance], folder: Path) -> set[str]:
    """Ids of the clips that a run was trained on; of a data set that it does not know, or of no run, none."""
    try:
        data = read_config(run).data
        with open(run / CLIP_LIST, encoding="utf-8", newline="") as file:
            rows = [(row["id"], row["verdict"] != "rejected") for row in csv.DictReader(file)]
    except (OSError, CheckpointError, KeyError):
        return set()
    # Its writer puts an apostrophe before what a spreadsheet would compute.
    accepted = {re.sub("^'(?=[=+@-])", "", name): is_accepted for name, is_accepted in rows}
    known = {one.id for one in utterances} & accepted.keys()
    is_same = Path(data.train_data).exists() and Path(data.train_data).resolve() == folder.resolve()
    if not known or not (is_same or len(known) >= KNOWN_SHARE * min(len(utterances), len(accepted))):
        return set()
    validation = {one.id for one in utterances if one.validation} & accepted.keys()
    if validation and validation != accepted.keys():
        return known - validation
    clips = [Utterance(name, Path(), "", "", "") for name, is_accepted in accepted.items() if is_accepted]
    return known & {one.id for one in (clips if data.val_data else split_by_hash(clips, data.validation_share)[0])}


def _longest(utterances, trained, keys):
    """The two longest recordings of each speaker and language, of those trained on if there are any."""

    def seconds(one):
        with suppress(soundfile.LibsndfileError):
            found = soundfile.info(str(one.wav_path)).duration
            return found if found <= MOST_SECONDS else 0.0
        return 0.0

    found = {}
    for key in keys:
        same = [one for one in utterances if (one.speaker, one.language) == key]
        found[key] = sorted([one for one in same if one.id in trained] or same, key=seconds, reverse=True)[:2]
    return found


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

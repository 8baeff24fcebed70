"""`myxtts convert-voices`: a set of few words in which every voice says every word, from one in which some do not."""

import argparse
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from myxtts.cli.errors import UserError, exits_with_sentence

LEAST_RECORDINGS = 10
"""Of a word, for the recogniser to learn it."""
TESTED_SHARE = 10
"""One recording in so many is kept from the recogniser, to see how well it hears."""
MOST_SOURCES = 1000
"""Recordings of a word that are tried for one voice."""
SOURCES_AT_A_TIME = 20
"""Recordings whose conversions are recognised in one batch."""


def build_parser():
    """The command line of `myxtts convert-voices`."""
    parser = argparse.ArgumentParser(
        prog="myxtts convert-voices", description="For data sets of few words, such as digits or commands: makes, from "
        "other voices' recordings, recordings of the words that a voice never says, and writes them with the recordings "
        "themselves as a new data set to train on. A recogniser that learns words and voices from the set chooses which are "
        "fit for use.")
    parser.add_argument("--train-data", metavar="DIR", required=True, help="data set with several voices")
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="folder to write; it must not exist")
    parser.add_argument("--clips", type=int, default=40, help="recordings to make per voice and word (default: 40)")
    parser.add_argument("--language", default="en", help="language of recordings whose set names none (default: en)")
    parser.add_argument("--max-seconds", type=float, default=2.0, help="longer clips are left out (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the recogniser and of what is converted (default: 0)")
    return parser


class Recording(NamedTuple):
    """One recording of the set."""

    utterance: object
    word: tuple
    """Language and text, which is what makes two recordings say the same."""
    mel: object
    """Log-mel, `(F, 80)`."""


class Made(NamedTuple):
    """A conversion that the recogniser took for the word and the voice it should be."""

    voice: str
    recording: Recording
    """What it was made of."""
    way: str
    probability: float
    """The lesser of the word's and the voice's."""
    mel: object


@exits_with_sentence
def main(argv=None):
    """Writes the new data set and says what it was given."""
    arguments = build_parser().parse_args(argv)
    if arguments.output.exists():
        raise UserError(f"--output must be a new folder. {arguments.output} exists; name another, or remove it.")
    if arguments.output.resolve().is_relative_to(Path(arguments.train_data).resolve()):
        raise UserError(f"--output must not lie in the data set, which is never written to. {arguments.output} does.")
    if arguments.clips < 1:
        raise UserError(f"--clips must be at least 1. Received: {arguments.clips}.")
    from myxtts.data.doctor import write_report
    from myxtts.utils.commons import setup_logging

    setup_logging()
    inspection = _read(arguments)
    utterances = inspection.accepted
    lacking = missing_words(utterances)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)  # where it cannot be made, not after minutes of work
    made = convert_missing(_with_mels(utterances), lacking, arguments.clips, arguments.seed)
    # Whole or not at all: what is half written goes when the block ends.
    with tempfile.TemporaryDirectory(dir=arguments.output.parent, prefix=arguments.output.name) as folder:
        write_corpus(Path(folder, "corpus"), utterances, made)
        write_report(inspection, Path(folder, "corpus", "source_clips.csv"))
        Path(folder, "corpus").rename(arguments.output)
    print(f"Wrote {arguments.output}: {len(utterances)} recordings of {arguments.train_data} and {len(made)} made of them; "
          f"what was left out, and why, stands in its source_clips.csv.\n"
          f"Train on it:\n  python train_main.py --train-data {arguments.output}")
    return 0


def _read(arguments):
    from myxtts.cli.progress import clip_progress
    from myxtts.data.corpora import load_corpus
    from myxtts.data.doctor import ClipLimits, inspect_corpus, summarise

    if arguments.max_seconds <= ClipLimits.min_seconds:
        raise UserError(f"--max-seconds must be more than {ClipLimits.min_seconds}. Received: {arguments.max_seconds}.")
    limits = ClipLimits(max_seconds=arguments.max_seconds)
    with clip_progress("checking recordings") as progress:
        inspection = inspect_corpus(load_corpus(arguments.train_data, arguments.language), limits, progress=progress)
    print(summarise(inspection))
    return inspection


def word_of(utterance):
    """What makes two recordings say the same: language and text, whatever its case."""
    return utterance.language, utterance.text.strip().casefold()


def missing_words(utterances):
    """`(voice, word)` for every word that is recorded often enough and that a voice of its language never says.

    Raises:
        UserError: There is none, and why.
    """
    recorded = Counter(map(word_of, utterances))
    voices = defaultdict(set)
    for utterance in utterances:
        voices[utterance.language].add(utterance.speaker)
    words = [word for word, number in recorded.items() if number >= LEAST_RECORDINGS]
    if not words or max(map(len, voices.values())) < 2:
        raise UserError(f"convert-voices needs a set of few words in several voices, each word recorded {LEAST_RECORDINGS} "
                        f"times or more. This one has {len(words)} of {len(recorded)} texts recorded so often, and "
                        f"{max(map(len, voices.values()), default=0)} voice(s) in a language.")
    said = {(utterance.speaker, word_of(utterance)) for utterance in utterances}
    lacking = sorted((voice, word) for word in words for voice in voices[word[0]] if (voice, word) not in said)
    if not lacking:
        raise UserError(f"Nothing is missing: all voices say all {len(words)} words. Train on the set as it is.")
    return lacking


def _with_mels(utterances):
    """Recordings of every text that is said often enough to be learnt, with their log-mels."""
    import numpy as np

    from myxtts.audio.files import load_samples
    from myxtts.audio.mel import DVAE_MEL, MelSpectrogram

    mel = MelSpectrogram(DVAE_MEL)
    recorded = Counter(map(word_of, utterances))
    recordings = []
    for utterance in utterances:
        if recorded[word_of(utterance)] >= LEAST_RECORDINGS:
            samples = load_samples(utterance.wav_path, DVAE_MEL.sample_rate)
            samples = np.pad(samples, (0, max(0, DVAE_MEL.n_fft - len(samples))))
            recordings.append(Recording(utterance, word_of(utterance), np.asarray(mel(samples[None]))[0]))
    return recordings


def convert_missing(recordings, lacking, clips, seed):
    """Conversions of what `lacking` names: of each the `clips` that the recogniser is surest of.

    Args:
        recordings: `Recording`s.
        lacking: `(voice, word)` pairs.
        clips: Most conversions per pair, each of another recording.
        seed: Of recogniser and order.

    Returns:
        List of `Made`.
    """
    import numpy as np

    from myxtts.data.voice_conversion import VoiceConverter
    from myxtts.training.word_recognizer import WordRecognizer

    by_voice, by_word = defaultdict(list), defaultdict(list)
    for recording in recordings:
        by_voice[recording.utterance.speaker].append(recording.mel)
        by_word[recording.word].append(recording)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(recordings))
    tested, learnt = ([recordings[i] for i in part] for part in np.split(order, [len(recordings) // TESTED_SHARE]))

    def columns(rows):
        return [row.mel for row in rows], [row.word for row in rows], [row.utterance.speaker for row in rows]

    recognizer = WordRecognizer(*columns(learnt), seed)
    print(f"The recogniser is right in word and voice on {recognizer.share_right(*columns(tested)):.1%} of {len(tested)} "
          "recordings that it did not learn from.", flush=True)
    converter, made = VoiceConverter(by_voice), []
    for voice, word in lacking:
        sources = [by_word[word][i] for i in rng.permutation(len(by_word[word]))[:MOST_SOURCES]]
        parts = [sources[start:start + SOURCES_AT_A_TIME] for start in range(0, len(sources), SOURCES_AT_A_TIME)]
        fit = sorted((one for part in parts for one in _fit_for_use(part, voice, converter, recognizer)),
                     key=lambda one: -one.probability)
        made += fit[:clips]
        ways = ", ".join(f"{number} {way}" for way, number in Counter(one.way for one in fit[:clips]).items())
        print(f"{voice}, {word[1]}: of {len(sources)} recordings {len(fit)} can be converted, {len(fit[:clips])} taken"
              + (f" ({ways}; least sure {fit[:clips][-1].probability:.2f})" if fit else ""), flush=True)
    return made


def _fit_for_use(sources, voice, converter, recognizer):
    """Of each recording the conversion that is surest to be taken for the right word and voice, if any is."""
    candidates = [Made(voice, source, way, 0.0, mel) for source in sources
                  for way, mel in converter.convert(source.mel, source.utterance.speaker, voice).items()]
    best = {}
    for candidate, words, voices in zip(candidates, *recognizer([candidate.mel for candidate in candidates])):
        word = candidate.recording.word
        if recognizer.words[words.argmax()] != word or recognizer.voices[voices.argmax()] != voice:
            continue
        sure = min(words.max(), voices.max())
        if sure > best.get(candidate.recording.utterance.id, candidate).probability:
            best[candidate.recording.utterance.id] = candidate._replace(probability=float(sure))
    return list(best.values())


def write_corpus(folder, utterances, made):
    """A data set of copies of recordings and of conversions, with a `metadata.csv` that has a header."""
    from tqdm import tqdm

    from myxtts.audio.files import write_wav
    from myxtts.audio.griffin_lim import log_mel_to_wav
    from myxtts.audio.mel import DVAE_MEL

    (folder / "wavs").mkdir(parents=True)
    lines = ["audio_file|text|speaker_name|language"]
    for number, utterance in enumerate(utterances):
        name = f"{number:06}{utterance.wav_path.suffix}"
        shutil.copyfile(utterance.wav_path, folder / "wavs" / name)
        lines.append(_line(f"wavs/{name}", utterance.text, utterance.speaker, utterance.language))
    for number, one in enumerate(tqdm(made, "writing", unit="clip", disable=not sys.stdout.isatty(), leave=False)):
        name, source = f"made_{number:06}.wav", one.recording.utterance
        write_wav(folder / "wavs" / name, log_mel_to_wav(one.mel), DVAE_MEL.sample_rate)
        lines.append(_line(f"wavs/{name}", source.text, one.voice, source.language))
    Path(folder, "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(*fields):
    return "|".join(" ".join(field.replace("|", " ").split()) for field in fields)

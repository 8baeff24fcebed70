"""Test sentences of an evaluation, the same for all models, and the sources that speak them."""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import soundfile

from myxtts.apps.evaluation.command import Subject
from myxtts.audio.files import AudioError, load_samples, read_audio
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.cli.errors import read_input
from myxtts.config.checks import UserError, counted, require
from myxtts.config.data import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.corpora import Utterance, load_corpus
from myxtts.data.dataset import is_listed, listed_clips, trained_on
from myxtts.data.doctor import id_hash
from myxtts.data.sample_corpus import VOICES, Clip, speak_clips, unheard_sentences
from myxtts.hearing.measuring import Measured, Sentence, Spoken, speak_all, spread, voice_of
from myxtts.inference.code_engine import mark_text
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.run_folder import read_config
from myxtts.storage.speakers import language_of
from myxtts.text.languages import get_language

logger = logging.getLogger(__name__)

MOST_SECONDS = 30.0
"""Maximum length of a test recording or reference recording of a data set; longer recordings are left out."""
_is_same = lambda path, folder: path is not None and Path(path).resolve() == Path(folder).resolve()


def choose_sentences(
    judged: Sequence[Subject],
    data: str | None,
    texts: str | None,
    voices: Sequence[str],
    language: str | None,
    count: int,
    folder: Path | None = None,
) -> list[Sentence]:
    """Chooses the test sentences, which are the same for all models and folders of audio files in `judged`.

    Args:
        data: Data set with recordings. The default is the data set of the first run whose data still exist.
        texts: Text file with one sentence per line, used instead of the data set.
        voices: Reference recordings, assigned to the sentences in turn.
        language: Language of `texts` and of clips without a language label. None means the first `data.language` that
            a run in `judged` sets. If no run sets it, the language of clips is detected from their texts, and `texts`
            are read in the language that all training speakers of a run share or, if no run has one, in English.
        count: Maximum number of sentences.
        folder: Empty folder for recordings by eSpeak NG, which are the default test data of the bundled model.

    Raises `UserError` if there are no sentences, or no voices."""
    models = [one.folder for one in judged if one.is_model]
    used = [read_config(folder).data for folder in models]
    language = language or next((one.language for one in used if one.language), None)
    known = (path for one in used for path in (one.val_data, one.train_data) if path and Path(path).exists())
    data = data or next(known, None)
    if texts:
        if not voices and data:
            by_speaker = {one.speaker: one.voice for one in sentences_of_data(data, models, language, count)[::-1]}
            voices = [by_speaker[name] for name in sorted(by_speaker)]
        if models and not voices:
            raise UserError("--texts needs voices. Give --voices FILE… or --data FOLDER.")
        content = read_input("--texts", texts, max_bytes=4 * 2**20)
        lines = [line for one in re.split("\r\n|\r|\n", content) if not re.match("#+( |$)|$", line := one.strip())]
        if not lines:
            raise UserError(f"--texts {texts} contains no sentences.")
        language = language or next(filter(None, map(language_of, models)), "en")
        code, chosen = get_language(language).code, enumerate(spread(lines, count), 1)
        found = [Sentence(f"text_{number:03d}", text, code) for number, text in chosen]
        return _in_voices(found, voices) if voices else found
    if not data and folder and any(map(is_base, models)):
        data = _espeak_data(folder, language or "en")
    if data:
        found = sentences_of_data(data, models, language, count)
        return _in_voices(found, voices) if voices else found
    if models:
        name = model_name(models[0])
        raise UserError(f"The training data of {name} is not on this machine. Give --data, or --texts and --voices.")
    held = sorted(load_corpus(judged[0].folder, language).utterances, key=lambda one: (one.speaker, one.id))
    return [Sentence(one.id, one.text, one.language, one.speaker) for one in spread(held, count)]


def sentences_of_data(folder: str | Path, runs: Sequence[Path], language: str, count: int) -> list[Sentence]:
    """Returns sentences made from up to `count` held-out clips of a data set, spread evenly over speakers and ids.

    If `folder` is the data set of one of `runs`, that run's `data.format` and `data.audio_roots` are used. Clips
    without a language label get `language`. Clips that a run rejected are left out. The voice of a sentence is the
    longest other clip of the same speaker and language, preferably a training clip. If there is no such clip, the voice
    is the sentence's own clip. Raises `UserError` if there is no readable held-out clip."""
    is_own = lambda data: any(_is_same(path, folder) for path in (data.train_data, data.val_data))
    own = next(filter(is_own, (read_config(run).data for run in runs)), DataConfig())
    utterances, trained, rejected = load_corpus(folder, language, own.format, own.audio_roots).utterances, set(), set()
    for run in runs:
        ids = clips_of_run(run, utterances, Path(folder))
        trained, rejected = trained | ids[0], rejected | ids[1]
    usable = [one for one in utterances if one.id not in rejected - trained]
    if left := len(utterances) - len(usable):
        logger.info("Left out %s of %s, which a run rejected (see its clips_*.csv).", counted(left, "clip"), folder)
    held = [one for one in usable if one.id not in trained]
    if not (held := [one for one in held if one.validation] or held):
        raise UserError(f"Every clip of {folder} was used for training or rejected. Give other --data, or --texts.")
    chosen, found = spread(sorted(held, key=lambda one: (one.speaker, one.id)), count), []
    longest = {}  # the two longest readable clips of each speaker and language, training clips first
    for key in {(one.speaker, one.language) for one in chosen}:
        same = [one for one in usable if (one.speaker, one.language) == key]
        same.sort(key=lambda one: (one.id in trained, _usable_seconds(one)), reverse=True)
        longest[key] = list(islice(filter(_is_readable, same), 2))
    trained_speakers = {one.speaker for one in usable if one.id in trained}
    for one in filter(_is_readable, chosen):
        voice = next((other for other in longest[one.speaker, one.language] if other.id != one.id), one).wav_path
        seen = one.speaker in trained_speakers if trained else None
        found.append(Sentence(one.id, one.text, one.language, one.speaker, str(voice), str(one.wav_path), seen))
    if not found:
        raise UserError(f"No held-out clip of {folder} can be read.")
    return found


def _espeak_data(folder, language):
    """Creates test data for the bundled model in `folder`: sentences not used in its training, spoken by eSpeak NG."""
    code = get_language(language).code
    voices = [voice for voice in VOICES if voice.language == code]
    known = ", ".join(dict.fromkeys(voice.language for voice in VOICES))
    require(bool(voices), "--language", f"a language of base: {known}", language)
    texts = enumerate(unheard_sentences(code))
    clips = [Clip(f"{code}_{number:02d}", text, voices[number % len(voices)]) for number, text in texts]
    try:
        speak_clips(clips, folder)
    except RuntimeError as error:
        raise UserError(f"Reference recordings for base cannot be made: {error} Give --data FOLDER.") from error
    return folder


def clips_of_run(run: Path, utterances: Sequence[Utterance], folder: Path) -> tuple[set[str], set[str]]:
    """Returns the ids of the `utterances` (clips in `folder`) that a run trained on, and of those that it rejected."""
    config, ids, rows = read_config(run), {one.id for one in utterances}, {}
    is_trained = _is_same(config.data.train_data, folder)
    name = "validation" if _is_same(config.data.val_data, folder) and not is_trained else "train"
    with suppress(OSError):
        rows = listed_clips(run, name)
    known = [one for one in utterances if one.id in rows]
    seconds = dict.fromkeys(ids, 0.0) | {one.id: _usable_seconds(one) for one in spread(known, 20)}
    if name == "train" and not (is_trained or is_listed(seconds, rows, 0.1)):
        return set(), set()
    hashes = trained_on(run, config, seconds) if name == "train" else ()
    rejected = {one.id for one in known if rows[one.id].get("verdict") == "rejected"}
    return {one for one in ids if id_hash(one) in hashes}, rejected


def _is_readable(clip):
    """Returns whether a clip can be read and lasts at most `MOST_SECONDS`; logs a warning if not."""
    try:
        return bool(read_audio(clip.wav_path, max_seconds=MOST_SECONDS))
    except AudioError as error:
        logger.warning("%s It is left out.", error)
        return False


def _usable_seconds(clip):
    """Returns the duration of a clip in seconds; 0 if the clip is unreadable or longer than `MOST_SECONDS`."""
    with suppress(soundfile.LibsndfileError):
        if (seconds := soundfile.info(bytes(Path(clip.wav_path))).duration) <= MOST_SECONDS:
            return seconds
    return 0.0


def _in_voices(sentences, voices):
    """Returns the sentences with `voices` assigned in turn. `recording` is set to None, as it is in another voice."""
    stems = [Path(voice).stem for voice in voices]
    names = stems if len({*stems}) == len({*voices}) else map(str, voices)  # files in two folders can have one name
    pairs = zip(sentences, cycle(zip(names, voices)))
    return [replace(one, speaker=name, voice=str(path), recording=None, seen=None) for one, (name, path) in pairs]


@dataclass
class Row:
    """A row of the report: a source of speech, such as a model or recordings, and its measured sentences."""

    name: str
    kind: str
    """`recordings`, `resynthesis`, `model` or `files`."""
    speak: Callable[[], Iterator[Spoken]]
    """Function that yields the audio of the sentences. Sentences that the source lacks or cannot speak are left out."""
    measured: list[Measured] = field(default_factory=list)

    def parts(self, metric: str, ids: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Returns `{sentence id: (numerator, denominator)}` of a metric, summed over seeds, for `ids` (None: all)."""
        sums: dict[str, np.ndarray] = {}
        for one in self.measured:
            key = one.spoken.sentence.id
            if metric in one.parts and (ids is None or key in ids):
                sums[key] = sums.get(key, 0.0) + np.array(one.parts[metric], np.float64)
        return sums

    @property
    def first_times(self) -> dict[str, Measured]:
        """The first seed's measurement of each sentence, by sentence id. The report plays only the first seed."""
        return {one.spoken.sentence.id: one for one in reversed(self.measured)}

    def worst(self, count: int) -> list[Measured]:
        """Returns a model's `count` worst sentences: low confidence first, then high CER or MCD. [] for other rows."""
        error = lambda one: np.divide(*one.parts.get("cer", one.parts.get("mcd", (0.0, 1.0))))
        badness = lambda one: (bool(one.spoken.doubts), error(one))
        return sorted(self.measured, key=badness, reverse=True)[:count] if self.kind == "model" else []


def rows_to_speak(
    judged: Sequence[Subject], sentences: Sequence[Sentence], seeds: Sequence[int], decoder: str | None = None
) -> list[Row]:
    """Returns the rows of the report: the recordings, if sentences have any; then, for each model in `judged`, its
    resynthesis of the recordings and its speech, and for each folder of audio files in `judged`, these files."""
    recorded = [one for one in sentences if one.recording]
    read = lambda: (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in recorded)
    found = [Row("recordings", "recordings", read)] if recorded else []
    for one in judged:
        if not one.is_model:
            found.append(_files(one.name, one.folder, sentences))
            continue
        synthesizer = cache(partial(Synthesizer.load, one.folder, one.which, decoder=decoder))  # loads once
        if recorded:
            found.append(Row(f"{one.name}, resynthesis", "resynthesis", partial(_resyntheses, synthesizer, recorded)))
        found.append(Row(one.name, "model", partial(_speech, synthesizer, sentences, seeds)))
    return found


def _speech(synthesizer, sentences, seeds):
    try:
        yield from speak_all(synthesizer(), sentences, seeds)
    finally:
        synthesizer.cache_clear()  # frees the model


def _resyntheses(synthesizer, recorded):
    """Yields the resynthesis of each recording that is not too long for the model."""
    model = synthesizer()
    if "dvae" not in model.model.parts:  # converted models can lack it
        return
    for one in recorded:
        samples = load_samples(one.recording)
        try:
            text = model.text_front.ids(one.text, one.language)
        except SpeechError:
            continue
        if -(-len(samples) // CODE_STRIDE_SAMPLES) <= model.config.model.max_codes:
            audio, codes = resynthesize(model, samples, voice_of(model, one), text)
            yield Spoken(one, 0, audio, model.sample_rate, codes)


def resynthesize(
    synthesizer: Synthesizer, samples: np.ndarray, voice: Voice, text_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes a recording to codes and decodes the codes. The quality is an upper bound for speech from sampled codes.

    `samples` `(S,)` is the recording at 22 050 Hz. A waveform decoder also needs GPT latents, which depend on the
    text tokens `text_ids` and on `voice`, encoded from another recording of the speaker. Returns audio `(S',)` at the
    model's sample rate, and the codes of the recording, `(C,)`."""
    model, config = synthesizer.model, synthesizer.config.model
    mel = np.asarray(MelSpectrogram(DVAE_MEL)(samples[None]))
    codes = np.asarray(model.dvae.encode(model.normalize_mel(mel)))[0].astype(np.int32)
    ended = np.append(codes, config.stop_audio_token).astype(np.int32)[None]
    text = np.array([mark_text(list(text_ids), config)], np.int32)
    latents = np.asarray(model.gpt.codes_to_latents(voice.latents, text, ended))[0]
    return synthesizer.to_waveform.begin(voice)(codes.tolist(), latents, True), codes


def _files(name: str, folder: Path, sentences: Sequence[Sentence]) -> Row:
    """Creates the `Row` of a folder of audio files. Finds the file of a sentence by its id, otherwise by its text."""
    corpus = load_corpus(folder)
    by_id = {one.id: one.wav_path for one in corpus.utterances}
    by_text = {" ".join(one.text.split()): one.wav_path for one in reversed(corpus.utterances)}
    paths = [by_id.get(one.id) or by_text.get(" ".join(one.text.split())) for one in sentences]
    if not any(paths):
        rule = f"{folder} has no audio file of the sentences to compare, by name or by text"
        seen = [f"Its first file is {one.id}: {one.text[:60]!r}." for one in corpus.utterances]
        raise UserError(f"{rule}. {[*seen, *(one.detail for one in corpus.rejections)][0]}")

    def speak():
        for one, path in zip(sentences, paths):
            try:
                if path is not None:  # silence counts as speech
                    yield Spoken(one, 0, load_samples(path), MODEL_SAMPLE_RATE)
            except AudioError as error:
                logger.warning("%s It is left out.", error)

    return Row(name, "files", speak)

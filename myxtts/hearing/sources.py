"""What speaks: recordings, a model's copy of them, a model, or files that something else has spoken."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.audio.files import AudioError, load_samples, read_audio
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.corpora import load_corpus
from myxtts.hearing.sentences import Sentence
from myxtts.inference.code_engine import mark_text
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)

TOGETHER = 16
"""Sentences that a model draws together."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """One sentence as one source says it, once."""

    sentence: Sentence
    seed: int
    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    codes: np.ndarray | None = None
    """`(C,)` int32; None where there are none."""
    stopped: bool | None = None
    """Whether it ended by itself; None for what was not drawn."""
    doubts: tuple[str, ...] | None = None
    """What the self-check holds against it; None for what was not drawn."""


@dataclass(frozen=True)
class Source:
    """A row of what is compared."""

    name: str
    kind: str
    """`recordings`, `copy`, `model` or `files`."""
    speak: Callable[[], Iterator[Spoken]]
    """Says all sentences, those it cannot say left out."""


def recordings(sentences: Sequence[Sentence]) -> Source:
    """The recordings of the sentences themselves."""

    def speak():
        for one in sentences:
            if one.recording:
                yield Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE)

    return Source("recordings", "recordings", speak)


def sources_of_model(
    name: str, load: Callable[[], Synthesizer], sentences: Sequence[Sentence], seeds: Sequence[int]
) -> list[Source]:
    """A model's copy-synthesis, where there are recordings, and its speech. It is loaded for both together, once."""
    loaded = []

    def synthesizer():
        if not loaded:
            loaded.append(load())
        return loaded[0]

    def speak():
        yield from _model_speech(synthesizer(), sentences, seeds)
        loaded.clear()

    said = Source(name, "model", speak)
    if not any(one.recording for one in sentences):
        return [said]
    return [Source(f"{name}, copy", "copy", lambda: _copies(synthesizer(), sentences)), said]


def _model_speech(synthesizer, sentences, seeds):
    able = []
    for one in sentences:
        try:
            synthesizer.text_front.pieces(one.text, one.language)
            able.append(one)
        except SpeechError as error:
            logger.warning("%s It is left out.", error)
    for start in range(0, len(able), TOGETHER):
        some = able[start : start + TOGETHER]
        voices = [_voice(synthesizer, one) for one in some]
        for seed in seeds:
            texts, languages = [one.text for one in some], [one.language for one in some]
            for one, speech in zip(some, synthesizer.batch(texts, voices, languages, seed=seed), strict=True):
                why = tuple(dict.fromkeys(doubt for doubts in speech.doubts.values() for doubt in doubts))
                yield Spoken(one, seed, speech.samples, speech.sample_rate, speech.codes, speech.stopped, why)


def _voice(synthesizer, sentence):
    if not sentence.voice:
        raise UserError(f"{sentence.id} names no voice to be said in. Give --voices FILE… or --data.")
    # As an array: short references are told of once, where they are chosen.
    return synthesizer.as_voice(read_audio(sentence.voice, MODEL_SAMPLE_RATE).samples)


def _copies(synthesizer, sentences):
    if "dvae" not in synthesizer.model.parts:
        return  # a converted model may come without
    for one in sentences:
        if not one.recording:
            continue
        samples = load_samples(one.recording)
        try:
            text = synthesizer.text_front.ids(one.text, one.language)
        except SpeechError:
            continue
        if -(-len(samples) // CODE_STRIDE_SAMPLES) > synthesizer.config.model.max_codes:
            continue
        sound, codes = copy_speech(synthesizer, samples, _voice(synthesizer, one), text)
        yield Spoken(one, 0, sound, synthesizer.sample_rate, codes)


def copy_speech(
    synthesizer: Synthesizer, samples: np.ndarray, voice: Voice, text_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """A recording `(S,)` at 22 050 Hz as codes, and the sound `(S',)` that the model makes of the same codes.

    The codes are the recording's own, so that this is the best that the GPT could say.

    Args:
        voice: Of another recording of the speaker.
        text_ids: What is said, for the latents that a waveform decoder needs.
    """
    model, config = synthesizer.model, synthesizer.config.model
    mel = np.asarray(MelSpectrogram(DVAE_MEL)(samples[None]))
    codes = np.asarray(model.dvae.encode(model.normalize_mel(mel)))[0].astype(np.int32)
    ended = np.append(codes, config.stop_audio_token).astype(np.int32)[None]
    text = np.array([mark_text(list(text_ids), config)], np.int32)
    latents = np.asarray(model.gpt.codes_to_latents(voice.latents, text, ended, config.start_audio_token))[0]
    return synthesizer.to_waveform.begin(voice).more(codes.tolist(), latents, finished=True), codes


def files(name: str, folder: str | Path, sentences: Sequence[Sentence]) -> Source:
    """Files with a list of their texts; each says the sentence with its name or, where none has it, with its text.

    Raises:
        UserError: The folder says none of the sentences.
    """
    utterances = load_corpus(folder).utterances
    by_id = {one.id: one.wav_path for one in utterances}
    by_text = {" ".join(one.text.split()): one.wav_path for one in reversed(utterances)}
    paths = [by_id.get(one.id) or by_text.get(" ".join(one.text.split())) for one in sentences]
    if not any(paths):
        rule = f"{folder} must say the sentences that the others say, by the names or the texts in its list"
        raise UserError(f"{rule}; it says none of them. Its first is {utterances[0].id}: {utterances[0].text[:60]!r}.")

    def speak():
        for one, path in zip(sentences, paths):
            if path is None:
                continue
            try:
                samples = load_samples(path)  # silence too is something that was said
            except AudioError as error:
                logger.warning("%s It is left out.", error)
                continue
            yield Spoken(one, 0, samples, MODEL_SAMPLE_RATE)

    return Source(name, "files", speak)

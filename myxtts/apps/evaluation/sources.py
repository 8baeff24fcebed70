"""Sources of speech: recordings, a model's resynthesis of them, a model, or files that another program has spoken."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from myxtts.audio.files import AudioError, load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.corpora import load_corpus
from myxtts.hearing.spoken import Sentence, Spoken, speak_all, voice_of
from myxtts.inference.code_engine import mark_text
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A row of the comparison."""

    name: str
    kind: str
    """`recordings`, `copy`, `model` or `files`."""
    speak: Callable[[], Iterator[Spoken]]
    """Says all sentences but those that it cannot say."""


def recordings(sentences: Sequence[Sentence]) -> Source:
    """The recordings of the sentences themselves."""
    recorded = [one for one in sentences if one.recording]
    speak = lambda: (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in recorded)
    return Source("recordings", "recordings", speak)


def model_sources(
    name: str, load: Callable[[], Synthesizer], sentences: Sequence[Sentence], seeds: Sequence[int]
) -> list[Source]:
    """A model's resynthesis of the recordings, if there are any, and then its speech; it is loaded once for both."""
    synthesizer = cache(load)

    def speech():
        yield from speak_all(synthesizer(), sentences, seeds)
        synthesizer.cache_clear()  # the model is no longer needed

    sources = [Source(name, "model", speech)]
    if any(one.recording for one in sentences):
        sources.insert(0, Source(f"{name}, copy", "copy", lambda: _copies(synthesizer(), sentences)))
    return sources


def _copies(synthesizer, sentences):
    """Resyntheses of the recordings that fit the model."""
    if "dvae" not in synthesizer.model.parts:  # a converted model may come without
        return
    for one in (one for one in sentences if one.recording):
        samples = load_samples(one.recording)
        try:
            text = synthesizer.text_front.ids(one.text, one.language)
        except SpeechError:
            continue
        if -(-len(samples) // CODE_STRIDE_SAMPLES) <= synthesizer.config.model.max_codes:
            sound, codes = copy_speech(synthesizer, samples, voice_of(synthesizer, one), text)
            yield Spoken(one, 0, sound, synthesizer.sample_rate, codes)


def copy_speech(
    synthesizer: Synthesizer, samples: np.ndarray, voice: Voice, text_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Resynthesis `(S',)` of a recording `(S,)` at 22 050 Hz from its own codes, and those.

    It is the best that the GPT could say.

    Args:
        voice: Of another recording of the speaker.
        text_ids: The text, for the latents that a waveform decoder needs.
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
            try:
                if path is not None:  # silence too is something that was said
                    yield Spoken(one, 0, load_samples(path), MODEL_SAMPLE_RATE)
            except AudioError as error:
                logger.warning("%s It is left out.", error)

    return Source(name, "files", speak)

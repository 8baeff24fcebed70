"""Sources of speech: recordings, a model's resynthesis of them, a model, or files spoken by another program."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from myxtts.apps.evaluation.subjects import Subject
from myxtts.audio.files import AudioError, load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.corpora import load_corpus
from myxtts.hearing.measuring import Sentence, Spoken, speak_all, voice_of
from myxtts.inference.code_engine import mark_text
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A source of speech to compare: recordings, their resynthesis, a model or a folder of audio files."""

    name: str
    kind: str
    """`recordings`, `copy` (resynthesis), `model` or `files`."""
    speak: Callable[[], Iterator[Spoken]]
    """Yields the speech of all sentences that it can say."""


def rows_to_speak(
    judged: Sequence[Subject], sentences: Sequence[Sentence], seeds: Sequence[int], decoder: str | None = None
) -> list[Source]:
    """Returns the recordings, if there are any, then each subject; a model comes after its resynthesis."""
    recorded = [one for one in sentences if one.recording]
    read = lambda: (Spoken(one, 0, load_samples(one.recording), MODEL_SAMPLE_RATE) for one in recorded)
    found = [Source("recordings", "recordings", read)] if recorded else []
    for one in judged:
        if not one.is_model:
            found.append(_files(one.name, one.folder, sentences))
            continue
        synthesizer = cache(partial(Synthesizer.load, one.folder, one.which, decoder=decoder))  # once for both rows
        if recorded:
            found.append(Source(f"{one.name}, copy", "copy", partial(_copies, synthesizer, recorded)))
        found.append(Source(one.name, "model", partial(_speech, synthesizer, sentences, seeds)))
    return found


def _speech(synthesizer, sentences, seeds):
    yield from speak_all(synthesizer(), sentences, seeds)
    synthesizer.cache_clear()  # frees the model


def _copies(synthesizer, recorded):
    """Yields resyntheses of the recordings that fit the model."""
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
            audio, codes = copy_speech(model, samples, voice_of(model, one), text)
            yield Spoken(one, 0, audio, model.sample_rate, codes)


def copy_speech(
    synthesizer: Synthesizer, samples: np.ndarray, voice: Voice, text_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Resynthesizes a recording from its own codes, the upper limit of the GPT's speech.

    Args:
        samples: `(S,)` at 22 050 Hz.
        voice: From another recording of the speaker.
        text_ids: Text tokens, for the latents of a waveform decoder.

    Returns:
        Audio `(S',)` and codes `(C,)`.
    """
    model, config = synthesizer.model, synthesizer.config.model
    mel = np.asarray(MelSpectrogram(DVAE_MEL)(samples[None]))
    codes = np.asarray(model.dvae.encode(model.normalize_mel(mel)))[0].astype(np.int32)
    ended = np.append(codes, config.stop_audio_token).astype(np.int32)[None]
    text = np.array([mark_text(list(text_ids), config)], np.int32)
    latents = np.asarray(model.gpt.codes_to_latents(voice.latents, text, ended, config.start_audio_token))[0]
    return synthesizer.to_waveform.begin(voice).more(codes.tolist(), latents, finished=True), codes


def _files(name: str, folder: Path, sentences: Sequence[Sentence]) -> Source:
    """Returns the source of a folder of spoken files, matched to the sentences by name, else by text."""
    utterances = load_corpus(folder).utterances
    by_id = {one.id: one.wav_path for one in utterances}
    by_text = {" ".join(one.text.split()): one.wav_path for one in reversed(utterances)}
    paths = [by_id.get(one.id) or by_text.get(" ".join(one.text.split())) for one in sentences]
    if not any(paths):
        rule = f"{folder} must have files of the sentences to compare, by name or text; it says none of them"
        raise UserError(f"{rule}. Its first is {utterances[0].id}: {utterances[0].text[:60]!r}.")

    def speak():
        for one, path in zip(sentences, paths):
            try:
                if path is not None:  # silence counts as speech
                    yield Spoken(one, 0, load_samples(path), MODEL_SAMPLE_RATE)
            except AudioError as error:
                logger.warning("%s It is left out.", error)

    return Source(name, "files", speak)

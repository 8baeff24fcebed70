"""Sentences of an evaluation, and their synthesis."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.audio.files import read_audio
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.synthesizer import SpeechError, Synthesizer
from myxtts.inference.voices import Voice

logger = logging.getLogger(__name__)

BATCH_SIZE = 16
"""Sentences of a synthesis batch."""


@dataclass(frozen=True)
class Sentence:
    """A text with a voice and, if there is one, a recording."""

    id: str
    text: str
    language: str
    speaker: str = ""
    voice: str | None = None
    """Reference recording of the voice; None for existing speech."""
    recording: str | None = None
    """Recording of the text by the speaker."""
    seen: bool | None = None
    """Whether the training set has the speaker; None if unknown."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """Speech of a sentence: one synthesis, or a recording."""

    sentence: Sentence
    seed: int
    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    codes: np.ndarray | None = None
    """`(C,)` int32; None for a recording."""
    stopped: bool | None = None
    """Whether the model ended it; None if it was not sampled."""
    doubts: tuple[str, ...] | None = None
    """Findings of the self-check; None if it was not sampled."""


def spread(items: Sequence, count: int) -> list:
    """Returns at most `count` items at equal distances."""
    if len(items) <= count:
        return list(items)
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, count).round()]


def voice_of(synthesizer: Synthesizer, sentence: Sentence) -> Voice:
    """Encodes the voice of a sentence."""
    if not sentence.voice:
        raise UserError(f"{sentence.id} has no voice. Give --voices FILE… or --data.")
    # From an array, because short references were reported when they were chosen.
    return synthesizer.as_voice(read_audio(sentence.voice, MODEL_SAMPLE_RATE).samples)


def speak_all(synthesizer: Synthesizer, sentences: Sequence[Sentence], seeds: Sequence[int]) -> Iterator[Spoken]:
    """Speaks the sentences with each seed in batches; texts that the model cannot speak are skipped with a warning."""
    able = []
    for one in sentences:
        try:
            synthesizer.text_front.pieces(one.text, one.language)
            able.append(one)
        except SpeechError as error:
            logger.warning("%s It is skipped.", error)
    for start in range(0, len(able), BATCH_SIZE):
        some = able[start : start + BATCH_SIZE]
        voices = [voice_of(synthesizer, one) for one in some]
        texts, languages = [one.text for one in some], [one.language for one in some]
        for seed in seeds:
            for one, speech in zip(some, synthesizer.batch(texts, voices, languages, seed=seed), strict=True):
                doubts = tuple(dict.fromkeys(doubt for found in speech.doubts.values() for doubt in found))
                yield Spoken(one, seed, speech.samples, speech.sample_rate, speech.codes, speech.stopped, doubts)

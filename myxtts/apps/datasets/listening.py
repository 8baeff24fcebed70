"""Recognizer, speaker encoder and DNSMOS listen to the clips of a source once they are cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from myxtts.apps.datasets.checks import is_same_text, judge
from myxtts.apps.datasets.source import Cut
from myxtts.hearing.dnsmos import DNSMOS
from myxtts.hearing.recognizers import Recognizer
from myxtts.hearing.speaker_similarity import DVector, OnnxEncoder

LEAST_VOICE_CHANGE = 0.70
"""Cosine of Resemblyzer's encoder, below which the two sides of a clip are two voices."""
LEAST_OWN_VOICE = 0.80
"""The same, between a clip and all clips of its source."""
_LEAST_PARTS = 3
_TOLD_EVERY = 50
_LEAST_CLIPS_FOR_VOICE = 4


@dataclass(frozen=True)
class Listeners:
    """Tools that listen; each is optional.

    Attributes:
        recognizer: Gives the texts of sources that have none, or checks those of the others.
        finder: Recognizer that finds the sentences of a transcript in the recording.
        encoder: Finds clips with several voices, and clips in another voice than the rest of their source.
        dnsmos: Scores every clip.
        min_dnsmos: Clips below it are left out.
    """

    recognizer: Recognizer | None = None
    finder: Recognizer | None = None
    encoder: DVector | OnnxEncoder | None = None
    dnsmos: DNSMOS | None = None
    min_dnsmos: float = 0.0


def listen(
    cuts: Sequence[Cut],
    files: Sequence[Path],
    listeners: Listeners,
    language: str,
    min_snr_db: float,
    needs_text: bool,
    tell: Callable[[str], None],
) -> list[Cut]:
    """The cuts with what was heard of them: texts, where they had none, and verdicts.

    Args:
        files: Of the clips; read where a cut has no verdict yet.
        needs_text: Whether the recognizer gives the texts; else it checks them.
        tell: Called now and then with how far it is.
    """
    heard, vectors = list(cuts), {}
    for index in (index for index, cut in enumerate(cuts) if not cut.verdict):
        if index and index % _TOLD_EVERY == 0 and listeners != Listeners():
            tell(f"{index} of {len(cuts)} clips listened to")
        samples, rate = soundfile.read(files[index], dtype="float32")
        cut = cuts[index]
        if listeners.recognizer is not None:
            text = " ".join(listeners.recognizer(samples, rate, language).replace("|", " ").split())
            cut = _compare_text(cut, text, needs_text)
        if listeners.dnsmos is not None and not cut.verdict:
            score, least = listeners.dnsmos(samples, rate).overall, listeners.min_dnsmos
            verdict = f"poor sound: DNSMOS {score:.2f}; the least is {least:g}." if score < least else ""
            cut = replace(cut, facts=replace(cut.facts, dnsmos=round(score, 2)), verdict=verdict)
        if listeners.encoder is not None and not cut.verdict:
            vectors[index] = listeners.encoder.parts(samples, rate)
        heard[index] = cut
    if vectors:
        _compare_voices(heard, vectors)
    if not (needs_text and listeners.recognizer):
        return heard
    good = [cut for cut in heard if not cut.verdict]
    verdicts = iter(judge([cut.facts for cut in good], min_snr_db, [cut.text for cut in good]))
    return [cut if cut.verdict else replace(cut, verdict=next(verdicts)) for cut in heard]


def voice_change(parts: np.ndarray) -> float | None:
    """Cosine between the mean vectors before and after the place in a clip where they differ most.

    Args:
        parts: A vector of length 1 for each 1.6 s of the clip, `(N, E)`. The one that lies across the place is
            left out.

    Returns:
        None for a clip that is too short to tell.
    """
    if len(parts) < _LEAST_PARTS:
        return None
    pairs = ((parts[:k].mean(axis=0), parts[k + 1 :].mean(axis=0)) for k in range(1, len(parts) - 1))
    return min(float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-9)) for a, b in pairs)


def _compare_text(cut, text, needs_text):
    letters = sum(map(str.isalnum, text))
    if not letters:
        return replace(cut, verdict="nothing heard: the recognizer found no word in it.")
    if needs_text:
        rate = letters / cut.facts.speech_seconds
        return replace(cut, text=text, facts=replace(cut.facts, characters_per_second=round(rate, 3)))
    return cut if is_same_text(cut.text, text) else replace(cut, verdict=f"another text was heard: {text[:200]}")


def _compare_voices(cuts, vectors):
    """Sets verdicts on cuts with two voices, and on those that differ from the voice of the source."""
    means = {index: _unit(parts.mean(axis=0)) for index, parts in vectors.items()}
    usual = _unit(np.median(list(means.values()), axis=0))
    for index, parts in vectors.items():
        change, own = voice_change(parts), float(means[index] @ usual)
        facts = replace(cuts[index].facts, voice_change=None if change is None else round(change, 3))
        verdict = ""
        if change is not None and change < LEAST_VOICE_CHANGE:
            verdict = f"several voices: its parts are alike by {change:.2f} only."
        elif len(means) >= _LEAST_CLIPS_FOR_VOICE and own < LEAST_OWN_VOICE:
            verdict = f"another voice: it is alike the other clips by {own:.2f} only."
        cuts[index] = replace(cuts[index], facts=facts, verdict=verdict)


def _unit(vector):
    return vector / (np.linalg.norm(vector) + 1e-9)

"""Checks of clips by a speech recognizer, a speaker encoder and DNSMOS."""

import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile

from myxtts.apps.datasets.checks import Segment, judge
from myxtts.apps.datasets.source import Options
from myxtts.apps.datasets.texts import count_letters
from myxtts.hearing.recognizers import Recognizer, Word
from myxtts.storage.files import append_line, digest_bytes

LEAST_VOICE_CHANGE = 0.70
"""Minimum speaker similarity (Resemblyzer) of two sides of a clip with one voice."""
LEAST_OWN_VOICE = 0.80
"""Minimum speaker similarity of a clip and its recording."""
_LEAST_CLIPS_FOR_VOICE = 4
_LEAST_ALIKE = 0.75
_PROGRESS_EVERY = 50


class CachedRecognizer:
    """A recognizer with a file cache, so that a resumed run does not transcribe a clip twice.

    It has `words` if the recognizer has.

    Args:
        name: Name of the recognizer, part of the cache's keys.
    """

    def __init__(self, recognizer: Recognizer, path: Path, name: str):
        self._recognizer, self._path, self._name, self._heard = recognizer, path, name, {}
        if hasattr(recognizer, "words"):
            self.words = self._words
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue  # cut off by a kill
            self._heard[key] = value

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`."""
        return self._recall("text", self._recognizer, samples, sample_rate, language)

    def _words(self, *audio):
        hear = lambda *audio: [(one.text, float(one.start), float(one.end)) for one in self._recognizer.words(*audio)]
        return [Word(*one) for one in self._recall("words", hear, *audio)]

    def _recall(self, kind, hear, samples, sample_rate, language):
        content = np.ascontiguousarray(samples, np.float32).tobytes()
        key = digest_bytes(f"{self._name} {kind} {sample_rate} {language} ".encode() + content)
        if key not in self._heard:
            self._heard[key] = hear(samples, sample_rate, language)
            append_line(self._path, json.dumps([key, self._heard[key]], ensure_ascii=False))
        return self._heard[key]


def listen(
    clips: Sequence[tuple[Segment, Path]], options: Options, needs_text: bool, tell: Callable[[str], None]
) -> None:
    """Transcribes clips or checks their texts, and drops those that fail a check.

    Args:
        clips: Clips with their files.
        needs_text: Whether the recognizer transcribes; otherwise it checks the texts.
        tell: Called with the progress every 50 clips.
    """
    if not (options.recognizer or options.dnsmos or options.encoder):
        return
    parts = []
    for number, (clip, file) in enumerate(clips):
        if number and number % _PROGRESS_EVERY == 0:
            tell(f"{number} of {len(clips)} clips checked")
        samples, rate = soundfile.read(file, dtype="float32")
        if options.recognizer:
            text = " ".join(options.recognizer(samples, rate, options.language).replace("|", " ").split())
            _compare_text(clip, text, needs_text)
        if options.dnsmos and not clip.reason:
            score = options.dnsmos(samples, rate).overall
            clip.facts.dnsmos = round(score, 2)
            if score < options.min_dnsmos:
                clip.drop("low DNSMOS", f"DNSMOS {score:.2f}; the minimum is {options.min_dnsmos:g}.")
        if options.encoder and not clip.reason:
            parts.append((clip, options.encoder.parts(samples, rate)))
    if parts:
        _compare_voices(parts)
    if needs_text and options.recognizer:
        judge([clip for clip, _ in clips if not clip.reason], options.min_snr_db)


def _compare_text(clip, text, needs_text):
    letters = count_letters(text)
    if not letters:
        clip.drop("no words recognized", "the recognizer found no word.")
    elif needs_text:
        clip.text, clip.facts.characters_per_second = text, round(letters / clip.facts.speech_seconds, 3)
    elif not is_same_text(clip.text, text):
        clip.drop("another text recognized", text[:200])


def is_same_text(text: str, heard: str) -> bool:
    """Whether at least three quarters of the letters of a text and its transcription agree."""
    sides = ("".join(filter(str.isalnum, one.casefold())) for one in (text, heard))
    return difflib.SequenceMatcher(None, *sides, autojunk=False).ratio() >= _LEAST_ALIKE


def _compare_voices(parts):
    """Drops clips with two voices, and those in another voice than the recording."""
    means = [_unit(vectors.mean(axis=0)) for _, vectors in parts]
    usual = _unit(np.median(means, axis=0))
    for (clip, vectors), mean in zip(parts, means):
        change, own = _voice_change(vectors), float(mean @ usual)
        clip.facts.voice_change = None if change is None else round(change, 3)
        if change is not None and change < LEAST_VOICE_CHANGE:
            clip.drop("several voices", f"speaker similarity of its parts: {change:.2f}.")
        elif len(means) >= _LEAST_CLIPS_FOR_VOICE and own < LEAST_OWN_VOICE:
            clip.drop("another voice", f"speaker similarity to the other clips: {own:.2f}.")


def _voice_change(parts):
    """Returns the similarity of the mean vectors before and after the most different point, or None for short clips."""
    # The vector across the point, of 1.6 s, is ignored.
    pairs = ((parts[:k].mean(axis=0), parts[k + 1 :].mean(axis=0)) for k in range(1, len(parts) - 1))
    return min((float(_unit(a) @ _unit(b)) for a, b in pairs), default=None)


def _unit(vector):
    return vector / (np.linalg.norm(vector) + 1e-9)

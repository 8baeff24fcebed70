"""What was heard of a source, on disk until the source is done, so that an interrupted run need not hear it again."""

import json
from pathlib import Path

import numpy as np

from myxtts.hearing.recognizers import Recognizer, Word
from myxtts.storage.files import append_line, digest_bytes


class RemembersWhatItHeard:
    """A recognizer that keeps what it hears in a file, and does not listen twice to the same samples.

    It has `words` only if the recognizer has.

    Args:
        name: Of the recognizer: what another one heard is not taken for what this one hears.
    """

    def __init__(self, recognizer: Recognizer, path: Path, name: str):
        self._recognizer, self._path, self._name, self._heard = recognizer, path, name, {}
        if hasattr(recognizer, "words"):
            self.words = self._words
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        for line in lines:
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue  # cut short by a kill
            self._heard[key] = value

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`."""
        return self._recall("text", self._recognizer, samples, sample_rate, language)

    def _words(self, samples, sample_rate, language):
        hear = lambda *sound: [(one.text, float(one.start), float(one.end)) for one in self._recognizer.words(*sound)]
        return [Word(*one) for one in self._recall("words", hear, samples, sample_rate, language)]

    def _recall(self, kind, hear, samples, sample_rate, language):
        content = np.ascontiguousarray(samples, np.float32).tobytes()
        key = digest_bytes(f"{self._name} {kind} {sample_rate} {language} ".encode() + content)
        if key not in self._heard:
            self._heard[key] = hear(samples, sample_rate, language)
            append_line(self._path, json.dumps([key, self._heard[key]], ensure_ascii=False))
        return self._heard[key]

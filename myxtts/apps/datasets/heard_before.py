"""What was heard of a source, on disk until the source is done, so that an interrupted run need not hear it again."""

import json
from pathlib import Path

import numpy as np

from myxtts.hearing.recognizers import Recognizer, Word
from myxtts.storage.files import append_line, digest_bytes


def remembering(recognizer: Recognizer, path: Path, name: str) -> Recognizer:
    """A recognizer that keeps what it hears in a file, and does not listen twice to the same samples.

    Args:
        name: Of the recognizer: what another one heard is not taken for what this one hears.
    """
    kind = _RemembersWords if hasattr(recognizer, "words") else _Remembers
    return kind(recognizer, path, name)


class _Remembers:
    def __init__(self, recognizer, path, name):
        self._recognizer, self._path, self._name = recognizer, path, name
        self._heard = {}
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        for line in lines:
            try:
                key, value = json.loads(line)
                self._heard[key] = value
            except (ValueError, TypeError):
                continue  # cut short by a kill

    def __call__(self, samples: np.ndarray, sample_rate: int, language: str) -> str:
        """See `Recognizer`."""
        return self._recall("text", self._recognizer, samples, sample_rate, language)

    def _recall(self, what, hear, samples, sample_rate, language):
        content = np.ascontiguousarray(samples, np.float32).tobytes()
        key = digest_bytes(f"{self._name} {what} {sample_rate} {language} ".encode() + content)
        if key not in self._heard:
            self._heard[key] = hear(samples, sample_rate, language)
            append_line(self._path, json.dumps([key, self._heard[key]], ensure_ascii=False))
        return self._heard[key]


class _RemembersWords(_Remembers):
    def words(self, samples: np.ndarray, sample_rate: int, language: str) -> list[Word]:
        """Words with their times."""

        def hear(*arguments):
            return [[text, float(start), float(end)] for text, start, end in self._recognizer.words(*arguments)]

        return [Word(*one) for one in self._recall("words", hear, samples, sample_rate, language)]

"""A recording of buzzing sentences whose times and texts are known."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from tiny import voiced

from myxtts.inference.speech import Word

RATE = 16_000


@dataclass
class Planted:
    """A recording of synthetic buzzing sentences, with the times in seconds and the text of each."""

    path: Path
    seconds: float
    spoken: list
    texts: list

    def write_srt(self, path, offset=0.0, drift=0.0):
        """Writes subtitles whose times are `offset` seconds late, and then multiplied by `1 + drift`."""
        blocks = []
        for number, ((start, end), text) in enumerate(zip(self.spoken, self.texts), 1):
            times = (
                f"{int(t // 3600):02d}:{int(t // 60 % 60):02d}:{t % 60:06.3f}".replace(".", ",")
                for t in ((start + offset) * (1 + drift), (end + offset) * (1 + drift))
            )
            blocks.append(f"{number}\n{' --> '.join(times)}\n{text}\n")
        path.write_text("\n".join(blocks), encoding="utf-8")


def syllables(sound):
    """Returns gains `(S,)` that vary by 20 dB nine times a second, as the level of speech does, unlike music."""
    return 0.1 + 0.9 * np.abs(np.cos(2 * np.pi * 4.5 * np.arange(len(sound)) / RATE))


def plant(path, count=24, seed=0, extra=None):
    """Writes `count` sentences of 1.2 to 4 s with pauses of 0.3 to 1 s between them.

    Each consists of buzzes with gaps of 60 ms, shorter than any pause. `extra` is `(index, samples)`: audio without
    text, which is inserted before the sentence `index`.
    """
    random, parts, spoken, texts, position = np.random.default_rng(seed), [], [], [], 0

    def add(samples):
        nonlocal position
        parts.append(samples.astype(np.float32))
        position += len(samples)

    def hush(seconds):
        add(3e-4 * random.standard_normal(int(seconds * RATE)))

    hush(0.7)
    for index in range(count):
        if extra and index == extra[0]:
            add(extra[1])
            hush(0.6)
        start, words = position / RATE, random.integers(2, 7)
        for word in range(words):
            sound = voiced(random.uniform(0.45, 0.65), random.uniform(90, 160), index, index, RATE)
            add(random.uniform(0.5, 1.0) * sound * syllables(sound))
            if word < words - 1:
                hush(0.06)
        spoken.append((start, position / RATE))
        letters = max(4, round(14 * (spoken[-1][1] - start)))
        texts.append(f"{''.join(random.choice(list('abcdefghij'), letters))}{index}.".capitalize())
        hush(random.uniform(0.3, 1.0))
    soundfile.write(path, np.concatenate(parts), RATE, subtype="PCM_16")
    return Planted(path, position / RATE, spoken, texts)


class HearsPlanted:
    """A recognizer that returns the planted text, except for every `wrong`-th sentence."""

    def __init__(self, planted, wrong=10**9):
        self.planted, self.wrong, self.count = planted, wrong, 0
        self.whole = soundfile.read(planted.path, dtype="float32")[0]

    def words(self, samples, sample_rate, language):
        size = sample_rate // 100
        starts = range(0, len(self.whole) - size + 1, size)
        first = next(k for k in starts if np.array_equal(self.whole[k : k + size], samples[:size])) / sample_rate
        last = first + len(samples) / sample_rate + 0.05
        spoken = [(text, *span) for span, text in zip(self.planted.spoken, self.planted.texts)]
        return [
            Word(self._garbled(text), a - first, b - first) for text, a, b in spoken if first < a + 0.05 and b < last
        ]

    def _garbled(self, text):
        self.count += 1
        return "xyz" if self.count % self.wrong == 0 else text


class HearsPlantedWithoutTimes(HearsPlanted):
    words = property()

    def __call__(self, samples, sample_rate, language):
        return " ".join(word.text for word in HearsPlanted.words(self, samples, sample_rate, language))

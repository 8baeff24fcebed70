"""Transcripts that are found in the sound by words that were heard."""

import numpy as np
import pytest
import soundfile

from myxtts.apps.datasets import word_aligner
from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.pieces import Piece
from myxtts.apps.datasets.voice_activity import Stretch
from myxtts.apps.datasets.word_aligner import NOT_HEARD, Recording, WordAligner, match_words, with_times
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import Word

RATE = 16_000
LETTERS = "abcdefgh"


def test_words_are_matched_around_others():
    text = "one two three four five six seven".split()
    heard = "hello there one too three four hm five six".split()
    assert match_words(heard, text) == [2, -1, 4, 5, 7, 8, -1]
    assert match_words([], text) == [-1] * 7 and match_words(heard, []) == []


@pytest.fixture
def recording(tmp_path):
    """Twelve sentences of four letters, a tone for each letter, with pauses; their texts and times."""
    random, parts, spoken, texts, position = np.random.default_rng(0), [], [], [], 0.0
    for _ in range(12):
        word = "".join(random.choice(list(LETTERS), 4, replace=False))
        sound = [np.sin(2 * np.pi * tone(letter) * np.arange(RATE // 5) / RATE) for letter in word]
        hush = np.zeros(int(random.uniform(0.3, 0.8) * RATE))
        spoken.append((position + len(hush) / RATE, position + len(hush) / RATE + 0.8))
        parts += [hush, 0.3 * np.concatenate(sound)]
        position = spoken[-1][1]
        texts.append(word)
    path = tmp_path / "tones.wav"
    soundfile.write(path, np.concatenate([*parts, np.zeros(RATE // 2)]), RATE)
    stretches = [Stretch(round(a * 100), round(b * 100)) for a, b in spoken]
    return Recording(LongAudio(path), None, stretches, RATE // 100, "en"), texts, np.array(spoken)


def tone(letter):
    return 400.0 + 250.0 * LETTERS.index(letter)


class Hears:
    """A recognizer that hears what is said at each time, but for every `wrong`-th word, and tells times or not."""

    def __init__(self, source, texts, spoken, wrong=10**9):
        self.lines, self.wrong, self.count, self.source = list(zip(texts, spoken)), wrong, 0, source

    def words(self, samples, sample_rate, language):
        start = self.next_start(samples)
        inside = [
            (text, a - start, b - start) for text, (a, b) in self.lines if start <= a and b - start <= self.seconds
        ]
        return [Word(self.garbled(text), a, b) for text, a, b in inside]

    def next_start(self, samples):
        """Finds where in the recording the samples are from."""
        whole = next(iter(self.source.audio.blocks()))
        self.seconds = len(samples) / RATE + 0.01
        places = (k for k in range(0, len(whole), RATE // 100) if np.array_equal(whole[k : k + len(samples)], samples))
        return next(places) / RATE

    def garbled(self, text):
        self.count += 1
        return "xyz" if self.count % self.wrong == 0 else text


class HearsWithoutTimes(Hears):
    words = property()

    def __call__(self, samples, sample_rate, language):
        return " ".join(word.text for word in Hears.words(self, samples, sample_rate, language))


def test_words_that_were_heard_find_the_sentences(recording, monkeypatch):
    source, texts, spoken = recording
    pieces = [Piece(text) for text in texts]
    np.testing.assert_allclose(WordAligner(Hears(source, texts, spoken)).times(source, pieces), spoken, atol=0.02)
    # What a good recognizer did not hear is something else.
    times = WordAligner(Hears(source, texts, spoken, wrong=5)).times(source, pieces)
    assert times[9] == pytest.approx(spoken[9], abs=0.8)  # a misheard word, for which there is just the time
    monkeypatch.setattr(word_aligner, "_MISHEARD_LETTERS", 3)
    times = WordAligner(Hears(source, texts, spoken, wrong=5)).times(source, pieces)
    assert [k for k, time in enumerate(times) if time is None] == [4, 9]
    assert [piece.fault for piece in with_times(pieces, times, 30.0)] == ["", "", "", "", NOT_HEARD] * 2 + [""] * 2


def test_recognizer_without_times_finds_them_by_the_speech_around(recording):
    source, texts, spoken = recording
    times = WordAligner(HearsWithoutTimes(source, texts, spoken)).times(source, [Piece(text) for text in texts])
    np.testing.assert_allclose(times, spoken, atol=0.05)


def test_transcript_of_another_recording_is_told():
    with pytest.raises(UserError, match="1 of 8 sentences were heard"):
        with_times([Piece("One.")] * 8, [(0.0, 1.0), *[None] * 7], 20.0)

"""Transcripts that are found in the recording by words that were heard."""

import numpy as np
import pytest
from planted_talk import HearsPlanted, HearsPlantedWithoutTimes, plant

from myxtts.apps.datasets import alignment
from myxtts.apps.datasets.alignment import NOT_HEARD, find_sentences, match_words, with_times
from myxtts.apps.datasets.recording import LongAudio, survey
from myxtts.apps.datasets.texts import Piece
from myxtts.config.checks import UserError


def test_words_are_matched_around_others():
    text = "one two three four five six seven".split()
    heard = "hello there one too three four hm five six".split()
    assert match_words(heard, text) == [2, -1, 4, 5, 7, 8, -1]
    assert match_words([], text) == [-1] * 7 and match_words(heard, []) == []


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("planted") / "talk.wav", count=12)


def found_by(planted, recognizer):
    audio, pieces = LongAudio(planted.path), [Piece(text) for text in planted.texts]
    stretches = np.round(100 * np.array(planted.spoken)).astype(int)
    return find_sentences(recognizer, audio, survey(audio), stretches, pieces, "en")


def times_of(planted, recognizer):
    return [(piece.start, piece.end) for piece in found_by(planted, recognizer)]


def test_words_that_were_heard_find_the_sentences(planted, monkeypatch):
    np.testing.assert_allclose(times_of(planted, HearsPlanted(planted)), planted.spoken, atol=0.02)
    # What a good recognizer did not hear is something else, but for a word for which there is just the time.
    monkeypatch.setattr(alignment, "_MISHEARD_LETTERS", 100)
    assert times_of(planted, HearsPlanted(planted, wrong=5))[4] == pytest.approx(planted.spoken[4], abs=1.1)
    monkeypatch.setattr(alignment, "_MISHEARD_LETTERS", 3)
    faults = [piece.fault for piece in found_by(planted, HearsPlanted(planted, wrong=5))]
    assert faults == ["", "", "", "", NOT_HEARD] * 2 + ["", ""]


def test_recognizer_without_times_finds_them_by_the_speech_around(planted):
    np.testing.assert_allclose(times_of(planted, HearsPlantedWithoutTimes(planted)), planted.spoken, atol=1.0)


def test_transcript_of_another_recording_is_reported():
    with pytest.raises(UserError, match="1 of 8 sentences"):
        with_times([Piece("One.")] * 8, [(0.0, 1.0), *[None] * 7], 20.0)

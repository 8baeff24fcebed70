"""Final samples of a run: their sentences and voices, and behavior on a full disk."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from myxtts.config.checks import UserError
from myxtts.data.corpora import Utterance
from myxtts.inference.speech import Speech, SpokenPiece
from myxtts.runs import samples as last_words
from myxtts.runs.run import Run


class Speaker:
    """Replaces a synthesizer; a voice is the path of its recording."""

    def voice(self, path):
        return path

    def batch(self, texts, voices, languages, seed):
        self.heard = list(zip(texts, voices, languages))
        pieces = [SpokenPiece(text, 0.0, 0.1, np.zeros(2, np.int32), True, doubts=("too short",)) for text in texts]
        return [Speech(np.zeros(2205, np.float32), 22050, (piece,)) for piece in pieces]


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Three held-out clips of two speakers, three training clips, and a replacement of the model."""
    speakers = {"a": "ana", "b": "ben"}
    clip = lambda n, text="", size=1: Utterance(n, f"{n}.wav", text, speakers[n[0]], "en", num_samples=22050 * size)
    train = [clip("a1"), clip("a2", size=2), clip("b1")]
    dataset = SimpleNamespace(train=train, validation=[clip("b8", "one"), clip("a8", "two"), clip("b9", "three")])
    speaker = Speaker()
    monkeypatch.setattr(last_words.Synthesizer, "load", lambda folder: speaker)
    training = SimpleNamespace(checkpoint_dir=str(tmp_path), seed=0, num_samples=2, closing_texts=())
    return SimpleNamespace(training=training), dataset, speaker


def test_speakers_take_turns_with_the_sentences_asked_for_or_say_a_held_out_one(ended):
    config, dataset, speaker = ended
    last_words.speak_last_words(config, dataset, "/CPU:0")
    assert sorted(speaker.heard) == [("one", "b1.wav", "en"), ("two", "a2.wav", "en")]
    config.training.closing_texts = ("x.", "y.", "z.")
    spoken = last_words.speak_last_words(config, dataset, "/CPU:0")
    assert speaker.heard == [("x.", "a2.wav", "en"), ("y.", "b1.wav", "en"), ("z.", "a2.wav", "en")]
    assert [(words.text, words.speaker, words.path.name) for words in spoken] == [
        ("x.", "ana", "final_1.wav"),
        ("y.", "ben", "final_2.wav"),
        ("z.", "ana", "final_3.wav"),
    ]
    assert all(words.path.is_file() and words.doubts == ("too short",) for words in spoken)


FAULTS = {Speaker: ("batch", UserError("No letter to speak.")), Speech: ("save", OSError(28, "No space left"))}


@pytest.mark.parametrize("broken", FAULTS)
def test_text_that_cannot_be_spoken_and_a_full_disk_end_no_run(ended, monkeypatch, caplog, broken):
    name, error = FAULTS[broken]
    monkeypatch.setattr(broken, name, Mock(side_effect=error))
    assert last_words.speak_last_words(*ended[:2], "/CPU:0") == []
    assert str(error) in caplog.text


def test_voice_from_held_out_recordings_is_as_long_as_those_of_training():
    def voice(validation, train=(), language=None):
        clips = lambda side: [Utterance(n, n, "", n[0], n[1], num_samples=int(22050 * long)) for n, long in side]
        data = SimpleNamespace(conditioning_seconds=(3.0, 6.0))
        dataset = SimpleNamespace(train=clips(train), validation=clips(validation), config=SimpleNamespace(data=data))
        return [clip.id for clip in last_words.held_out_voice(dataset, language)]

    assert voice([("ae1", 2.7), ("ae2", 4), ("be3", 5.5), ("be4", 9)]) == ["be3"]
    assert voice([("ae1", 2.7), ("bd2", 4)], language="e") == ["ae1"], "rather short than in another language"
    assert voice([("ae1", 2.7), ("bd2", 4)], language="f") == ["bd2"]
    assert voice([("ae1", 2.7), ("ae2", 9)]) == ["ae2"]
    one_voice = voice([("be1", 2.5), ("ae2", 1), ("ae3", 2.9)], [("ae4", 3)])
    assert one_voice == ["ae3", "ae2"], "what was not trained on comes first"
    dataset = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(conditioning_seconds=(0, 9))), train=[])
    dataset.validation = [Utterance(one, one, "", "a", one, num_samples=22050) for one in ("en", "de")]
    run = SimpleNamespace(_dataset=dataset, _synthesizer=SimpleNamespace(speak=lambda *given, seed: given))
    assert [Run.speak(run, "Hi.", language=name)[1] for name in ("German", "de", None)] == [["de"], ["de"], ["en"]]
    assert voice([("ae1", 1)], [("be2", 5), ("ae3", 1), ("ae4", 1.5)]) == ["ae1", "ae4", "ae3"]

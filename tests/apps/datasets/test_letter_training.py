"""An aligner that learns from a data set, on planted speech whose letters are tones; when they sound it is not told."""

import json
import re

import numpy as np
import pytest
import soundfile

from myxtts.__main__ import main
from myxtts.apps.datasets import letter_training
from myxtts.apps.datasets.aligners import CtcAligner, Recording
from myxtts.apps.datasets.ctc import Trellis, best_path
from myxtts.apps.datasets.ctc_network import CtcNetwork
from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.letter_training import NETWORK_FILE, Schedule
from myxtts.apps.datasets.pieces import Piece
from myxtts.apps.datasets.voice_activity import Stretch

RATE = 16_000
LETTERS = "abcdef"


def spoken(text, random):
    """Tones of 60 to 160 ms for letters, now and then a pause between words."""
    parts = []
    for word in text.split():
        for letter in word:
            time = np.arange(int(random.uniform(0.06, 0.16) * RATE)) / RATE
            parts.append(0.3 * np.sin(2 * np.pi * (300 + 450 * LETTERS.index(letter)) * time))
        parts.append(np.zeros(int(random.choice([0, 0.1]) * RATE)))
    return np.concatenate(parts)


def some_text(random):
    return " ".join("".join(random.choice(list(LETTERS), random.integers(2, 5), replace=False)) for _ in range(3))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Twenty-four clips, with silence of other lengths at both ends."""
    folder, random, rows = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0), []
    (folder / "wavs").mkdir()
    for number in range(24):
        text = some_text(random)
        hush = [np.zeros(int(random.uniform(0.05, 0.3) * RATE)) for _ in range(2)]
        sound = np.concatenate([hush[0], spoken(text, random), hush[1]])
        sound += 1e-3 * random.standard_normal(len(sound))
        soundfile.write(folder / "wavs" / f"{number:03d}.wav", sound, RATE)
        rows.append(f"{number:03d}|{text}|{text}\n")
    (folder / "metadata.csv").write_text("".join(rows))
    return folder


def test_letters_follow_each_other_and_pauses_are_between_words():
    trellis = Trellis.of_words([[1, 2], [2]], 0)
    assert trellis.symbols.tolist() == [0, 1, 2, 0, 2, 0]
    scores = np.log(np.full((3, 3), 0.1))
    scores[range(3), [1, 2, 2]] = 0.0
    # The words follow each other at once; a network that is sure of blanks is not heard within one.
    assert trellis.symbols[best_path(scores, trellis, np.zeros(3, int), 6)].tolist() == [1, 2, 2]
    scores[1] = [0.0, -1.0, -1.0]
    assert trellis.symbols[best_path(scores, trellis, np.zeros(3, int), 6)].tolist() == [1, 2, 2]


def test_learned_aligner_finds_the_sentences_of_a_recording(corpus, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    quick = Schedule(rounds=3, steps=30, rows=8, row_frames=128, width=32, learning_rate=5e-3)
    monkeypatch.setattr(letter_training.train_aligner, "__defaults__", ("en", 0, quick, lambda line: None))
    assert main(["train-aligner", str(corpus), "--output", str(tmp_path / "aligner")]) == 0
    said = capsys.readouterr().out
    print(said)
    assert float(re.search(r"(\d+)% of the letters wrong", said)[1]) < 50 and "too little" not in said
    random, parts, truth, texts, position = np.random.default_rng(5), [], [], [], 0.0
    for _ in range(8):
        texts.append(some_text(random))
        hush, sound = np.zeros(int(random.uniform(0.3, 0.8) * RATE)), spoken(texts[-1], random).astype(np.float32)
        sound = sound[: np.flatnonzero(sound)[-1] + 1]
        start = position + len(hush) / RATE
        position = start + len(sound) / RATE
        truth.append((start, position))
        parts += [hush, sound]
    samples = np.concatenate([*parts, hush])
    soundfile.write(tmp_path / "long.wav", samples + 1e-3 * random.standard_normal(len(samples)), RATE)
    stretches = [Stretch(round(100 * start), round(100 * end)) for start, end in truth]
    recording = Recording(LongAudio(tmp_path / "long.wav"), None, stretches, RATE // 100, "en")
    aligner = CtcAligner(CtcNetwork(tmp_path / "aligner" / NETWORK_FILE))
    found = aligner.times(recording, [Piece(text) for text in texts])
    np.testing.assert_allclose(found, truth, atol=0.05)
    turned = aligner.times(recording, [Piece(text) for text in [*texts[4:], *texts[:4]]])
    # What comes in another order cannot all be found.
    away = [np.inf if one is None else abs(one[0] - start) for one, (start, _) in zip(turned, truth[4:] + truth[:4])]
    assert sum(one < 0.1 for one in away) <= 4


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(FEWEST_CLIPS=25), "needs at least 25 clips"),
        (dict(MOST_LETTERS=5), "at most 5 letters. The texts of .* have 6"),
    ],
)
def test_what_cannot_be_learned_from_is_one_sentence(change, sentence, corpus, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnx")
    for name, value in change.items():
        monkeypatch.setattr(letter_training, name, value)
    assert main(["train-aligner", str(corpus), "--output", str(tmp_path / "aligner")]) == 2
    assert re.search(sentence, " ".join(capsys.readouterr().err.split()))
    assert not (tmp_path / "aligner").exists()


def test_output_that_holds_something_is_refused(corpus, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text(json.dumps({}))
    assert main(["train-aligner", str(corpus), "--output", str(tmp_path)]) == 2
    assert "empty or not there" in capsys.readouterr().err

"""Transcripts that are found in the sound: by words that were heard, and by a CTC network's letters."""

import itertools
import json

import numpy as np
import pytest
import soundfile

from myxtts.apps.datasets import aligners, ctc
from myxtts.apps.datasets.aligners import NOT_HEARD, CtcAligner, Recording, WordAligner, with_times
from myxtts.apps.datasets.ctc import OPEN_LOG_PROBABILITY, Trellis, best_path
from myxtts.apps.datasets.ctc_network import CtcNetwork
from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.pieces import Piece
from myxtts.apps.datasets.voice_activity import Stretch
from myxtts.apps.datasets.word_match import match_words
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import Word

RATE = 16_000
LETTERS = "abcdefgh"


def all_paths(log_probabilities, texts):
    """The best of all sequences of letters and blanks that spell the texts, by trying each: `(score, sequence)`."""
    spelled = tuple(letter for text in texts for letter in text)
    ends = set(np.cumsum([0, *map(len, texts)]).tolist())
    best = (-np.inf, None)
    for sequence in itertools.product(range(log_probabilities.shape[1]), repeat=len(log_probabilities)):
        heard = [symbol for symbol, _ in itertools.groupby(sequence)]
        if tuple(symbol for symbol in heard if symbol) != spelled:
            continue
        score, before, count = 0.0, 0, 0
        for row, symbol in zip(log_probabilities, sequence):
            count += symbol != 0 and symbol != before
            is_open = symbol == 0 and count in ends
            score += max(row[symbol], OPEN_LOG_PROBABILITY) if is_open else row[symbol]
            before = symbol
        best = max(best, (score, sequence))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_best_path_is_the_best_of_all_sequences(seed, monkeypatch):
    monkeypatch.setattr(ctc, "_KEPT_EVERY", 2)
    random = np.random.default_rng(seed)
    log_probabilities = np.log(random.dirichlet(np.ones(3) / 2, 7))
    texts = [list(random.integers(1, 3, 2)), list(random.integers(1, 3, 1 + seed % 2))]
    score, sequence = all_paths(log_probabilities, texts)
    trellis = Trellis.of(texts, 0)
    path = best_path(log_probabilities, trellis, np.zeros(7, int), 100)
    own = np.maximum(log_probabilities[np.arange(7), trellis.symbols[path]], trellis.floors[path])
    assert own.sum() == pytest.approx(score)
    # A band that the path lies in changes nothing.
    low = np.minimum.accumulate(path[::-1])[::-1] - 1
    width = int((path - low).max()) + 3
    assert best_path(log_probabilities, trellis, low, width).tolist() == path.tolist()


def test_text_longer_than_the_sound_has_no_path():
    log_probabilities = np.log(np.full((3, 2), 0.5))
    assert not len(best_path(log_probabilities, Trellis.of([[1, 1, 1]], 0), np.zeros(3, int), 99))


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


def write_network(folder):
    """An ONNX network whose letters are tones: energy of a filter for each over 20 ms, and a constant for the blank."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    size = 320
    time = np.arange(size) / RATE
    waves = np.concatenate([[np.cos(2 * np.pi * tone(x) * time), np.sin(2 * np.pi * tone(x) * time)] for x in LETTERS])
    filters = (waves[:, None] * np.hanning(size) / size * 8).astype(np.float32)
    pairs = np.zeros((len(LETTERS) + 1, 2 * len(LETTERS), 1), np.float32)
    for index in range(len(LETTERS)):
        pairs[index + 1, 2 * index : 2 * index + 2] = 2.0
    bias = np.zeros(len(LETTERS) + 1, np.float32)
    bias[0] = 4.0
    nodes = [
        helper.make_node("Unsqueeze", ["samples", "one"], ["channels"]),
        helper.make_node("Conv", ["channels", "filters"], ["waves"], strides=[size]),
        helper.make_node("Mul", ["waves", "waves"], ["energy"]),
        helper.make_node("Conv", ["energy", "pairs", "bias"], ["scores"]),
        helper.make_node("Transpose", ["scores"], ["logits"], perm=[0, 2, 1]),
    ]
    constants = {"filters": filters, "pairs": pairs, "bias": bias, "one": np.array([1], np.int64)}
    graph = helper.make_graph(
        nodes,
        "tones",
        [helper.make_tensor_value_info("samples", TensorProto.FLOAT, [1, "S"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "T", len(LETTERS) + 1])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "tones.onnx")
    vocabulary = {"<pad>": 0, **{letter: k for k, letter in enumerate(LETTERS, 1)}}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return folder / "tones.onnx"


def test_network_finds_the_sentences_and_tells_those_that_are_not_there(recording, tmp_path):
    source, texts, spoken = recording
    aligner = CtcAligner(CtcNetwork(write_network(tmp_path)))
    pieces = [Piece(f"{text.capitalize()}.") for text in texts]
    times = aligner.times(source, pieces)
    np.testing.assert_allclose(times, spoken, atol=0.05)
    wrong = [*pieces[:5], Piece("Hhggffhhggff."), *pieces[5:]]  # in the text and not in the sound
    found = with_times(wrong, aligner.times(source, wrong), 30.0)
    assert [piece.fault for piece in found] == [""] * 5 + [NOT_HEARD] + [""] * 7
    # Speech that is in no text moves nothing else.
    fewer = aligner.times(source, [*pieces[:4], *pieces[5:]])
    np.testing.assert_allclose(fewer, np.delete(spoken, 4, axis=0), atol=0.06)


@pytest.mark.parametrize(
    "content, sentence",
    [(None, "is not there"), ("[1]", "must map letters"), ('{"a": 1}', "must hold a blank"), ("{", "cannot be read")],
)
def test_vocabulary_that_cannot_be_used_is_one_sentence(content, sentence, tmp_path):
    (tmp_path / "model.onnx").touch()
    if content:
        (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        CtcNetwork(tmp_path / "model.onnx")


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
    monkeypatch.setattr(aligners, "_MISHEARD_LETTERS", 3)
    times = WordAligner(Hears(source, texts, spoken, wrong=5)).times(source, pieces)
    assert [k for k, time in enumerate(times) if time is None] == [4, 9]


def test_recognizer_without_times_finds_them_by_the_speech_around(recording):
    source, texts, spoken = recording
    times = WordAligner(HearsWithoutTimes(source, texts, spoken)).times(source, [Piece(text) for text in texts])
    np.testing.assert_allclose(times, spoken, atol=0.05)


def test_transcript_of_another_recording_is_told():
    with pytest.raises(UserError, match="1 of 8 sentences were heard"):
        with_times([Piece("One.")] * 8, [(0.0, 1.0), *[None] * 7], 20.0)

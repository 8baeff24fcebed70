"""Splitting of texts for models that were trained on short texts only."""

import json

import pytest

from myxtts.inference.text_front import TextFront
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.text.reading import CLAUSE_PAUSE_SECONDS, CUT_PAUSE_SECONDS, SENTENCE_PAUSE_SECONDS, _written
from myxtts.text.speech_rates import longest_texts, measure_rates, read_rates
from myxtts.text.tokenizer import XTTSTokenizer

TEXT = "The girl sees a dog. My mother likes fresh bread, too. Incomprehensibilities."


@pytest.fixture(scope="module")
def tokenizer():
    return XTTSTokenizer.train([(TEXT, "en")])


def spoken(tokenizer, longest, language="en"):
    return [piece.text for piece in TextFront(tokenizer, 200, longest).pieces(TEXT, language)]


def test_a_model_trained_on_short_texts_gets_no_longer_ones(tokenizer):
    assert spoken(tokenizer, {}) == [TEXT]
    assert spoken(tokenizer, {"en": 60}) == [TEXT[:54], TEXT[55:]]  # two short sentences fit together
    assert spoken(tokenizer, {"en": 40}) == [TEXT[:20], TEXT[21:54], TEXT[55:]]
    assert spoken(tokenizer, {"de": 40}) == spoken(tokenizer, {"en": 40})  # of this language nothing is known
    cut = spoken(tokenizer, {"en": 5})
    assert " ".join(cut) == TEXT and cut[-1] == "Incomprehensibilities."  # words stay whole


def test_a_piece_is_no_longer_than_training_texts_with_its_numbers_in_words(tokenizer):
    pieces = TextFront(tokenizer, 400, {"en": 70}).pieces("On 3 May, J. R. Vale paid $1,250.50. He left.", "en")
    assert [piece.text for piece in pieces] == ["On 3 May, J. R. Vale", "paid $1,250.50.", "He left."]
    pytest.importorskip("pypinyin")
    pieces = TextFront(XTTSTokenizer.train([("猫", "zh")]), 400, {"zh": 20}).pieces("猫" * 50, "zh")
    assert [len(piece.text) for piece in pieces] == [20, 20, 10]
    pieces = TextFront(XTTSTokenizer.train([("سلام", "fa")]), 400, {"fa": 6}).pieces("سلام.\u200f سلام،\u202c", "fa")
    assert [piece.pause_seconds for piece in pieces] == [SENTENCE_PAUSE_SECONDS, CLAUSE_PAUSE_SECONDS]


def test_short_lines_are_sentences_and_wrapped_lines_are_joined(tokenizer):
    pieces = lambda text: TextFront(tokenizer, 400).pieces(text, "en")
    verses = [("Roses are red", SENTENCE_PAUSE_SECONDS), ("Violets are blue", CUT_PAUSE_SECONDS)]
    assert pieces("Roses are red\r\nViolets are blue") == verses
    wrapped = "These lines were wrapped by an editor in the\nmiddle of a sentence, and stay together."
    for text in (wrapped, wrapped.replace("in the", "in\fthe"), "The exam-\nple of Dr.\nSmith,\nwhich goes on."):
        assert [piece.text for piece in pieces(text)] == [" ".join(text.split())]
    assert len(pieces(39 * "a" + "\nb")) == 2 and len(pieces(40 * "a" + "\nb")) == 1


def test_longest_texts_are_from_the_recordings_and_from_the_bundled_source():
    rates = measure_rates([("en", "a" * (45 + n), 1.0 + 0.1 * n) for n in range(80)] + [("de", "ja", 0.5)] * 30)
    assert longest_texts(rates) == {"en": 124, "de": 2}
    base = longest_texts(read_rates(BASE_FOLDER))
    assert 20 < min(base.values()) and max(base.values()) < 160
    assert longest_texts(rates, "base") == base | {"en": max(124, base["en"])}
    assert longest_texts(rates, "runs/mine") == {}  # it may have read longer ones
    assert longest_texts({}) == longest_texts({}, "base") == {}


def test_unknown_letters_lose_their_diacritics(caplog):
    front = TextFront(XTTSTokenizer.train([("a naive strasse in lodz, ok", "de")]), 200)

    def read(text):
        caplog.clear()
        front.pieces(text, "de")
        return front.tokenizer.decode(front.ids(text, "de")), caplog.text

    _written.cache_clear()
    assert front.check("Naïve Straße.", "de") is None and read("Naïve Straße.")[0] == "[de]naive strasse"
    assert "'Naive Straße.'" in caplog.text and _written.cache_info().misses == 2, "once with ï and once without"
    assert read("Straße") == ("[de]strasse", "")  # which sounds the same
    assert read("Łódź")[0] == "[de]lodz" and read("é")[0] == "[de]e"
    assert read("in Ж")[0] == "[de]in " and "ZHE" in caplog.text
    assert front.tokenizer.unspoken_share("Łódź", "de") == 0
    assert front.tokenizer.unspoken_share("in Жd", "de") == 0.25


def test_a_vocabulary_that_spells_grows_by_letters_alone():
    texts = [("a cat sat in", "en"), ("ža žab žabe žabes", "cs"), ("žabe žab", "cs")]
    spelling = XTTSTokenizer.train(texts[:1], vocab_size=1)
    grown = spelling.extend(texts[1:])
    old, new = (json.loads(one.to_json())["model"]["vocab"].keys() for one in (spelling, grown))
    assert {*map(len, new - old - {"[cs]"})} == {1} and {"ž", "b", "ř"} < new - old
    assert len(grown.encode("žabes", "cs")) == 1 + len("žabes")
    assert XTTSTokenizer.train(texts[:1]).extend(texts[1:]).num_tokens > grown.num_tokens

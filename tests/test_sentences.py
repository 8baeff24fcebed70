"""Splitting text for synthesis."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.text.cleaners import split_sentences, split_text
from myxtts.text.languages import LANGUAGES


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        (
            "en",
            'Dr. Vale met J. R. R. Pike. "Really?" he asked... It cost 3.50.',
            ["Dr. Vale met J. R. R. Pike.", '"Really?"', "he asked...", "It cost 3.50."],
        ),
        ("de", "Am 2. Tag kam er. Ja!", ["Am 2. Tag kam er.", "Ja!"]),
        ("ja", "今日は寒い。明日も！そう", ["今日は寒い。", "明日も！", "そう"]),
        ("fa", "سلام! خوبی؟ بله.", ["سلام!", "خوبی؟", "بله."]),
        ("am", "ሰላም። ደህና ነህ፧ አዎ", ["ሰላም።", "ደህና ነህ፧", "አዎ"]),
        ("en", "  ", []),
    ],
)
def test_sentences_end_at_their_marks(language, text, sentences):
    assert split_sentences(text, language) == sentences


def test_sentences_are_packed_up_to_the_limit():
    assert split_text("One two. Three four. Five.", "en", max_chars=21) == ["One two. Three four.", "Five."]


def test_a_long_sentence_is_cut_after_a_comma_else_at_a_space():
    assert split_text("aaaa bbbb cc, dddd eeee", "en", max_chars=20) == ["aaaa bbbb cc,", "dddd eeee"]
    assert split_text("aaaa bbbb cccc dddd", "en", max_chars=14) == ["aaaa bbbb cccc", "dddd"]


def test_text_without_spaces_is_cut_anywhere():
    assert split_text("猫" * 150, "ja") == ["猫" * 71, "猫" * 71, "猫" * 8]


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="max_chars must be at least 1"):
        split_text("a", "en", max_chars=0)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab. ,!?—\n3)\"'。፣؟我", max_size=200),
    language=st.sampled_from(sorted(LANGUAGES)),
    max_chars=st.integers(1, 40),
)
def test_pieces_fit_and_lose_nothing(text, language, max_chars):
    pieces = split_text(text, language, max_chars)
    assert all(piece and len(piece) <= max_chars for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())

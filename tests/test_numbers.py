"""Numbers to words, against num2words' own answers, CLDR's rules and worked examples."""

from pathlib import Path

import pytest

from myxtts.text.languages import get_language


def expand_numbers(text, code):
    language = get_language(code)
    return language.expand_numbers(language.normalize(text))


@pytest.mark.parametrize("row", (Path(__file__).parent / "data/numbers.txt").read_text("utf-8").splitlines())
def test_numbers_are_read_as_words(row):
    language, text, words = row.split(" > ")
    assert expand_numbers(text, language) == words


@pytest.mark.parametrize("language", ["en", "es", "pt", "tr", "cs", "ar", "hu", "ko", "hi", "fa", "am"])
def test_numbers_beyond_the_tables_are_read_digit_by_digit(language):
    assert expand_numbers("7" * 60, language) == " ".join([expand_numbers("7", language)] * 60)


@pytest.mark.parametrize("language", ["en", "de", "hu", "zh", "fa", "am"])
def test_very_long_digit_runs_are_read(language):
    # Rules with quadratic cost would take too long here.
    words = expand_numbers("7" * 100_000 + "," + "1," * 20_000, language)
    assert len(words) > 100_000 and not any(digit in words for digit in "17")

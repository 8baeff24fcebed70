"""Numbers to words, against num2words' own answers, CLDR's rules and worked examples."""

from pathlib import Path

import pytest

from myxtts.text.languages import get_language
from myxtts.text.languages.am import ethiopic_to_int
from myxtts.text.languages.zh import read_number


def expand_numbers(text, code):
    language = get_language(code)
    return language.expand_numbers(language.normalize(text))


@pytest.mark.parametrize("row", (Path(__file__).parent / "data/numbers.txt").read_text("utf-8").splitlines())
def test_numbers_are_read_as_words(row):
    language, text, words = row.split(" > ")
    assert expand_numbers(text, language) == words


def test_ethiopic_numerals_and_chinese_quantities():
    numerals = {"፩": 1, "፲፬": 14, "፻": 100, "፲፱፻፺፱": 1999, "፳፻፲": 2010, "፼": 10_000, "፲፪፼፫፻፵፭": 120_345}
    assert {numeral: ethiopic_to_int(numeral) for numeral in numerals} == numerals
    words = {"10": "十", "102": "一百零二", "2000": "两千", "22000": "两万两千", "10012": "一万零一十二"}
    words |= {"12.5": "十二点五", "100000000": "一亿", "007": "零七"}
    assert {number: read_number(number) for number in words} == words


@pytest.mark.parametrize("language", ["en", "es", "pt", "tr", "cs", "ar", "hu", "ko", "hi", "fa", "am"])
def test_numbers_beyond_the_tables_are_read_digit_by_digit(language):
    digit = expand_numbers("7", language)
    assert expand_numbers("7" * 60, language) == " ".join([digit] * 60)


@pytest.mark.parametrize("language", ["en", "de", "hu", "zh", "fa", "am"])
def test_very_long_digit_runs_are_read(language):
    # Rules with quadratic cost would take too long here.
    words = expand_numbers("7" * 100_000 + "," + "1," * 20_000, language)
    assert len(words) > 100_000 and not any(digit in words for digit in "17")

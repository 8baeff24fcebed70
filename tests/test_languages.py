"""The registry: every language is complete, and a new one needs only its own file."""

import re
from pathlib import Path

import pytest

from myxtts.text.cleaners import clean_text, replace_unknown, split_sentences, split_text
from myxtts.text.languages import LANGUAGES, get_language, register_language
from myxtts.text.languages.base import Language, table
from myxtts.text.tokenizer import XTTSTokenizer

ROOT = Path(__file__).resolve().parents[1]
NEEDED_PACKAGES = {"ja": ("cutlet", "unidic_lite"), "zh": ("pypinyin",), "ko": ("hangul_romanize",)}
# An ordinal of each language that has rules for them, cleaned.
ORDINAL_ROWS = (Path(__file__).parent / "data/ordinals.txt").read_text("utf-8").splitlines()
ORDINALS = {code: words for code, *words in (row.split(" | ") for row in ORDINAL_ROWS)}


@pytest.fixture
def language(request):
    for package in NEEDED_PACKAGES.get(request.param, ()):
        pytest.importorskip(package)
    return get_language(request.param)


def fields_of_made_up(**changes):
    fields = dict(code="xx", name="Made-up", char_limit=12, expand_numbers=lambda text: text.replace("7", "seven"))
    fields |= dict(abbreviations=table("dr doktor, dhr de heer"), symbols=table("& et"))
    return fields | dict(symbol_readings=table("€ oro, = is")) | changes


@pytest.fixture
def made_up():
    register_language(Language(**fields_of_made_up()))
    yield LANGUAGES["xx"]
    del LANGUAGES["xx"]


def test_nineteen_languages_are_in_the_order_of_their_codes_with_unique_names_and_the_tags_of_released_vocabularies():
    assert list(LANGUAGES) == sorted(LANGUAGES) and len(LANGUAGES) >= 19
    assert all(language.code == code for code, language in LANGUAGES.items())
    assert {language.tag for language in LANGUAGES.values()} == {
        "[zh-cn]" if code == "zh" else f"[{code}]" for code in LANGUAGES
    }
    assert len({language.name for language in LANGUAGES.values()}) == len(LANGUAGES)


@pytest.mark.parametrize("language", sorted(LANGUAGES), indirect=True)
def test_every_table_of_a_language_works(language):
    code = language.code
    if not language.romanizes_as_written:
        for written in ("0", "7", "21", "1999", "2.5", "1,204", "1.204", "7" * 40, "$12.50", "5€", "£3"):
            words = language.expand_numbers(language.normalize(f"a {written} b"))
            assert len(words) > 4 and not any(character.isdigit() for character in words), words
            assert clean_text(f"a {written} b", code)
        for short, words in language.abbreviations.items():
            stop = "" if language.abbreviation_stop == "never" else "."
            assert clean_text(f"{short}{stop} b", code) == f"{words} b"
        for symbol in language.symbols:
            assert symbol not in clean_text(f"a {symbol} b", code)
    assert split_sentences("One 2. Two! Three?", code)[-2:] == [
        "Two!" if not language.ordinal_stop else "One 2. Two!",
        "Three?",
    ]
    assert len(split_text("One. " * 100, code)[0]) == (language.char_limit + 1) // 5 * 5 - 1
    tokenizer = XTTSTokenizer.train([("one day 日 & of many", code)])
    assert tokenizer.languages == (code,)
    for symbol, reading in language.symbol_readings.items():
        assert replace_unknown(symbol, language, frozenset(reading)) == reading
    assert tokenizer.encode("one", code)[0] == 4
    assert replace_unknown("(a: b) [c]; d (e). :) ;-) a/d_e", language, frozenset("abcde,. ")) == "a, b, c, d, e. a d e"


@pytest.mark.parametrize("language", ORDINALS, indirect=True)
def test_ordinals_are_read(language):
    text, words = ORDINALS[language.code]
    assert clean_text(text, language.code) == words


def test_a_language_registered_by_one_call_is_cleaned_split_and_tokenized(made_up):
    assert clean_text("Dhr. Vale & 7 cats", "xx-XX") == "de heer vale et seven cats"
    assert split_text("Met Dr. Vale. Go on.", "xx") == ["Met Dr.", "Vale. Go on."]
    assert split_sentences("Met Dr. Vale. Go on.", "xx") == ["Met Dr. Vale.", "Go on."]
    tokenizer = XTTSTokenizer.train([("seven cats is oro", "xx")])
    assert tokenizer.decode(tokenizer.encode("7 cats = €", "xx")) == "[xx]seven cats is oro"
    assert "xx" not in XTTSTokenizer.train([("cats", "en")]).languages


def test_the_language_of_the_page_works_as_written():
    page = (ROOT / "docs" / "text.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search('```python\n("""Swedish.*?)```', page, re.DOTALL)[1], names)
    register_language(names["LANGUAGE"])
    try:
        assert clean_text("Dr. Vale & 21 katter, den 2:a", "sv") == "doktor vale och tjugoett katter, den andra"
    finally:
        del LANGUAGES["sv"]


@pytest.mark.parametrize("taken", [{"code": "en"}, {"code": "cn", "tag": "[zh-cn]"}])
def test_a_code_or_tag_that_is_taken_is_refused(taken):
    with pytest.raises(ValueError, match="has the code or tag of (English|Chinese)"):
        register_language(Language(**fields_of_made_up(**taken)))
    assert "cn" not in LANGUAGES and LANGUAGES["en"].name == "English"


def test_a_table_is_read_with_values_of_several_words_and_signs_as_keys():
    assert table("= is equal to, dhr de heer,\n  # no") == {"=": "is equal to", "dhr": "de heer", "#": "no"}
    with pytest.raises(ValueError, match="twice"):
        table("dr doctor, dr drive")
    with pytest.raises(ValueError, match="has no words"):
        table("dr doctor, mr")

"""Text cleaning: from what is written to the words that are said, as the tokenizer's vocabulary spells them.

Order for every language but Japanese, as in the reference: quotes, script, case, numbers, abbreviations, symbols,
white space, and for Chinese and Korean the romanization last. Japanese is romanized as written.
"""

import re
from functools import cache

from myxtts.text.languages import get_language
from myxtts.text.languages.base import Language

# What an abbreviation looks like, by `Language.abbreviation_stop`.
_ABBREVIATION = {"always": r"\b{}\.", "optional": r"(?<!\w){}\.?(?!\w)", "never": r"\b{}\b"}


def clean_text(text: str, language: str) -> str:
    """Normalizes a text as written: lower case, all in words; Chinese, Korean and Japanese in Latin letters.

    Raises:
        ValueError: The language is not supported.
        ImportError: The text needs an optional package that is not installed; the message says which.
    """
    language = get_language(language)
    text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)  # half characters, which no library takes
    if not language.romanizes_as_written:
        text = language.normalize(text.replace('"', "")).lower()
        text = _expand_abbreviations(language.expand_numbers(text), language)
        text = " ".join(text.translate(_symbol_table(language)).split())
    return language.romanize(text) if language.romanize else text


def _expand_abbreviations(text: str, language: Language) -> str:
    any_abbreviation, abbreviations = _abbreviation_patterns(language)
    if not any_abbreviation.search(text):
        return text
    # One after the other: a word put in place may end the word boundary that a later one needs.
    for pattern, words in abbreviations:
        text = pattern.sub(words, text)
    return text


@cache
def _abbreviation_patterns(language: Language) -> tuple[re.Pattern, list[tuple[re.Pattern, str]]]:
    form = _ABBREVIATION[language.abbreviation_stop]
    sources = {form.format(re.escape(short)): words for short, words in language.abbreviations.items()}
    patterns = [(re.compile(source, re.IGNORECASE), words) for source, words in sources.items()]
    return re.compile("|".join(sources) or "(?!)", re.IGNORECASE), patterns


@cache
def _symbol_table(language: Language) -> dict[int, str]:
    return str.maketrans({symbol: f" {words} " for symbol, words in language.symbols.items()})

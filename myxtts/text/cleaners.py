"""Text cleaning: from what is written to the words that are said, as the tokenizer's vocabulary spells them.

Order for every language but Japanese, as in the reference: quotes, case, numbers, abbreviations, symbols, white
space, and for Chinese and Korean the romanisation last. Japanese is romanised as it stands.
"""

import re

from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.numbers import expand_numbers
from myxtts.text.romanization import chinese_to_pinyin, hangul_to_latin, japanese_to_romaji
from myxtts.text.symbols import ABBREVIATIONS, ABBREVIATIONS_WITHOUT_STOP, SYMBOLS


def clean_text(text: str, language: str) -> str:
    """Normalises a text for tokenization.

    Args:
        text: Text as written, with numbers, abbreviations and symbols.
        language: Language code, with or without region (`"en"`, `"zh-cn"`).

    Returns:
        Lower-case text in words; Chinese, Korean and Japanese in Latin letters.

    Raises:
        ValueError: The language is not supported.
        ImportError: The text needs an optional package that is not installed; the message says which.
    """
    code = get_language(language).code
    if code == "ja":
        return japanese_to_romaji(text)
    text = text.replace('"', "")
    if code == "tr":
        # Before lower(), which makes two characters of İ.
        text = text.replace("İ", "i")
    elif code == "fa":
        text = _normalize_persian(text)
    elif code == "am":
        text = text.translate(_ETHIOPIC_PUNCTUATION)
    text = text.lower()
    text = expand_numbers(text, code)
    text = _expand_abbreviations(text, code)
    text = " ".join(text.translate(_SYMBOL_TABLES[code]).split())
    if code == "zh":
        return chinese_to_pinyin(text)
    if code == "ko":
        return hangul_to_latin(text)
    return text


def _expand_abbreviations(text: str, language: str) -> str:
    if language not in _ABBREVIATIONS or not _ANY_ABBREVIATION[language].search(text):
        return text
    # One after the other: a word put in place may end the word boundary that a later one needs.
    for pattern, words in _ABBREVIATIONS[language]:
        text = pattern.sub(words, text)
    return text


def _normalize_persian(text: str) -> str:
    text = text.translate(_PERSIAN_LETTERS)
    return _STRAY_ZWNJ.sub("", _ZWNJ_RUN.sub("\u200c", text))


def _abbreviation_pattern(short: str, language: str) -> str:
    if language == "ru":
        return rf"\b{short}\b"
    if language in ABBREVIATIONS_WITHOUT_STOP:
        return rf"(?<!\w){re.escape(short)}\.?(?!\w)"
    return rf"\b{short}\."


_ABBREVIATION_SOURCES = {
    language: [(_abbreviation_pattern(short, language), words) for short, words in table.items()]
    for language, table in ABBREVIATIONS.items()
}
_ABBREVIATIONS = {
    language: [(re.compile(pattern, re.IGNORECASE), words) for pattern, words in sources]
    for language, sources in _ABBREVIATION_SOURCES.items()
}
_ANY_ABBREVIATION = {
    language: re.compile("|".join(pattern for pattern, _ in sources), re.IGNORECASE)
    for language, sources in _ABBREVIATION_SOURCES.items()
}
_SYMBOL_TABLES = {
    language: str.maketrans({symbol: f" {words} " for symbol, words in SYMBOLS.get(language, {}).items()})
    for language in LANGUAGES
}

_ETHIOPIC_PUNCTUATION = str.maketrans(
    {"፡": " ", "።": ".", "፣": ",", "፤": ";", "፥": ":", "፦": ":", "፧": "?", "፨": ".", "፠": " "}
)

# Arabic keyboards' letters for Persian ones; the tatweel only stretches a line; joiners, marks of direction and the
# byte-order mark are not seen. The zero-width non-joiner (U+200C) is spelling and stays.
_PERSIAN_LETTERS = str.maketrans(
    {"ي": "ی", "ى": "ی", "ك": "ک", "ـ": "", "\u00ad": "\u200c"}
    | dict.fromkeys("\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff", "")
)
_ZWNJ_RUN = re.compile("\u200c+")
# A non-joiner that stands between no two letters or marks joins nothing.
_STRAY_ZWNJ = re.compile(r"(?<![\w\u064b-\u0670])\u200c|\u200c(?!\w)")

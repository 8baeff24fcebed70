"""Text cleaning: from what is written to the words that are said, as the tokenizer's vocabulary spells them.

Order for every language but Japanese, as in the reference: quotes, script, case, numbers, abbreviations, symbols,
white space, and for Chinese and Korean the romanization last. Japanese is romanized as written.
"""

import re
import unicodedata
from functools import cache

from myxtts.text.languages import get_language
from myxtts.text.languages.base import Language, table

# What an abbreviation looks like, by `Language.abbreviation_stop`.
_ABBREVIATION = {"always": r"\b{}\.", "optional": r"(?<!\w){}\.?(?!\w)", "never": r"\b{}\b"}
# Characters and the plain ones that sound the same. The empty string drops a mark that is not heard; the plain double
# quote is dropped by `clean_text` itself.
_SAME_SOUND = {
    **dict.fromkeys("‘’‚‛ʼ＇`´′", "'"),
    **dict.fromkeys("“”„‟«»‹›″「」『』《》〈〉¿¡*_~^|\\", ""),
    **dict.fromkeys("–—―‒‐‑−－", "-"),
    **dict.fromkeys("[{［｛（", "("),
    **dict.fromkeys("]}］｝）", ")"),
    **dict.fromkeys("。｡．।॥۔", "."),
    **dict(zip("،，、﹐•·؛；؟？！：／％・", ",,,,,,;;??!:/% ")),
    **{"…": "...", "‥": "..", "ß": "ss"},
}
TYPOGRAPHIC_VARIANTS = {ord(mark): _SAME_SOUND[mark] for mark in "‘’‚‛ʼ＇`´′“”„‟‹›″–—―‒‐‑−－…‥"}
"""By code point, variants that are written as one plain mark when a vocabulary is trained or extended, so that no token
is spent on each way to write a quote. Punctuation of a script (، ؟ 。) is kept: it belongs to the language."""
_PLAIN_LETTERS = table("ł l, ø o, đ d, ð d, ı i, æ ae, œ oe, þ th, Ł L, Ø O, Đ D, Ð D, Æ Ae, Œ Oe, Þ Th")
"""Replacements for letters without a Unicode decomposition."""
_DIGIT_RUN = re.compile("[0-9]+")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f]")


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


def replace_unknown(cleaned: str, language: Language, known: frozenset[str]) -> str:
    """Replaces characters of a cleaned text that are not `known`, those of the vocabulary, by what sounds the same.

    Plain punctuation takes their place, words for a symbol, or nothing if they are silent. Those that have no
    substitute stay.
    """

    def read_digits(match: re.Match) -> str:
        # Digits that the vocabulary has are kept: the reference leaves them, and models have learned to read them.
        digits = match.group()
        return digits if known.issuperset(digits) else f" {language.romanize(language.expand_numbers(digits))} "

    text = _VARIATION_SELECTORS.sub("", unicodedata.normalize("NFC", cleaned))
    if language.romanizes_as_written:
        text = _DIGIT_RUN.sub(read_digits, text)
    characters = (one if one in known else _substitute(one, language, known) for one in text)
    return " ".join("".join(characters).split())


def _substitute(character: str, language: Language, known: frozenset[str]) -> str:
    if character.isspace():
        return " "
    if character in language.symbol_readings:
        return f" {language.symbol_readings[character]} "
    variant = _SAME_SOUND.get(character, character)
    if known.issuperset(variant):
        return variant
    # Punctuation, pictures, letter-like marks and format characters are seen and not heard.
    return "" if unicodedata.category(character).startswith(("P", "So", "Sk", "C")) else character


def plain_letter(letter: str) -> str:
    """A letter without its marks, `é` as `e`; itself where it has none."""
    apart = unicodedata.normalize("NFKD", letter)
    return "".join(_PLAIN_LETTERS.get(one, one) for one in apart if not unicodedata.combining(one)) or letter

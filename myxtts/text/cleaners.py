"""Text normalization: written text to spoken words in the characters of the tokenizer's vocabulary.

The order is the reference's: quotes, script, case, numbers, abbreviations, symbols, white space, and for Chinese and
Korean the romanization. Japanese is romanized as written.
"""

import re
import unicodedata

from myxtts.text.languages import get_language
from myxtts.text.languages.base import Language, table

# Patterns of an abbreviation by `Language.abbreviation_stop`.
_ABBREVIATION = {"always": r"\b{}\.", "optional": r"(?<!\w){}\.?(?!\w)", "never": r"\b{}\b"}
# ASCII replacements that sound the same; silent marks are dropped. `clean_text` drops the plain double quote.
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
"""ASCII replacements by code point of typographic variants, which need no tokens of their own in a new vocabulary.
Punctuation of a script (، ؟ 。) is kept."""
_PLAIN_LETTERS = table("ł l, ø o, đ d, ð d, ı i, æ ae, œ oe, þ th, Ł L, Ø O, Đ D, Ð D, Æ Ae, Œ Oe, Þ Th")
"""Replacements for letters without a Unicode decomposition."""


def clean_text(text: str, language: str) -> str:
    """Normalizes a text as written to lower-case words; Chinese, Korean and Japanese are romanized.

    Raises:
        ValueError: The language is not supported.
        ImportError: The text needs an optional package that is not installed; the message says which.
    """
    language = get_language(language)
    text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)  # lone surrogates, which libraries reject
    if not language.romanizes_as_written:
        text = language.expand_numbers(language.normalize(text.replace('"', "")).lower())
        for short, words in language.abbreviations.items():
            if short in text:
                text = re.sub(_ABBREVIATION[language.abbreviation_stop].format(re.escape(short)), words, text)
        symbols = str.maketrans({symbol: f" {words} " for symbol, words in language.symbols.items()})
        text = " ".join(text.translate(symbols).split())
    return language.romanize(text) if language.romanize else text


def replace_unknown(cleaned: str, language: Language, known: frozenset[str]) -> str:
    """Replaces characters of a cleaned text that are not in the vocabulary, `known`, by others that sound the same.

    Punctuation becomes ASCII, symbols become words, and silent characters are dropped. Characters without a substitute
    are kept.
    """

    def read_digits(match: re.Match) -> str:
        # Known digits are kept, as in the reference: released models have learned to read them.
        digits = match.group()
        return digits if known.issuperset(digits) else f" {language.romanize(language.expand_numbers(digits))} "

    text = re.sub("[\ufe00-\ufe0f]", "", unicodedata.normalize("NFC", cleaned))  # variation selectors
    if language.romanizes_as_written:
        text = re.sub("[0-9]+", read_digits, text)
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
    # Punctuation, pictographs, modifier symbols and format characters are silent.
    return "" if unicodedata.category(character).startswith(("P", "So", "Sk", "C")) else character


def plain_letter(letter: str) -> str:
    """Returns a letter without its marks: `e` for `é`."""
    decomposed = unicodedata.normalize("NFKD", letter)
    return "".join(_PLAIN_LETTERS.get(one, one) for one in decomposed if not unicodedata.combining(one)) or letter

"""Substitutes that sound the same, for characters that a vocabulary does not have."""

import re
import unicodedata

from myxtts.text.languages.base import Language

# Typographic variants and the plain form. The empty string drops a mark that is not heard; the plain double quote is
# dropped by the cleaners themselves.
PUNCTUATION_VARIANTS = {
    **dict.fromkeys("‘’‚‛ʼ＇`´′", "'"),
    **dict.fromkeys("“”„‟«»‹›″「」『』《》〈〉¿¡*_~^|\\", ""),
    **dict.fromkeys("–—―‒‐‑−－", "-"),
    **dict.fromkeys("[{［｛（", "("),
    **dict.fromkeys("]}］｝）", ")"),
    **dict.fromkeys("。｡．।॥۔", "."),
    **dict(zip("،，、﹐•·؛；؟？！：／％・", ",,,,,,;;??!:/% ")),
    **{"…": "...", "‥": ".."},
}

# The variants, by code point, written as one plain mark when a vocabulary is trained or extended, so that no token is
# spent on each way to write a quote. Punctuation of a script (، ؟ 。) is kept: it belongs to the language.
TYPOGRAPHIC_VARIANTS = {ord(mark): PUNCTUATION_VARIANTS[mark] for mark in "‘’‚‛ʼ＇`´′“”„‟‹›″–—―‒‐‑−－…‥"}

_SAME_SOUND = {**PUNCTUATION_VARIANTS, "ß": "ss"}
_PLAIN_LETTERS = dict(zip("łøđðıŁØĐÐ", "loddiLODD")) | {
    "æ": "ae",
    "œ": "oe",
    "þ": "th",
    "Æ": "Ae",
    "Œ": "Oe",
    "Þ": "Th",
}
"""Of letters that Unicode does not take apart."""
_DIGIT_RUN = re.compile("[0-9]+")
# Unicode categories of what is seen and not heard: punctuation, pictures, letter-like marks, format characters.
_SILENT_CATEGORIES = ("P", "So", "Sk", "C")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f]")


def replace_unknown(cleaned: str, language: Language, known: frozenset[str]) -> str:
    """Replaces characters of a cleaned text that are not `known`, those of the vocabulary.

    Plain punctuation takes their place, words for a symbol, or nothing if they are silent. Those that have no
    substitute stay.
    """

    def read_digits(match: re.Match) -> str:
        # Digits that the vocabulary has are kept: the reference leaves them, and models have learned to read them.
        digits = match.group()
        return digits if known.issuperset(digits) else f" {language.romanize(language.expand_numbers(digits))} "

    def replace(character: str) -> str:
        if character in known:
            return character
        if character.isspace():
            return " "
        if character in language.symbol_readings:
            return f" {language.symbol_readings[character]} "
        variant = _SAME_SOUND.get(character, character)
        if known.issuperset(variant):
            return variant
        return "" if unicodedata.category(character).startswith(_SILENT_CATEGORIES) else character

    text = _VARIATION_SELECTORS.sub("", unicodedata.normalize("NFC", cleaned))
    if language.romanizes_as_written:
        text = _DIGIT_RUN.sub(read_digits, text)
    return " ".join("".join(map(replace, text)).split())


def plain_letter(letter: str) -> str:
    """A letter without its marks, `é` as `e`; itself where it has none."""
    apart = unicodedata.normalize("NFKD", letter)
    return "".join(_PLAIN_LETTERS.get(one, one) for one in apart if not unicodedata.combining(one)) or letter

"""Errors of characters and words between a text and what was understood."""

import re
import unicodedata

from rapidfuzz.distance import Levenshtein

from myxtts.text.cleaners import clean_text

_NO_LETTER = re.compile(r"[^\w\s]|_")


def normalized(text: str, language: str) -> str:
    """Text as both sides are compared: numbers in words and abbreviations in full as the model reads them
    (`text.cleaners`), compatible forms of a character as one (NFKC), lower case, letters and digits, single spaces."""
    text = unicodedata.normalize("NFKC", clean_text(text, language)).casefold()
    # Apostrophes join what recognizers write with them or without; other marks separate words.
    return " ".join(_NO_LETTER.sub(" ", re.sub("['’]", "", text)).split())


def character_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Edits of characters (Levenshtein's distance), and how many characters were expected."""
    expected, found = normalized(expected, language), normalized(found, language)
    return Levenshtein.distance(expected, found), len(expected)


def word_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Edits of words, and how many words were expected."""
    expected, found = normalized(expected, language).split(), normalized(found, language).split()
    return Levenshtein.distance(expected, found), len(expected)

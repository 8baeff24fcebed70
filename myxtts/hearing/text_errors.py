"""Character and word errors of a recognized text."""

import re
import unicodedata

from rapidfuzz.distance import Levenshtein

from myxtts.text.cleaners import clean_text

_NO_LETTER = re.compile(r"[^\w\s]|_")


def normalized(text: str, language: str) -> str:
    """Normalizes a text for comparison: cleaned (`text.cleaners`), NFKC, lower case, letters and digits alone."""
    text = unicodedata.normalize("NFKC", clean_text(text, language)).casefold()
    # Recognizers write apostrophes or not, so they are dropped; other marks separate words.
    return " ".join(_NO_LETTER.sub(" ", re.sub("['’]", "", text)).split())


def character_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Returns the Levenshtein distance in characters, and the number of expected characters."""
    expected, found = normalized(expected, language), normalized(found, language)
    return Levenshtein.distance(expected, found), len(expected)


def word_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Returns the Levenshtein distance in words, and the number of expected words."""
    expected, found = normalized(expected, language).split(), normalized(found, language).split()
    return Levenshtein.distance(expected, found), len(expected)

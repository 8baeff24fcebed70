"""How far what was understood is from what should have been said."""

import re
import unicodedata
from collections.abc import Sequence

from myxtts.text.cleaners import clean_text

_NO_LETTER = re.compile(r"[^\w\s]|_")


def normalized(text: str, language: str) -> str:
    """Text as both sides are compared: numbers in words and abbreviations in full as the model reads them
    (`text.cleaners`), compatible forms of a character as one (NFKC), lower case, letters and digits, single spaces."""
    text = unicodedata.normalize("NFKC", clean_text(text, language)).casefold()
    # Apostrophes join what recognizers write with them or without; other marks separate words.
    return " ".join(_NO_LETTER.sub(" ", re.sub("['’]", "", text)).split())


def edits(expected: Sequence, found: Sequence) -> int:
    """Levenshtein's distance: fewest insertions, deletions and replacements of items."""
    row = list(range(len(found) + 1))
    for i, item in enumerate(expected, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (item != other))
    return row[-1]


def character_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Edits of characters, and how many characters were expected."""
    expected, found = normalized(expected, language), normalized(found, language)
    return edits(expected, found), len(expected)


def word_errors(expected: str, found: str, language: str) -> tuple[int, int]:
    """Edits of words, and how many words were expected."""
    expected, found = normalized(expected, language).split(), normalized(found, language).split()
    return edits(expected, found), len(expected)

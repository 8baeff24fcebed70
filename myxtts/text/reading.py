"""Splits a text for a model, and writes it in the characters of a vocabulary: cleaned or as phonemes.

Exported models contain copies of this module and of what it imports, which must not import other parts of MyXTTS.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from myxtts.text.cleaners import plain_letter, replace_unknown, split_text
from myxtts.text.g2p import written
from myxtts.text.languages import get_language

SPACE = "[SPACE]"
"""Token for a space."""


class Reader(NamedTuple):
    """Prepares texts for the tokens of one vocabulary. All methods raise `ValueError` for an unsupported language."""

    characters: frozenset[str]
    """The characters that have a token, and the space."""
    control_tokens: re.Pattern
    """Pattern of the tokens that a text cannot contain, such as `[STOP]`."""
    g2p: tuple[str, ...] = ()
    """Languages to convert to phonemes, from `g2p.g2p_codes`."""

    def read(self, text: str, language: str) -> str:
        """Returns the text to tokenize; unknown characters are replaced if all of them have a replacement.

        Raises `ImportError` if a package for the language is not installed.
        """
        cleaned = written(text, language, self.g2p)
        if "[" in cleaned:
            # A text may contain the name of a control token, which must not become that token.
            cleaned = self.control_tokens.sub(lambda match: f"({match.group()[1:-1]})", cleaned)
        if self.characters.issuperset(cleaned):
            return cleaned
        replaced = replace_unknown(cleaned, get_language(language), self.characters)
        # If unknown characters remain, the ids must be the reference's.
        return replaced if self.characters.issuperset(replaced) else cleaned

    def tagged(self, read: str, language: str) -> str:
        """Returns what a tokenizer gets for a text from `read`: the language's tag first, and `SPACE` for spaces."""
        return (get_language(language).tag + read).replace(" ", SPACE)

    def unknown(self, read: str, language: str) -> list[str]:
        """Returns the characters of a text from `read` that the vocabulary lacks, so that they are not spoken."""
        known = self.characters
        missing = () if known.issuperset(read) else replace_unknown(read, get_language(language), known)
        return sorted(set(missing) - known)

    def with_known_letters(self, text: str, language: str) -> str:
        """Removes diacritics from letters that the vocabulary lacks (`naïve` becomes `naive`), for synthesis only."""
        unknown = set(self.unknown(self.read(text, language), language))

        def known(character):
            plain = plain_letter(character)
            is_better = not unknown.isdisjoint(character.lower()) and self.characters.issuperset(plain.lower())
            return plain if is_better else character

        return "".join(map(known, unicodedata.normalize("NFC", text))) if unknown else text


def split_to_fit(text: str, language: str, longest: int, fits: Callable[[str], bool]) -> list[str]:
    """Splits a text into pieces of at most `longest` characters and the limit of the language, shorter until all fit.

    No word is cut because it is longer than `longest`, the longest text in training.
    """
    limit = min(get_language(language).char_limit, max(longest, *map(len, text.split()), 1))
    pieces = split_text(text, language, limit)
    while limit > 1 and not all(map(fits, pieces)):
        limit = limit * 3 // 4
        pieces = split_text(text, language, limit)
    return pieces

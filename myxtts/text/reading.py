"""Prepares texts for synthesis: splits them into pieces, and replaces characters that a vocabulary lacks.

Exported models contain copies of this module and its imports. These modules must not import the rest of MyXTTS.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

from myxtts.text.cleaners import CLOSING, DIRECTION_MARKS, plain_letter, replace_unknown, split_text
from myxtts.text.g2p import in_words, written
from myxtts.text.languages import get_language

SPACE = "[SPACE]"
"""Token for a space."""
SENTENCE_PAUSE_SECONDS, CLAUSE_PAUSE_SECONDS, CUT_PAUSE_SECONDS, PARAGRAPH_PAUSE_SECONDS = 0.25, 0.12, 0.05, 0.5
"""Pauses in seconds: after a sentence, after a clause (ending in a comma, semicolon, colon or dash), after a cut
between two words, and at a blank line."""
_WORD = re.compile(r"[^\s\u3000-\u9fff\uff00-\uffef]+")  # texts of ideographs and kana have no spaces
_HYPHEN = re.compile(r"(?:[\w\s][-\u2010\u2011]|\u00ad)$")  # at the end of a line, before the rest of a word or clause
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_PAUSES = {
    SENTENCE_PAUSE_SECONDS: re.compile(rf"""(?:[.!?…؟۔।॥。！？｡።፧፨]|፡፡){CLOSING}[」』）]*$"""),
    CLAUSE_PAUSE_SECONDS: re.compile(rf"[,;:،؛、，；：፣፤፥—–][{DIRECTION_MARKS}]*$"),
}
_written = lru_cache(4)(written)  # a text is read to check it, to find its unknown letters and to tokenize it


class Piece(NamedTuple):
    """Text that is synthesized as a unit (whole sentences, or a part of a long sentence), and the pause after it."""

    text: str
    pause_seconds: float


class Reader(NamedTuple):
    """Prepares texts for tokenization with one vocabulary. Methods raise `ValueError` for an unsupported language."""

    characters: frozenset[str]
    """The characters that have a token, and the space."""
    control_tokens: re.Pattern
    """Pattern of control tokens. `read` changes `[STOP]` in a text to `(STOP)`, which is not a token."""
    g2p: tuple[str, ...] = ()
    """Languages to convert to phonemes, as returned by `g2p.g2p_codes`."""

    def read(self, text: str, language: str) -> str:
        """Returns the text to tokenize. Replaces unknown characters only if each of them has a replacement.
        Raises `UserError` if a package for the language is not installed."""
        cleaned = _written(text, language, self.g2p)
        if "[" in cleaned:
            # A text may contain the name of a control token, which must not become that token.
            cleaned = self.control_tokens.sub(lambda match: f"({match.group()[1:-1]})", cleaned)
        if self.characters.issuperset(cleaned):
            return cleaned
        replaced = replace_unknown(cleaned, get_language(language), self.characters)
        # If unknown characters remain, the ids must equal those of Coqui's XTTS.
        return replaced if self.characters.issuperset(replaced) else cleaned

    def tagged(self, read: str, language: str) -> str:
        """Returns the language tag plus `read`, a result of `Reader.read`. Each space is replaced by `SPACE`."""
        return (get_language(language).tag + read).replace(" ", SPACE)

    def unknown(self, read: str, language: str) -> list[str]:
        """Returns the sorted characters of `read` (from `Reader.read`) that have neither a token nor a replacement."""
        known = self.characters
        missing = () if known.issuperset(read) else replace_unknown(read, get_language(language), known)
        return sorted(set(missing) - known)

    def fault(self, read: str, language: str) -> str | None:
        """Returns a message if a text (`read`, from `Reader.read`) has no letters or too few known ones, else None."""
        letters = [character for character in read if character.isalnum()]
        known = sum(letter in self.characters for letter in letters)
        if not known:
            return "no text: no letter or digit that the vocabulary has"
        if 2 * known >= len(letters):
            return None
        name = get_language(language).name
        return f"the vocabulary lacks {len(letters) - known} of its {len(letters)} letters in {name}"

    def with_known_letters(self, text: str, language: str) -> str:
        """Returns the text without diacritics on letters that the vocabulary lacks: `naïve` becomes `naive`."""
        if not (unknown := set(self.unknown(self.read(text, language), language))):
            return text
        text = unicodedata.normalize("NFC", text)
        plain = {letter: plain_letter(letter) for letter in text if not unknown.isdisjoint(letter.lower())}
        return text.translate({ord(one): to for one, to in plain.items() if self.characters.issuperset(to.lower())})

    def spoken(self, text: str, language: str) -> str:
        """Returns the text to tokenize for synthesis: applies `with_known_letters`, then `read`."""
        return self.read(self.with_known_letters(text, language), language)

    def pieces(self, text: str, language: str, longest: int, fits: Callable[[str], bool]) -> list[Piece]:
        """Splits a text into pieces for synthesis: whole sentences, or parts of a long sentence.

        A piece has at most `longest` characters, both as written and with notation expanded to words. If a
        paragraph contains a longer word, the limit for this paragraph is the length of the word. No limit exceeds
        `Language.char_limit`. Pieces for which `fits(spoken(piece))` is False are split further. Pieces that the model
        cannot speak (see `fault`) are dropped. Lines below 40 characters (a quarter of a smaller `char_limit`) end a
        sentence, as in a poem or a list; longer lines, and lines that end in a mark or hyphen, are joined as in prose.
        """
        read, entry = cache(lambda piece: self.spoken(piece, language)), get_language(language)
        shortest = min(40, entry.char_limit // 4)  # lines of hard-wrapped prose have more characters
        ends = lambda one: 0 < len(one) < shortest and not any(end.search(one) for end in (_HYPHEN, *_PAUSES.values()))
        longest_word = lambda part: max(map(len, _WORD.findall(part)), default=1)

        def shortened(part: str, limit: int) -> list[str]:
            is_short = entry.romanize or len(in_words(part, language, self.g2p)) <= limit  # romanized text is longer
            is_fitting = fits(read(part))
            shorter = max(len(part) * 3 // 4, longest_word(part) * is_fitting)
            if is_short and is_fitting or not 0 < shorter < len(part):
                return [part]
            return [one for half in split_text(part, language, shorter) for one in shortened(half, limit)]

        pieces: list[Piece] = []
        for paragraph in _PARAGRAPH.split(text):
            limit, before = min(entry.char_limit, max(longest, longest_word(paragraph))), PARAGRAPH_PAUSE_SECONDS
            whole = paragraph.replace("\f", " ").strip()
            for line in re.sub("(?m)^.*\n", lambda one: one[0] + "\f" * ends(one[0].strip()), whole).split("\f"):
                if pieces:
                    pieces[-1] = pieces[-1]._replace(pause_seconds=max(before, pieces[-1].pause_seconds))
                before = SENTENCE_PAUSE_SECONDS
                for part in (one for whole in split_text(line, language, limit) for one in shortened(whole, limit)):
                    pause = next((pause for pause, ending in _PAUSES.items() if ending.search(part)), CUT_PAUSE_SECONDS)
                    if not self.fault(read(part), language):
                        pieces.append(Piece(part, pause))
        return pieces

"""Splitting of text into sentences, and into pieces short enough to be spoken in one go."""

import re

from myxtts.text.languages import get_language
from myxtts.text.languages.base import Language

# End marks with closing quotes and brackets. Full-width and Ethiopic stops need no space after them.
_SENTENCE_END = re.compile(r"""[.!?…؟۔।॥]+["'”’»)\]]*(?=\s)|[。！？｡።፧፨]+["'”’»」』）)\]]*""")
_LAST_WORD = re.compile(r"[^\s(\"'“‘«]+$")
_INITIAL = re.compile(r"(?:^|\.)[^\W\d_]\.$")
_ORDINAL = re.compile(r"^[0-9]+\.$")
_CLAUSE_END = re.compile(r"[,;:،؛、，；：፣፤፥—–](?=\s|[^\x00-\x7f])|[—–]")


def split_sentences(text: str, language: str) -> list[str]:
    """Splits a text as written into sentences at their end marks; only white space is lost.

    A full stop after an abbreviation of the language, an initial (`J. R. R.`) or, where ordinals are written so, a
    number does not end a sentence.

    Raises:
        ValueError: The language is not supported.
    """
    language = get_language(language)
    sentences = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if match.group() != "." or not _is_inside_sentence(text[start : match.end()], language):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    return [sentence for sentence in (*sentences, text[start:].strip()) if sentence]


def split_text(text: str, language: str, max_chars: int | None = None) -> list[str]:
    """Splits a text as written into pieces of whole sentences that can be spoken in one go.

    A piece has as many sentences as fit into `max_chars` characters, by default the language's limit. A longer sentence
    is cut at the last clause mark in its second half, else at a space, else (Chinese and Japanese) anywhere. No piece
    is empty.

    Raises:
        ValueError: The language is not supported, or the limit is below 1.
    """
    limit = get_language(language).char_limit if max_chars is None else max_chars
    if limit < 1:
        raise ValueError(f"max_chars must be at least 1. Received: {limit}.")
    pieces: list[str] = []
    for sentence in split_sentences(text, language):
        for part in _wrap(sentence, limit):
            if pieces and len(pieces[-1]) + 1 + len(part) <= limit:
                pieces[-1] += " " + part
            else:
                pieces.append(part)
    return pieces


def _is_inside_sentence(sentence: str, language: Language) -> bool:
    """Tells whether the full stop at the end belongs to the word before it."""
    word = _LAST_WORD.search(sentence).group()
    is_ordinal = language.ordinal_stop and _ORDINAL.match(word)
    return bool(is_ordinal or _INITIAL.search(word) or word[:-1].lower() in language.abbreviations)


def _wrap(sentence: str, limit: int) -> list[str]:
    parts = []
    while len(sentence) > limit:
        clause_ends = [match.end() for match in _CLAUSE_END.finditer(sentence, limit // 2, limit)]
        # The search includes the space right after the last character that fits; -1 means no space.
        cut = clause_ends[-1] if clause_ends else sentence.rfind(" ", 1, limit + 1)
        cut = cut if cut > 0 else limit
        parts.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [part for part in (*parts, sentence) if part]

"""Cleaning, which turns a written text into lower-case words, and splitting of texts into sentences and pieces.

Cleaning follows the order of Coqui's XTTS: quotes, script, case, numbers, abbreviations, symbols, white space,
then romanization of Chinese and Korean. Japanese is romanized without the other steps.
"""

import re
import unicodedata

from myxtts.text.languages import get_language
from myxtts.text.languages.base import MARKS, Language, table

# Pattern of an abbreviation for each value of `Language.abbreviation_stop`.
_ABBREVIATION = {"always": r"\b{}\.", "optional": r"(?<!\w){}\.?(?!\w)", "never": r"\b{}\b"}
SAME_SOUND = {variant: mark.replace("silent", "") for mark, row in MARKS.items() for variant in row}
"""Maps a character to ASCII text with the same pronunciation, or to an empty string if the character is silent."""
TYPOGRAPHIC_VARIANTS = {ord(mark): SAME_SOUND[mark] for mark in "‘’‚‛ʼ＇`´′“”„‟‹›″–—―‒‐‑−－…‥"}
"""Translation table from typographic variants to ASCII, so that a new vocabulary needs no tokens for the variants.
Punctuation that belongs to a script (، ؟ 。) is not in the table."""
PLAIN_LETTERS = table("ł l, ø o, đ d, ð d, ı i, æ ae, œ oe, þ th, Ł L, Ø O, Đ D, Ð D, Æ Ae, Œ Oe, Þ Th")
"""Replacements for letters with diacritics that Unicode does not decompose, and for ligatures."""
DIRECTION_MARKS = "\u200e\u200f\u202c\u2069"  # invisible, after the last character of right-to-left text
_FRENCH = r"[ \u00a0\u202f]»(?=\s|$|[.,;:!?…)\]])"  # closing quotes after a space
# After an end mark. Full-width and Ethiopic stops need no space after them. Python 3.11.2 misreads `(?:…)?+`.
CLOSING = rf"""(?:{_FRENCH}|(?!{_FRENCH}))["'”’»)\]{DIRECTION_MARKS}]*"""
_SENTENCE_END = re.compile(rf"""(?<![.!?…؟۔।॥])[.!?…؟۔।॥]++{CLOSING}(?=\s)|(?:[。！？｡።፧፨]|፡፡)+["'”’»」』）)\]]*""")
_JOINED = re.compile(r"(?<=\w)\((\w+)\)|(?<=\w)[:/|\\](?=\w)|(?<=[^\W_])_+(?=[^\W_])|(?<!\S)[:;=]-?[()]+(?!\S)")
_LAST_WORD = re.compile(r"[^\s(\"'“‘«]+$")
_INITIAL = re.compile(r"(?:^|\.)(?!(?<=[apAP]\.)[mM])[^\W\d_]\.$")  # but the m of `5 p.m.` may end a sentence
_CLAUSE_END = re.compile(r"[,;:،؛、，；：፣፤፥](?=\s|[^\x00-\x7f])(?!\d)|[—–](?! ?\d)")  # not in 1939–45
_GAP = re.compile(r"(?<![\d.]) (?![\d$€£%])")  # a space that is not within notation, such as `Dr. Vale` or `3 May`


def clean_text(text: str, language: str) -> str:
    """Converts written text, with its numbers and symbols, to lower-case words; romanizes Chinese, Korean, Japanese.

    Raises `ValueError` if the language is not supported, and `UserError` if a package for the language is missing.
    """
    language = get_language(language)
    text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)  # libraries reject lone surrogates
    if not language.romanizes_as_written:
        text = language.expand_numbers(language.normalize(text.replace('"', "")).lower())
        pattern = _ABBREVIATION.get(language.abbreviation_stop, language.abbreviation_stop)
        for short, words in language.abbreviations.items():
            if short in text:
                text = re.sub(pattern.format(re.escape(short)), words, text)
        symbols = str.maketrans({symbol: f" {words} " for symbol, words in language.symbols.items()})
        text = " ".join(text.translate(symbols).split())
    return language.romanize(text) if language.romanize else text


def replace_unknown(cleaned: str, language: Language, known: frozenset[str]) -> str:
    """Replaces those characters of a cleaned text that are not in `known`, the set of a vocabulary's characters.

    Punctuation becomes ASCII, symbols become words, and silent characters are removed. Colons, semicolons and brackets
    become commas, because commas also make a pause. Unknown characters of other kinds are kept.
    """
    comma = "،" if "ARABIC" in language.scripts and "،" in known else "," if "," in known else ""
    text = " ".join(re.sub("[\ufe00-\ufe0f]", "", unicodedata.normalize("NFC", cleaned)).split())  # variation selectors
    if language.romanizes_as_written:  # released models have learned to read the digits of their vocabulary
        spelled = lambda digits: f" {language.romanize(language.expand_numbers(digits))} "
        text = re.sub("[0-9]+", lambda match: match[0] if known.issuperset(match[0]) else spelled(match[0]), text)
    joined = lambda match: match[0] if known.issuperset({*match[0]} & {*"():/|_\\"}) else match[1] or " "
    text = _JOINED.sub(joined, text)  # file(s), 5:30, and/or, my_file, :)
    text = "".join(one if one in known else _substitute(one, language, known) for one in text).strip()
    pause = lambda match: f"{match[1] or match[2] or comma} "
    return " ".join(re.sub(r" ?([,.!?،؟]?) ?\n[\n ]*([,.!?،؟]?)", pause, text).split())


def _substitute(character: str, language: Language, known: frozenset[str]) -> str:
    if character in language.symbol_readings:
        return f" {language.symbol_readings[character]} "
    variant = SAME_SOUND.get(character, character)
    if known.issuperset(variant):
        return variant
    if variant in ":;()":
        return "\n"  # a pause
    # Other punctuation, pictographs, modifier symbols and format characters are silent.
    return "" if unicodedata.category(character).startswith(("P", "So", "Sk", "C")) else character


def plain_letter(letter: str) -> str:
    """Removes the diacritics of a letter: `é` becomes `e`."""
    decomposed = unicodedata.normalize("NFKD", letter)
    return "".join(PLAIN_LETTERS.get(one, one) for one in decomposed if not unicodedata.combining(one)) or letter


def split_sentences(text: str, language: str) -> list[str]:
    """Splits written text into sentences at their end marks, and strips white space.

    A full stop does not end a sentence after an abbreviation, after an initial (`J. R. R.`) or, in languages that write
    ordinals with a full stop, after a number. In a sentence that begins with a capital, a full stop before a lower-case
    letter does not end the sentence. Raises `ValueError` if the language is not supported.
    """
    language = get_language(language)
    sentences, start = [], 0
    pattern = _ABBREVIATION.get(language.abbreviation_stop, language.abbreviation_stop)
    shared = {match.end() for match in re.finditer(language.shared_stop, text)} if language.shared_stop else set()
    for match in _SENTENCE_END.finditer(text):
        if match.group().rstrip(DIRECTION_MARKS) == "." and match.end() not in shared:
            # Limits of 200 characters keep the search linear if many full stops do not end the sentence.
            word = _LAST_WORD.search(text, max(start, match.start() - 200), match.start() + 1).group()
            follows = text[match.end() : match.end() + 2].strip()
            goes_on = follows.islower() and text[start : start + 200].lstrip()[:1].isupper()
            known = {word[:-1].lower(), word[:-1].lower() + "#" * follows.isdigit()}
            known &= language.abbreviations.keys() | language.within_sentences
            parts = [short for short in language.abbreviations if short in word]
            inflected = (re.search(pattern.format(re.escape(short)) + "$", word) for short in parts)
            is_ordinal = language.ordinal_stop and re.fullmatch(r"[0-9]+\.", word)
            if goes_on or known or is_ordinal or _INITIAL.search(word) or any(inflected):
                continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    return [sentence for sentence in (*sentences, text[start:].strip()) if sentence]


def split_text(text: str, language: str, max_chars: int | None = None) -> list[str]:
    """Splits written text into non-empty pieces of whole sentences, each short enough for the model.

    A piece has as many sentences as fit into `max_chars` characters (default: `Language.char_limit`). A longer sentence
    is cut within its first `max_chars` characters: after the last clause mark in the second half of these characters,
    else at the last space in this half that is not inside notation such as `3 May`, else at the last space, else after
    `max_chars` characters. Raises `ValueError` for an unsupported language or if `max_chars` is below 1.
    """
    limit = get_language(language).char_limit if max_chars is None else max_chars
    if limit < 1:
        raise ValueError(f"max_chars must be at least 1. Received: {limit}.")
    pieces: list[str] = []
    text = re.sub(r"[^\S\u00a0\u202f]", " ", text)  # not the spaces at which a line must not be broken
    for sentence in split_sentences(text, language):
        while sentence:
            cut = len(sentence)
            if cut > limit:  # the two characters after the limit decide whether the last place counts
                clauses = (match.end() for match in _CLAUSE_END.finditer(sentence, limit // 2, limit + 2))
                gaps = (gap.start() for gap in _GAP.finditer(sentence, limit // 2, limit + 2))
                cuts = [cut for cut in clauses if cut <= limit] or [cut for cut in gaps if cut <= limit]
                cuts = cuts or [sentence.rfind(" ", 1, limit + 1)]
                cut = cuts[-1] if cuts[-1] > 0 else limit
            part, sentence = sentence[:cut].strip(), sentence[cut:].strip()
            if pieces and len(pieces[-1]) + 1 + len(part) <= limit:
                pieces[-1] += " " + part
            else:
                pieces.append(part)
    return pieces

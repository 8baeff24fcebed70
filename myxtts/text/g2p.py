"""Grapheme-to-phoneme conversion by rules of a language, of an installed package, or by eSpeak NG.

A package adds or replaces rules by an entry point in the group `myxtts.g2p` with the language's code as its name: a
function of a cleaned text and the alphabet, `"latin"` or `"ipa"`, that returns the phonemes. `ESPEAK` among the codes
of a tokenizer's `g2p` uses eSpeak NG for languages without rules.
"""

import string
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

from myxtts.text import espeak
from myxtts.text.cleaners import clean_text
from myxtts.text.languages import LANGUAGES, get_language

ESPEAK = "espeak"
"""Code for all languages without rules whose text is in their own letters."""
_ESPEAK_VOICES = {"en": "en-us", "pt": "pt-br"}
"""Names of languages in eSpeak NG where they differ from the code."""


def text_to_phonemes(text: str, language: str, alphabet: Literal["latin", "ipa"] = "latin") -> str:
    """Converts a text to phonemes by rules: `"sälam"` for ሰላም.

    The text is cleaned first (`cleaners.clean_text`). Punctuation and words in other scripts are kept; consonant length
    is not marked. `XTTSTokenizer.with_g2p` tokenizes the result.

    Args:
        alphabet: `"latin"`, whose letters are all in the vocabulary of released XTTS checkpoints (for Amharic `ä` for
            ə, `ı` for ɨ, `ñ`, and `q t' p' ts' ch'` for the ejectives), or `"ipa"`.

    Raises `ValueError` if the alphabet is unknown, or there are no rules for the language.
    """
    if alphabet not in ("latin", "ipa"):
        raise ValueError(f'alphabet must be "latin" or "ipa". Received: {alphabet!r}.')
    return _find_rules(language)(clean_text(text, language), alphabet)


def _find_rules(language: str) -> Callable[[str, str], str]:
    entry = get_language(language)
    if hook := _hooks().get(entry.code):
        try:
            return hook.load()
        except Exception as error:  # of a foreign package
            raise ValueError(
                f"The rules {hook.value} for the sounds of {entry.name} cannot be loaded: {error}."
            ) from None
    if entry.phonemize is None:
        known = ", ".join(sorted({*(code for code, one in LANGUAGES.items() if one.phonemize), *_hooks()}))
        raise ValueError(f"There are no rules for the sounds of {language!r}. Languages that have them: {known}.")
    return entry.phonemize


def g2p_codes(languages: Iterable[str]) -> tuple[str, ...]:
    """Returns sorted codes for codes or names of languages with rules, and `ESPEAK`.

    Raises `ValueError` if a language has no rules, or they cannot be loaded.
    """
    codes = set()
    for language in languages:
        if language == ESPEAK:
            espeak.require_espeak()
            codes.add(ESPEAK)
        else:
            _find_rules(language)
            codes.add(get_language(language).code)
    return tuple(sorted(codes))


def written(text: str, language: str, g2p: Iterable[str] = ()) -> str:
    """Returns the text that is tokenized: cleaned, or as phonemes if `g2p`, from `g2p_codes`, covers the language."""
    if get_language(language).code in g2p:
        return text_to_phonemes(text, language)
    cleaned, voice = clean_text(text, language), espeak_voice(language, g2p)
    return espeak.text_to_ipa(cleaned, voice) if voice else cleaned


def alphabet(language: str, g2p: Iterable[str] = ()) -> set[str]:
    """Returns the characters of a language's `written` texts; with eSpeak NG, nearly all of its phonemes."""
    entry = get_language(language)
    is_latin = entry.scripts[0] == "LATIN" or entry.romanize
    letters = [*(string.ascii_lowercase if is_latin else ""), *entry.letters, *",.?!"]
    if entry.romanize:
        return set(letters)
    if espeak_voice(language, g2p):  # names of letters lack many sounds; these made-up words have nearly all
        known = [letter for letter in letters if letter.isalpha()]
        ends = lambda last: [end for end in ("", known[0], last, "r", "g") if not end or end in known]
        letters += [first + last + end for first in known for last in known for end in ends(last)]
        letters += [known[0] + first + last + known[0] for first in known for last in known]
    return set(written(" ".join(letters), language, g2p)) - {" "}


def espeak_voice(language: str, g2p: Iterable[str]) -> str | None:
    """Returns eSpeak NG's name of the language if `g2p`, from `g2p_codes`, leaves it to eSpeak NG, else None."""
    entry = get_language(language)
    # Romanized text is not in the language's own letters.
    has_rules = entry.phonemize or entry.romanize or entry.code in _hooks() or entry.code in g2p
    return None if has_rules or ESPEAK not in g2p else _ESPEAK_VOICES.get(entry.code, entry.code)


@cache
def _hooks():
    return {entry.name: entry for entry in entry_points(group="myxtts.g2p")}

"""Letters to sounds, for languages that have rules for it: `Language.phonemize`, or those of an installed package.

A package adds rules, or replaces ours, by an entry point in the group `myxtts.g2p` with the language's code as its
name: a function that takes a cleaned text and the alphabet, `"latin"` or `"ipa"`, and returns the text as it sounds.
Languages without rules can be left to eSpeak NG: `ESPEAK` among the codes of a tokenizer's `g2p`.
"""

from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

from myxtts.text import espeak
from myxtts.text.cleaners import clean_text
from myxtts.text.languages import LANGUAGES, get_language

ESPEAK = "espeak"
"""Stands for all languages in their own letters that are not named and have no rules."""
_ESPEAK_VOICES = {"en": "en-us", "pt": "pt-br"}
"""eSpeak NG's name of a language, where it is not the code."""


def text_to_phonemes(text: str, language: str, alphabet: Literal["latin", "ipa"] = "latin") -> str:
    """Writes a text as it sounds, after cleaning it (`cleaners.clean_text`): `"sälam"` for ሰላም. Amharic has rules.

    Consonant length is not marked. Punctuation and words in other scripts are kept. The result can be tokenized as
    its language instead of the written text: `XTTSTokenizer.with_g2p`.

    Args:
        alphabet: `"latin"`, whose letters are all in the vocabulary of released XTTS checkpoints (for Amharic `ä` for
            ə, `ı` for ɨ, `ñ`, and `q t' p' ts' ch'` for the ejectives), or `"ipa"`.

    Raises:
        ValueError: The alphabet is unknown, or there are no rules for the language.
    """
    if alphabet not in ("latin", "ipa"):
        raise ValueError(f'alphabet must be "latin" or "ipa". Received: {alphabet!r}.')
    return _find_rules(language)(clean_text(text, language), alphabet)


def _find_rules(language: str) -> Callable[[str, str], str]:
    entry = get_language(language)
    if hook := _hooks().get(entry.code):
        try:
            return hook.load()
        except Exception as error:  # somebody else's package
            rules = f"The rules {hook.value} for the sounds of {entry.name}"
            raise ValueError(f"{rules} cannot be loaded: {error}.") from None
    if entry.phonemize is None:
        known = ", ".join(sorted({*(code for code, one in LANGUAGES.items() if one.phonemize), *_hooks()}))
        raise ValueError(f"There are no rules for the sounds of {language!r}. Languages that have them: {known}.")
    return entry.phonemize


def g2p_codes(languages: Iterable[str]) -> tuple[str, ...]:
    """Codes of languages to be written as they sound, or `ESPEAK`, sorted.

    Raises:
        ValueError: There are no rules for one of them, or they cannot be loaded.
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
    """A text as its tokens spell it: cleaned, or as it sounds where `g2p`, from `g2p_codes`, names the language."""
    if get_language(language).code in g2p:
        return text_to_phonemes(text, language)
    cleaned, voice = clean_text(text, language), espeak_voice(language, g2p)
    return espeak.text_to_ipa(cleaned, voice) if voice else cleaned


def alphabet(language: str, g2p: Iterable[str] = ()) -> set[str]:
    """All letters or, where it is written as it sounds, about all sounds that `written` spells a language with."""
    entry = get_language(language)
    if entry.romanize:
        return set(entry.alphabet)
    letters = list(entry.alphabet)
    if espeak_voice(language, g2p):  # the names of letters lack many sounds, and these made-up words hardly any
        known = [letter for letter in letters if letter.isalpha()]
        ends = lambda last: [end for end in ("", known[0], last, "r", "g") if not end or end in known]
        letters += [first + last + end for first in known for last in known for end in ends(last)]
        letters += [known[0] + first + last + known[0] for first in known for last in known]
    return set(written(" ".join(letters), language, g2p)) - {" "}


def espeak_voice(language: str, g2p: Iterable[str]) -> str | None:
    """eSpeak NG's name of a language whose text it reads, where `g2p`, from `g2p_codes`, leaves the language to it."""
    entry = get_language(language)
    # What is romanized is not in the language's own letters.
    has_rules = entry.phonemize or entry.romanize or entry.code in _hooks() or entry.code in g2p
    return None if has_rules or ESPEAK not in g2p else _ESPEAK_VOICES.get(entry.code, entry.code)


@cache
def _hooks():
    return {entry.name: entry for entry in entry_points(group="myxtts.g2p")}

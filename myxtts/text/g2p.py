"""Grapheme-to-phoneme conversion by the rules of a language, by an installed package, or by eSpeak NG.

A package can provide rules for a language, which replace built-in rules. It needs an entry point in `myxtts.g2p` with
the language's code as its name. The entry point is a function that takes cleaned text and an alphabet (`"latin"` or
`"ipa"`) and returns phonemes. If a tokenizer's `g2p` contains `ESPEAK`, eSpeak NG converts languages without rules.
"""

import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

from myxtts.text import espeak
from myxtts.text.cleaners import clean_text
from myxtts.text.languages import LANGUAGES, get_language

ESPEAK = "espeak"
"""Entry of a `g2p` setting that turns on eSpeak NG for all languages that have no rules and are not romanized."""
_ESPEAK_VOICES = {"en": "en-us", "pt": "pt-br"}
"""Names of languages in eSpeak NG, by language code, if the name in eSpeak NG differs from the code."""
_ESPEAK_SPELLS = re.compile("[\u2160-\u217f\u2460-\u24ff\u3371-\u33df\ufb00-\ufb06\uff10-\uff5a\U0001d400-\U0001d7ff]+")


def text_to_phonemes(text: str, language: str, alphabet: Literal["latin", "ipa"] = "latin") -> str:
    """Cleans a text with `cleaners.clean_text` and converts it to phonemes by rules: ሰላም becomes `"sälam"`.

    Punctuation and words in other scripts are kept; consonant length is not marked. `alphabet` is `"ipa"` or `"latin"`.
    `"latin"` uses only letters in the vocabulary of released XTTS checkpoints. In Amharic, for example, `ä` is ə, `ı`
    is ɨ, `ñ` is ɲ, and `q t' p' ts' ch'` are the ejectives.

    Raises `ValueError` if the alphabet is unknown or the language has no rules.
    """
    if alphabet not in ("latin", "ipa"):
        raise ValueError(f'alphabet must be "latin" or "ipa". Received: {alphabet!r}.')
    return _find_rules(language)(clean_text(text, language), alphabet)


def _find_rules(language: str) -> Callable[[str, str], str]:
    entry = get_language(language)
    if hook := _hooks().get(entry.code):
        try:
            return hook.load()
        except Exception as error:  # the package is not ours
            raise ValueError(f"The phoneme rules {hook.value} for {entry.name} cannot be loaded: {error}.") from None
    if entry.phonemize is None:
        known = ", ".join(sorted({*(code for code, one in LANGUAGES.items() if one.phonemize), *_hooks()}))
        raise ValueError(f"There are no phoneme rules for {language!r}. Languages with rules: {known}.")
    return entry.phonemize


def g2p_codes(languages: Iterable[str]) -> tuple[str, ...]:
    """Returns the sorted codes of the languages in a `g2p` setting, and `ESPEAK` among them if the setting contains it.

    Raises `ValueError` if a language has no rules, the rules cannot be loaded, or eSpeak NG is not installed.
    """
    codes = set()
    for language in languages:
        if language == ESPEAK:
            with espeak.LOCK:
                espeak.load_library()
            codes.add(ESPEAK)
        else:
            _find_rules(language)
            codes.add(get_language(language).code)
    return tuple(sorted(codes))


def in_words(text: str, language: str, g2p: Iterable[str] = ()) -> str:
    """Cleans a text and spells out notation such as numbers. This is the first step of `written`."""
    if ESPEAK in g2p and (entry := get_language(language)).code not in g2p:  # also if the language is romanized
        text = unicodedata.normalize("NFC", text)  # eSpeak NG ignores accents that are separate characters
        text = _ESPEAK_SPELLS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)  # ﬁ, Ⅷ, ㎏
        text = entry.write_out(text)
    return clean_text(text, language)


def written(text: str, language: str, g2p: Iterable[str] = ()) -> str:
    """Returns the text to tokenize: phonemes if `g2p` (from `g2p_codes`) selects the language, else cleaned text."""
    entry, voice, words = get_language(language), espeak_voice(language, g2p), in_words(text, language, g2p)
    if entry.code in g2p:
        return _find_rules(language)(words, "latin")
    return espeak.text_to_ipa(words, voice, entry.scripts) if voice else words


def alphabet(language: str, g2p: Iterable[str] = ()) -> set[str]:
    """Returns all characters that `written` can output for a language; with eSpeak NG, a few may be missing."""
    entry = get_language(language)
    letters = [*string.ascii_lowercase * (entry.scripts[0] == "LATIN" or bool(entry.romanize)), *entry.letters, *",.?!"]
    if entry.romanize:
        return set(letters)
    if espeak_voice(language, g2p):  # the names of letters lack many phonemes; these made-up words have nearly all
        known = [letter for letter in letters if letter.isalpha()]
        ends = lambda last: [end for end in ("", known[0], last, "r", "g") if not end or end in known]
        letters += [first + last + end for first in known for last in known for end in ends(last)]
        letters += [known[0] + first + last + known[0] for first in known for last in known]
    return set(written(" ".join(letters), language, g2p)) - {" "}


def espeak_voice(language: str, g2p: Iterable[str]) -> str | None:
    """Returns eSpeak NG's name of a language, or None if `g2p` (from `g2p_codes`) does not select eSpeak NG for it."""
    entry = get_language(language)
    # eSpeak NG cannot read romanized text.
    has_rules = entry.phonemize or entry.romanize or entry.code in g2p
    return None if has_rules or ESPEAK not in g2p else _ESPEAK_VOICES.get(entry.code, entry.code)


@cache
def _hooks():
    return {entry.name: entry for entry in entry_points(group="myxtts.g2p")}

"""Which language a text can be in, as far as its letters tell."""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache

from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.languages.base import Language

_MOST_LETTERS = 100_000
_FEW_LETTERS = 300
"""In fewer letters than these a language may well do without those that it alone writes."""
_FOREIGN_SHARE = 0.3
"""Names and quotations in another script are at most this share of a text."""
_OWN_SHARE = 0.005


def guess_language(texts: Iterable[str], language: str, among: Collection[str] | None = None) -> tuple[str, str]:
    """The language of texts that are said to be in `language`: another one where only that can be.

    Args:
        among: Codes of the languages that come first, such as those of a model; None for all.

    Returns:
        A code, and a sentence for people where there is something to say: that the language is another, or that it
        must be, and cannot be told. Else the sentence is empty, also for a language that is not supported.
    """
    try:
        said = get_language(language)
    except ValueError:
        return language, ""
    letters = _count_letters(texts)
    if not letters or _share(letters, said) >= _FOREIGN_SHARE:
        return language, ""
    fitting = [one for one in LANGUAGES.values() if _fits(letters, one)]
    fitting = [one for one in fitting if among is None or one.code in among] or fitting
    script = Counter({_script(letter): count for letter, count in letters.items()}).most_common(1)[0][0].capitalize()
    if len(fitting) == 1:
        told = f"{fitting[0].code} ({fitting[0].name})"
        return fitting[0].code, f"The text is in {script} letters: it is read as {told}, not as {language}."
    codes = " or ".join(one.code for one in fitting)
    way_out = f"Give --language {codes}." if fitting else "No supported language is."
    return language, f"The text is in {script} letters, and {said.name} is not written in them. {way_out}"


def _count_letters(texts):
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(filter(str.isalpha, text))
        if letters.total() > _MOST_LETTERS:
            break
    return letters


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _share(letters, language: Language) -> float:
    return sum(count for letter, count in letters.items() if _script(letter) in language.scripts) / letters.total()


def _fits(letters, language):
    main, own = (
        sum(count for letter, count in letters.items() if rule(letter)) / letters.total()
        for rule in (lambda letter: _script(letter) == language.scripts[0], language.own_letters.__contains__)
    )
    rivals = [one for one in LANGUAGES.values() if one.scripts == language.scripts and one is not language]
    theirs = sum(letters[letter] for one in rivals for letter in one.own_letters) / letters.total()
    lacks_own = language.own_letters and own < _OWN_SHARE and letters.total() > _FEW_LETTERS
    covered = _share(letters, language) >= 1 - _FOREIGN_SHARE
    return covered and main >= _OWN_SHARE and theirs < _OWN_SHARE and not lacks_own

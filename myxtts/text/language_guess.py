"""Detection of a text's language: by its letters, where they rule the expected one out, and by its words."""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache

from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.languages.base import Language

_MOST_LETTERS = 100_000
_FEW_LETTERS = 300
"""A text with fewer letters may lack those that only its language has."""
_FOREIGN_SHARE = 0.3
"""Largest share of names and quotations in another script."""
_OWN_SHARE = 0.005
_MOST_TEXTS, _OF_A_CORPUS, _OF_A_SENTENCE = 500, (120, 0.99), (8, 0.9)
"""Fewest letters and lowest probability to identify a language. Of 255 sentences in the base model's English, German,
French and Spanish, 250 are identified so, and none wrongly; the others are read as English."""


def guess_language(texts: Iterable[str], language: str, among: Collection[str] | None = None) -> tuple[str, str]:
    """Replaces the expected language of texts if their letters rule it out and only one other language fits.

    Returns a code, and a message for users if the letters rule `language` out. It is `""` otherwise, and for a language
    that is not supported. `among` are the codes to prefer, such as those of a model; None for all.
    """
    try:
        expected = get_language(language)
    except ValueError:
        return language, ""
    letters = Counter(itertools.islice(filter(str.isalpha, itertools.chain.from_iterable(texts)), _MOST_LETTERS))
    if not letters or _share(letters, expected.scripts) >= _FOREIGN_SHARE:
        return language, ""
    fitting = [one for one in LANGUAGES.values() if _fits(letters, one)]
    fitting = [one for one in fitting if among is None or one.code in among] or fitting
    found = f"The text is in {_script(letters.most_common(1)[0][0]).capitalize()} letters"
    if len(fitting) == 1:
        (only,) = fitting
        return only.code, f"{found}: it is read as {only.code} ({only.name}), not as {language}."
    hint = f"Give --language {' or '.join(one.code for one in fitting)}." if fitting else "No supported language is."
    return language, f"{found}, and {expected.name} is not written in them. {hint}"


def identify_language(
    texts: Iterable[str], among: Collection[str] = LANGUAGES, least: tuple[int, float] = _OF_A_CORPUS
) -> str | None:
    """Identifies the language of texts by their words, with langid (Lui and Baldwin 2012).

    Returns a code of `among`, or None if the texts are too short or the language is not certain: `least` has the fewest
    letters and the lowest probability.
    """
    text = " ".join(dict.fromkeys(itertools.islice(texts, _MOST_TEXTS)))[:_MOST_LETTERS]
    if sum(map(str.isalpha, text)) < least[0]:
        return None
    codes = {code.partition("-")[0]: code for code in LANGUAGES if code in among}
    found = {codes[code]: probability for code, probability in _identifier().rank(text) if code in codes}
    best = max(found, key=found.get, default=None)
    return best if best and found[best] > least[1] * sum(found.values()) else None


@cache
def _identifier():
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_modelpath(MODEL_DIR / MODEL_FILE, norm_probs=True)  # takes 0.6 s
    identifier.set_languages({code.partition("-")[0] for code in LANGUAGES} & {*identifier.nb_classes})
    return identifier


def language_to_read(
    text: str | None, requested: str | None, own: str | None, speaker: str, among: Collection[str] | None = None
) -> tuple[str, str]:
    """Chooses a text's language: `requested`, else the speaker's `own`, else that of its words, else English.

    `guess_language` corrects it by the text's letters. Returns a code, and a message for users about the choice or "".
    """
    own = None if requested else own
    language, note = requested or own or "en", ""
    if text is not None:
        language, note = guess_language([text], language, among)
    if not (requested or note):
        language = own or identify_language([text or ""], among or LANGUAGES, _OF_A_SENTENCE) or language
        if own or language != "en":
            why = f"which {speaker} speaks" if own else "by its words"
            name = f"{language} ({get_language(language).name})"
            note = f"The text is read as {name}, {why}; --language chooses another language."
    return language, note


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _share(letters: Counter[str], scripts: tuple[str, ...]) -> float:
    return sum(count for letter, count in letters.items() if _script(letter) in scripts) / letters.total()


def _fits(letters: Counter[str], language: Language) -> bool:
    rivals = [one for one in LANGUAGES.values() if one.scripts == language.scripts and one is not language]
    own = sum(letters[letter] for letter in language.own_letters) / letters.total()
    theirs = sum(letters[letter] for one in rivals for letter in one.own_letters) / letters.total()
    lacks_own = language.own_letters and own < _OWN_SHARE and letters.total() > _FEW_LETTERS
    covered = _share(letters, language.scripts) >= 1 - _FOREIGN_SHARE
    return covered and _share(letters, language.scripts[:1]) >= _OWN_SHARE and theirs < _OWN_SHARE and not lacks_own

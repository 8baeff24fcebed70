"""Which language a text can be in, judged by its letters."""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from itertools import islice

from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.languages.base import Language

_MOST_LETTERS = 100_000
_FEW_LETTERS = 300
"""A text with fewer letters than these may well do without those that only its language has."""
_FOREIGN_SHARE = 0.3
"""Names and quotations in another script are at most this share of a text."""
_OWN_SHARE = 0.005
_MOST_TEXTS, _LETTERS_TO_IDENTIFY, _CERTAIN = 500, 120, 0.99


def guess_language(texts: Iterable[str], language: str, among: Collection[str] | None = None) -> tuple[str, str]:
    """The language of texts that are said to be in `language`: another one if only that one has their letters.

    Args:
        among: Codes of the languages that come first, such as those of a model; None for all.

    Returns:
        A code, and a message for users if the language is another one, or must be and is unknown; else `""`, also for
        a language that is not supported.
    """
    try:
        said = get_language(language)
    except ValueError:
        return language, ""
    letters = _count_letters(texts)
    if not letters or _share(letters, said.scripts) >= _FOREIGN_SHARE:
        return language, ""
    fitting = [one for one in LANGUAGES.values() if _fits(letters, one)]
    fitting = [one for one in fitting if among is None or one.code in among] or fitting
    script = _script(letters.most_common(1)[0][0]).capitalize()
    found = f"The text is in {script} letters"
    if len(fitting) == 1:
        (only,) = fitting
        return only.code, f"{found}: it is read as {only.code} ({only.name}), not as {language}."
    hint = f"Give --language {' or '.join(one.code for one in fitting)}." if fitting else "No supported language is."
    return language, f"{found}, and {said.name} is not written in them. {hint}"


def identify_language(texts: Iterable[str]) -> str | None:
    """Identifies the language of texts by their words, with langid (Lui and Baldwin 2012).

    Returns:
        A code, or None if the texts are too short or the language is not certain.
    """
    different = dict.fromkeys(islice(texts, _MOST_TEXTS))
    if _count_letters(different).total() < _LETTERS_TO_IDENTIFY:
        return None
    found, probability = _identifier().classify(" ".join(different))
    return next(code for code in LANGUAGES if code.partition("-")[0] == found) if probability > _CERTAIN else None


@cache
def _identifier():
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_modelpath(MODEL_DIR / MODEL_FILE, norm_probs=True)  # takes 0.6 s
    identifier.set_languages([code.partition("-")[0] for code in LANGUAGES])
    return identifier


def language_to_read(
    text: str | None, asked: str | None, own: str | None, speaker: str, among: Collection[str] | None = None
) -> tuple[str, str]:
    """The language to read a text in: the one asked for, else the speaker's `own`, else English; see `guess_language`.

    Returns:
        A code, and how it was chosen for users where nobody has named it, or `""`.
    """
    own = None if asked else own
    language, note = asked or own or "en", ""
    if text is not None:
        language, note = guess_language([text], language, among)
    if own and not note:
        name = get_language(own).name
        note = f"The text is read as {own} ({name}), which {speaker} speaks; --language chooses another language."
    return language, note


def _count_letters(texts: Iterable[str]) -> Counter[str]:
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(filter(str.isalpha, text))
        if letters.total() > _MOST_LETTERS:
            break
    return letters


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

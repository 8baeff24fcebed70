"""Language identification of texts, by their letters and by their words."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache

from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.languages.base import Language

_MOST_LETTERS = 100_000
_FEW_LETTERS = 300  # a text with at most this many letters may lack the letters that only its language has
_FOREIGN_SHARE = 0.3  # maximum fraction of letters in other scripts: names and quotations
_LATIN_SHARE = 0.5  # minimum fraction for Latin languages: texts in other scripts have many long Latin names
_LATIN_NAME = re.compile("(?<![A-Za-z])[A-Z][A-Za-z]*")  # texts in other scripts may consist largely of such names
_OWN_SHARE = 0.005
_MOST_TEXTS, OF_A_CORPUS, OF_A_SENTENCE = 500, (120, 0.99), (8, 0.9)
"""`_MOST_TEXTS` is the maximum number of texts that `identify_language` uses. `OF_A_CORPUS` and `OF_A_SENTENCE` are
`(minimum number of letters, minimum probability)`; `OF_A_SENTENCE` identified 250 of 255 sentences, without errors."""


def guess_language(texts: Iterable[str], language: str | None, among: Collection[str] | None = None) -> tuple[str, str]:
    """Guesses the language of texts by their letters. Returns its code, and a message for users (may be `""`).

    If the letters fit `language` (default: English), or if `language` is not supported, returns `language` and `""`.
    Otherwise, finds all languages that the letters fit. If `identify_language` recognizes one of them by the words,
    drops the others. If some are in `among` (the model's languages), drops those that are not. Returns the remaining
    language if there is only one, else `language`."""
    code, texts = language or "en", [*texts]
    try:
        expected = get_language(code)
    except ValueError:
        return code, ""
    letters = _letters(texts)
    has_names = not language and _share(letters, ("LATIN",)) < 1 - _FOREIGN_SHARE
    if has_names and any(map(str.islower, filter(str.isascii, letters))):  # in capitals, every word would be a name
        letters = _letters(_LATIN_NAME.sub("", text) for text in texts) or letters
    scripts = Counter(map(_script, letters.elements()))
    least = _LATIN_SHARE if "LATIN" in expected.scripts else _FOREIGN_SHARE
    if not letters or max(scripts, key=scripts.get) in expected.scripts or _share(letters, expected.scripts) >= least:
        return code, ""
    fitting = [one for one in LANGUAGES.values() if _fits(letters, one)]
    if len(fitting) > 1 and any(one.own_letters for one in fitting):
        # Shorter texts may be phrases that several languages use, such as ان شاء الله.
        identified = identify_language(texts, [one.code for one in fitting], (12, 0.9))
        fitting = [one for one in fitting if identified in (None, one.code)]
    fitting = [one for one in fitting if among is None or one.code in among] or fitting
    found = f"The text is in {max(scripts, key=scripts.get).capitalize()} letters"
    if len(fitting) == 1:
        (only,) = fitting
        return only.code, f"{found}: it is read as {only.code} ({only.name}){f', not as {code}' * bool(language)}."
    if language:
        found += f", and {expected.name} is not written in them. Write it in {expected.name} letters"
    hint = f"{', or give' if language else '. Give'} --language {' or '.join(one.code for one in fitting)}"
    return code, f"{found}{hint if fitting else '. No supported language has them'}."


def identify_language(
    texts: Iterable[str], among: Collection[str] = LANGUAGES, least: tuple[int, float] = OF_A_CORPUS
) -> str | None:
    """Identifies the language of texts by their words, with langid (Lui and Baldwin 2012).

    Returns a code in `among`, or None if the number of letters or the probability is below its minimum in `least`.
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
    identifier.set_languages({code.partition("-")[0] for code in LANGUAGES} & {*identifier.labels})
    return identifier


def language_to_read(
    text: str | None, requested: str | None, own: str | None, speaker: str, among: Collection[str] | None = None
) -> tuple[str, str]:
    """Selects the language in which to read a text. Returns its code, and a message about the choice (may be `""`).

    Takes the first language that is known: `requested`; `own`, the language of the speaker or model; the result of
    `identify_language`; English. `guess_language` may replace it if the letters do not fit. `speaker` is for messages.
    """
    language, note = guess_language([text or ""], requested or own, among)
    if requested or note and language != own:
        return language, note
    found = own
    if note or not own:  # the letters rule `own` out, and several other languages have them
        alike = [code for code, one in LANGUAGES.items() if note or one.scripts == get_language(language).scripts]
        found = identify_language([text or ""], {*alike} & {*(among or alike)}, OF_A_SENTENCE)
    if found and (own or found != "en"):
        why = f"which {speaker or 'the model'} speaks" if found == own else "by its words"
        name = f"{found} ({get_language(found).name})"
        return found, f"The text is read as {name}, {why}; --language chooses another language."
    return language, note


def _letters(texts: Iterable[str]) -> Counter[str]:
    return Counter(itertools.islice(filter(str.isalpha, itertools.chain.from_iterable(texts)), _MOST_LETTERS))


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _share(letters: Counter[str], scripts: tuple[str, ...]) -> float:
    return sum(count for letter, count in letters.items() if _script(letter) in scripts) / max(1, letters.total())


def _fits(letters: Counter[str], language: Language) -> bool:
    rivals = [one for one in LANGUAGES.values() if one.scripts == language.scripts and one is not language]
    own = sum(letters[letter] for letter in language.own_letters) / letters.total()
    theirs = sum(letters[letter] for one in rivals for letter in one.own_letters) / letters.total()
    lacks_own = language.own_letters and own < _OWN_SHARE and letters.total() > _FEW_LETTERS
    is_most = _share(letters, language.scripts) > _LATIN_SHARE
    covered = is_most and _share(letters, ("LATIN", *language.scripts)) >= 1 - _FOREIGN_SHARE
    return covered and _share(letters, language.scripts[:1]) >= _OWN_SHARE and theirs < _OWN_SHARE and not lacks_own

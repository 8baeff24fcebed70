"""Languages that need a short function in addition to their entry in `languages.toml`."""

import re
import threading
import unicodedata
from functools import cache
from typing import Any

from myxtts.config.checks import needing
from myxtts.text.languages.base import DESCRIPTIONS, EXTRA, described
from myxtts.text.numbers import number_to_words

_PERSIAN_CHARACTERS = str.maketrans(*DESCRIPTIONS["fa"]["normalize"])
_cutlet_lock = threading.Lock()  # MeCab's tagger, which cutlet holds, is not thread-safe


def normalize_persian(text: str) -> str:
    """Unifies variants of letters and digits, and removes invisible characters."""
    # Programs that write PDF files use the forms that letters have in a word, and ligatures.
    text = re.sub("[\ufb50-\ufdff\ufe70-\ufefc]+", lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", text.translate(_PERSIAN_CHARACTERS))


def persian_cardinal(number: int) -> str:
    """Spells an integer with num2words. `SpelledNumbers` spells decimals, because num2words misreads some of them."""
    return re.sub(r"\bنه\b", "نُه", number_to_words(number, "fa"))  # without the vowel mark, nine is spelled like no


@cache
def _cutlet() -> Any:
    with needing(EXTRA.format("Japanese text", "cutlet unidic-lite")):
        import unidic_lite  # noqa: F401  the dictionary that cutlet uses
        from cutlet import Cutlet
    return Cutlet()


def japanese_to_romaji(text: str) -> str:
    """Romanizes Japanese in modified Hepburn spelling, in lower case with spaces between words.

    今日は寒いですね! becomes `"kyou wa samui desu ne!"`. Raises `UserError` if a package is missing.
    """
    with _cutlet_lock:
        return _cutlet().romaji(text).lower()


def hangul_to_latin(text: str) -> str:
    """Romanizes Hangul by the academic rules of the Revised Romanization of Korean (2000); other text is kept.

    안녕하세요 becomes `"annyeonghaseyo"`. Raises `UserError` if hangul-romanize is missing.
    """
    with needing(EXTRA.format("Korean text", "hangul-romanize")):
        from hangul_romanize import Transliter
        from hangul_romanize.rule import academic
    return Transliter(academic).translit(text)


PERSIAN = described("fa", normalize=normalize_persian, cardinal=persian_cardinal)
JAPANESE = described("ja", romanize=japanese_to_romaji)
KOREAN = described("ko", romanize=hangul_to_latin)

"""Languages that need a short function in addition to their entry in `languages.toml`."""

import threading
from functools import cache
from typing import Any

from myxtts.text.languages.base import described, import_extra

_HINDI_ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}
HINDI = described("hi", to_ordinal=lambda cardinal, number: _HINDI_ORDINALS.get(number, cardinal + "वाँ"))
# MeCab's tagger, which cutlet holds, is not thread-safe.
_cutlet_lock = threading.Lock()


@cache
def _cutlet() -> Any:
    import_extra("unidic_lite", "Japanese text")
    return import_extra("cutlet", "Japanese text").Cutlet()


def japanese_to_romaji(text: str) -> str:
    """Romanizes Japanese in modified Hepburn spelling, in lower case with spaces between words.

    今日は寒いですね! becomes `"kyou wa samui desu ne!"`. Raises `ImportError` if a package is missing.
    """
    with _cutlet_lock:
        return _cutlet().romaji(text).lower()


def hangul_to_latin(text: str) -> str:
    """Romanizes Hangul by the academic rules of the Revised Romanization of Korean (2000); other text is kept.

    안녕하세요 becomes `"annyeonghaseyo"`. Raises `ImportError` if hangul-romanize is missing.
    """
    package, rule = (import_extra(f"hangul_romanize{part}", "Korean text") for part in ("", ".rule"))
    return package.Transliter(rule.academic).translit(text)


JAPANESE = described("ja", romanize=japanese_to_romaji)
KOREAN = described("ko", romanize=hangul_to_latin)

"""Japanese. Its text is romanized as it stands: the dictionary reads it better than its parts."""

import threading
from functools import cache
from typing import Any

from myxtts.text.languages.base import Language, Num2Words, import_extra, table

# MeCab's tagger, which cutlet holds, is not safe to share between threads.
_cutlet_lock = threading.Lock()


def japanese_to_romaji(text: str) -> str:
    """Romanizes Japanese, in any mix of scripts: modified Hepburn spelling, lower case, words apart.

    今日は寒いですね! is `"kyou wa samui desu ne!"`. Needs cutlet and its dictionary unidic-lite.
    """
    with _cutlet_lock:
        return _cutlet().romaji(text).lower()


@cache
def _cutlet() -> Any:
    import_extra("unidic_lite", "Japanese text")
    return import_extra("cutlet", "Japanese text").Cutlet()


LANGUAGE = Language(
    code="ja",
    name="Japanese",
    other_names=("jpn", "日本語"),
    scripts=("HIRAGANA", "KATAKANA", "CJK"),
    char_limit=71,
    expand_numbers=Num2Words("ja"),
    abbreviations={},
    symbols={},
    symbol_readings=table("€ yuuro, + purasu, = ikooru, & ando, % paasento"),
    romanize=japanese_to_romaji,
    romanizes_as_written=True,
)

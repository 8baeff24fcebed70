"""Chinese, Korean and Japanese text in Latin letters, as the XTTS vocabulary wants it.

The packages are optional and imported at first use; the extra `languages` has them.
"""

import re
import threading
from functools import lru_cache
from typing import Any

from myxtts.text.extras import import_extra

_HANGUL = re.compile("[가-힣]")
# MeCab's tagger, which cutlet holds, is not safe to share between threads.
_cutlet_lock = threading.Lock()


def chinese_to_pinyin(text: str) -> str:
    """Romanises Chinese characters: Hanyu Pinyin, tone digit after each syllable (5 for neutral), no spaces.

    Args:
        text: Text; what is not a Chinese character is kept.

    Returns:
        Such as `"ni3hao3"` for 你好. Of several readings of a character the first is taken.

    Raises:
        ImportError: pypinyin is not installed.
    """
    pypinyin = import_extra("pypinyin", "pypinyin", "Chinese text")
    syllables = pypinyin.pinyin(text, style=pypinyin.Style.TONE3, heteronym=False, neutral_tone_with_five=True)
    return "".join(readings[0] for readings in syllables)


def hangul_to_latin(text: str) -> str:
    """Romanises Hangul by the academic rules of the Revised Romanization of Korean (2000).

    Args:
        text: Text; what is not Hangul is kept.

    Returns:
        Such as `"annyeonghaseyo"` for 안녕하세요.

    Raises:
        ImportError: hangul-romanize is not installed.
    """
    if not _HANGUL.search(text):
        return text
    return _hangul_transliter().translit(text)


def japanese_to_romaji(text: str) -> str:
    """Romanises Japanese in modified Hepburn spelling, lower case, words apart.

    Args:
        text: Text in any mix of scripts.

    Returns:
        Such as `"kyou wa samui desu ne!"` for 今日は寒いですね!

    Raises:
        ImportError: cutlet or its dictionary unidic-lite is not installed.
    """
    with _cutlet_lock:
        return _cutlet().romaji(text).lower()


@lru_cache(maxsize=1)
def _hangul_transliter() -> Any:
    hangul_romanize = import_extra("hangul_romanize", "hangul-romanize", "Korean text")
    rule = import_extra("hangul_romanize.rule", "hangul-romanize", "Korean text")
    return hangul_romanize.Transliter(rule.academic)


@lru_cache(maxsize=1)
def _cutlet() -> Any:
    import_extra("unidic_lite", "unidic-lite", "Japanese text")
    return import_extra("cutlet", "cutlet", "Japanese text").Cutlet()

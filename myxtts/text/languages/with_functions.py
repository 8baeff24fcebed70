"""Languages that need a few functions; `languages.toml` describes the ones that need none.

In Persian, num2words is used for integers only: it reads the decimal 12.05 as twelve and a half.
"""

import re
import threading
import unicodedata
from functools import cache
from typing import Any

from myxtts.text.languages.base import described, import_extra
from myxtts.text.numbers import number_to_words

_HINDI_ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}
HINDI = described("hi", to_ordinal=lambda cardinal, number: _HINDI_ORDINALS.get(number, cardinal + "वाँ"))

_CZECH_NUMBERS = (*range(20), *range(20, 100, 10), *range(100, 1000, 100), *range(1000, 10001, 1000))
_CZECH_WORDS = (
    "nultý první druhý třetí čtvrtý pátý šestý sedmý osmý devátý desátý jedenáctý dvanáctý třináctý čtrnáctý patnáctý "
    "šestnáctý sedmnáctý osmnáctý devatenáctý dvacátý třicátý čtyřicátý padesátý šedesátý sedmdesátý osmdesátý "
    "devadesátý stý dvoustý třístý čtyřstý pětistý šestistý sedmistý osmistý devítistý tisící dvoutisící třítisící "
    "čtyřtisící pětitisící šestitisící sedmitisící osmitisící devítitisící desetitisící"
).split()
_CZECH_ORDINALS = dict(zip(_CZECH_NUMBERS, _CZECH_WORDS, strict=True))
"""Czech ordinals by number, in the masculine nominative."""


def czech_ordinal(number: int) -> str:
    """Returns the words of a Czech ordinal, which num2words lacks: a cardinal, then tens and ones as ordinals.

    Round numbers above ten thousand are read as cardinals, because their ordinals are not in use.
    """
    if number in _CZECH_ORDINALS:
        return _CZECH_ORDINALS[number]
    if number < 100:
        return f"{_CZECH_ORDINALS[number // 10 * 10]} {_CZECH_ORDINALS[number % 10]}"
    last = number % 100 or number % 1000
    cardinal = number_to_words(number - last, "cs")
    return f"{cardinal} {czech_ordinal(last)}" if last else cardinal


CZECH = described("cs", to_ordinal=czech_ordinal)
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

# Arabic look-alikes of Persian letters; the tatweel, joiners, direction marks and the byte-order mark are removed. The
# zero-width non-joiner (U+200C) is part of the spelling; older editors wrote the soft hyphen, the negation sign or the
# zero-width space instead.
_LETTERS = {"ي": "ی", "ى": "ی", "ك": "ک", "ـ": ""} | dict.fromkeys("\u00ad\u00ac\u200b", "\u200c")
_LETTERS |= dict.fromkeys("\u2060\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff", "")
_DIGITS = dict(zip("۰۱۲۳۴۵۶۷۸۹٠١٢٣٤٥٦٧٨٩٫٬٪", "01234567890123456789.,%"))
_CHARACTERS = str.maketrans(_LETTERS | _DIGITS)
_NON_JOINERS = re.compile("\u200c+")
# A non-joiner that is not between two letters or marks has no effect.
_STRAY_NON_JOINER = re.compile(r"(?<![\w\u064b-\u0670])\u200c|\u200c(?!\w)")

# Prefixes and suffixes that people type with a space instead of a non-joiner. `تر` is also a word, so it is missing.
_PREFIX_APART = re.compile(r"(?<![\w\u200c])(ن?می) +(?=[آ-ی])")
_SUFFIX_APART = re.compile(r"(?<=[آ-ی]) +(های?|هایی|هایم|هایت|هایش|هایمان|هایتان|هایشان|ترین)(?![\w\u200c])")
# The three spellings of the ending -e of a word in -e: خانۀ, خانهٔ, خانه‌ی.
_EZAFE = re.compile("ه(?:\u0654|\u200cی(?![\\w\u200c]))")
# A slash is a decimal point; two slashes make a date.
_SLASH_DECIMAL = re.compile("(?<![0-9/])([0-9]++)/([0-9]++)(?!/)")
_SLASH_IN_DATE = re.compile("(?<=[0-9])/(?=[0-9])")


def normalize_persian(text: str) -> str:
    """Unifies letters, digits, non-joiners and decimal slashes; removes invisible characters, keeps vowel marks."""
    text = unicodedata.normalize("NFC", text.translate(_CHARACTERS))
    text = _STRAY_NON_JOINER.sub("", _NON_JOINERS.sub("\u200c", text))
    text = _SUFFIX_APART.sub("\u200c\\1", _PREFIX_APART.sub("\\1\u200c", text))
    return _EZAFE.sub("ۀ", _SLASH_IN_DATE.sub(" ", _SLASH_DECIMAL.sub(r"\1.\2", text)))


def persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم, سی becomes سی‌ام (two vowels would meet), others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


PERSIAN = described(
    "fa", normalize=normalize_persian, cardinal=lambda number: number_to_words(number, "fa"), to_ordinal=persian_ordinal
)

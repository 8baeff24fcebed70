"""Persian. num2words is used only for integers, because it reads the decimal 12.05 as twelve and a half."""

import re
import unicodedata

from myxtts.text.languages.base import described
from myxtts.text.numbers import number_to_words

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
    """Unifies variants of letters, digits, non-joiners and decimal points; removes invisible characters."""
    text = unicodedata.normalize("NFC", text.translate(_CHARACTERS))
    text = _STRAY_NON_JOINER.sub("", _NON_JOINERS.sub("\u200c", text))
    text = _SUFFIX_APART.sub("\u200c\\1", _PREFIX_APART.sub("\\1\u200c", text))
    return _EZAFE.sub("ۀ", _SLASH_IN_DATE.sub(" ", _SLASH_DECIMAL.sub(r"\1.\2", text)))


def persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم, سی becomes سی‌ام (two vowels would meet), others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


LANGUAGE = described(
    "fa", normalize=normalize_persian, cardinal=lambda number: number_to_words(number, "fa"), to_ordinal=persian_ordinal
)

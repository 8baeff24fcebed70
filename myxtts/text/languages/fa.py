"""Persian. num2words is used only for integers, because it reads the decimal 12.05 as twelve and a half."""

import unicodedata

from myxtts.text.languages.base import described
from myxtts.text.numbers import number_to_words

# Arabic look-alikes of Persian letters; the tatweel, joiners, direction marks and the byte-order mark are removed. The
# zero-width non-joiner (U+200C) is part of the spelling; older editors wrote the soft hyphen, the negation sign or the
# zero-width space instead.
_LETTERS = {"ي": "ی", "ى": "ی", "ك": "ک", "ـ": ""} | dict.fromkeys("\u00ad\u00ac\u200b", "\u200c")
_LETTERS |= dict.fromkeys("\u2060\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff", "")
_CHARACTERS = str.maketrans(_LETTERS | dict(zip("۰۱۲۳۴۵۶۷۸۹٠١٢٣٤٥٦٧٨٩٫٬٪", "01234567890123456789.,%")))


def normalize_persian(text: str) -> str:
    """Unifies variants of letters and digits, and removes invisible characters."""
    return unicodedata.normalize("NFC", text.translate(_CHARACTERS))


def persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم, سی becomes سی‌ام (two vowels would meet), others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


LANGUAGE = described(
    "fa", normalize=normalize_persian, cardinal=lambda number: number_to_words(number, "fa"), to_ordinal=persian_ordinal
)

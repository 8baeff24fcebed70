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


def _phone_in_parts(match: re.Match) -> str:
    """Separates a telephone number into the parts in which it is read: `0 912، 345، 67، 89`, `0 21، 88، 0 7، …`."""
    parts = re.findall("^9..|(?<=^9..)...|..", re.sub("[ -]", "", match[2]))
    return re.sub("(?<![1-9])0(?=[0-9])", "0 ", f"{match[1]} {'، '.join(parts)}")


_REWRITES = {
    "\u200c+": "\u200c",
    # A non-joiner that is not between two letters or marks has no effect.
    r"(?<![\w\u064b-\u0670])\u200c|\u200c(?!\w)": "",
    # Prefixes and suffixes that are typed with a space instead of a non-joiner. `تر` is also a word, so it is missing.
    r"(?<![\w\u200c])(ن?می) +(?=[آ-ی])": "\\1\u200c",
    r"(?<=[آ-ی]) +(های?|هایی|هایم|هایت|هایش|هایمان|هایتان|هایشان|ترین)(?![\w\u200c])": "\u200c\\1",
    # The three spellings of the ending -e of a word in -e: خانۀ, خانهٔ, خانه‌ی.
    "ه(?:\u0654|\u200cی(?![\\w\u200c]))": "ۀ",
    # Telephone numbers; the digits of other numbers with a leading zero, which are codes, are read one by one.
    r"(?<![0-9.])(\+98|0098|0(?![ -]))[ -]?([0-9](?:[ -]?[0-9]){9})(?![0-9])": _phone_in_parts,
    "(?<![0-9.,/])0[0-9]{4,}": lambda match: " ".join(match[0]),
    # Groups of three digits; a single group after a slash or point only in a price.
    r"(?<![0-9.,،/])[1-9][0-9]{0,2}(?:(?:،[0-9]{3})+|([/.])[0-9]{3}(?:\1[0-9]{3})+|[/.][0-9]{3}(?= ?(?:توم|ریال)))"
    r"(?![0-9]|[،/][0-9]|\1[0-9])": lambda match: re.sub("[^0-9]", "", match[0]),
    # A slash is a decimal point; two slashes make a date.
    "(?<![0-9/])([0-9]++)/([0-9]++)(?!/)": r"\1.\2",
    "(?<=[0-9])/(?=[0-9])": " ",
    # Signs that are written on either side of the number.
    r"(?<![0-9])(?<![0-9] )% ?([0-9]++(?:[.,][0-9]+)*)": r"\1%",
    r"(?<![0-9.,-])([0-9]++(?:\.[0-9]+)?)[-−](?= ?(?:درجه|°))|(?<![^\s(])(?<![0-9] )[-−](?=[0-9])": r"منفی \1",
    # References to books.
    r"(?<!\w)([رن])\. ?ک\.?(?: به)?(?!\w)": r"\1.ک",
    r"(?<!\w)ص\.? ?(?=[0-9])": "صفحۀ ",
    r"(?<!\w)ج\.? ?(?=[0-9])": "جلد ",
}
"""Replacements in a text with ASCII digits, in this order."""


def normalize_persian(text: str) -> str:
    """Unifies variants of letters, digits, non-joiners and numbers; removes invisible characters."""
    text = unicodedata.normalize("NFC", text.translate(_CHARACTERS))
    for pattern, replacement in _REWRITES.items():
        text = re.sub(pattern, replacement, text)
    return text


def persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم, سی becomes سی‌ام (two vowels would meet), others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


LANGUAGE = described(
    "fa", normalize=normalize_persian, cardinal=lambda number: number_to_words(number, "fa"), to_ordinal=persian_ordinal
)

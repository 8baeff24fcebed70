"""Persian. Integers are num2words's; its decimals are not, as it reads 12.05 as twelve and a half."""

import re

from myxtts.text.languages.base import Language, table
from myxtts.text.numbers import SpelledNumbers, number_to_words

# Arabic keyboards' letters for Persian ones; the tatweel only stretches a line; joiners, marks of direction and the
# byte-order mark are not seen. The zero-width non-joiner (U+200C) is spelling and stays.
_LETTERS = {"ي": "ی", "ى": "ی", "ك": "ک", "ـ": "", "\u00ad": "\u200c"} | dict.fromkeys(
    "\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff", ""
)
_DIGITS = dict(zip("۰۱۲۳۴۵۶۷۸۹٠١٢٣٤٥٦٧٨٩٫٬٪", "01234567890123456789.,%"))
_CHARACTERS = str.maketrans(_LETTERS | _DIGITS)
_NON_JOINERS = re.compile("\u200c+")
# A non-joiner that is not between two letters or marks joins nothing.
_STRAY_NON_JOINER = re.compile(r"(?<![\w\u064b-\u0670])\u200c|\u200c(?!\w)")


def normalize_persian(text: str) -> str:
    """Writes Persian letters for their Arabic look-alikes and ASCII digits, and drops what is not seen."""
    return _STRAY_NON_JOINER.sub("", _NON_JOINERS.sub("\u200c", text.translate(_CHARACTERS)))


def persian_ordinal(cardinal: str, number: int) -> str:
    """Makes an ordinal of a cardinal."""
    # سه becomes سوم and سی, where a second vowel would meet, سی‌ام; others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


LANGUAGE = Language(
    code="fa",
    name="Persian",
    other_names=("farsi", "fas", "per", "pes", "فارسی"),
    scripts=("ARABIC",),
    own_letters="پچژگکی",
    char_limit=166,
    normalize=normalize_persian,
    expand_numbers=SpelledNumbers(
        cardinal=lambda number: number_to_words(number, "fa"),
        max_integer=10**12 - 1,
        ordinal_ending="\u200c?(?:اُ?)?م(ین)?(?![^\\W\\d_])",
        to_ordinal=persian_ordinal,
        point="ممیز",
        currencies=table("$ دلار سنت, € یورو سنت, £ پوند پنس"),
        cents_joint=" و ",
        decimal_slash=True,
        sets_words_apart=True,
    ),
    abbreviations=table("ه.ش هجری شمسی, ه.ق هجری قمری, ق.م قبل از میلاد"),
    abbreviation_stop="optional",
    symbols=table("& و, @ ات, % درصد, # هشتگ, $ دلار, £ پوند, € یورو, ° درجه, + به‌علاوه, = مساوی"),
    symbol_readings={},
)

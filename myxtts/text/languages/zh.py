"""Chinese, with rules for dates, money, telephone numbers, fractions, quantities and digits.

The rules and their order follow the normalizer of Coqui's XTTS, so that token ids agree. As in Coqui's, the words for
a number or date replace the first occurrence of its characters in the text, even inside another number. In
"2021和2张", the word for the 2 before 张 replaces the first 2 of 2021. Released checkpoints were trained on such text.
"""

import re
from collections.abc import Callable

from myxtts.config.checks import needing
from myxtts.text.languages.base import DESCRIPTIONS, EXTRA, described

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
_DIGITS = "零一二三四五六七八九"
# Names of powers of ten by exponent, largest first.
_UNITS = dict(zip((44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 3, 2, 1), "载正涧沟穰秭垓京兆亿万千百十"))
_UNITS_BUT_TEN = "".join(name for power, name in _UNITS.items() if power > 1)
# Two is 两 before a unit other than ten, if it is first or follows such a unit: 两千, 两万两千; but 一百零二, 十二万.
_TWO_BEFORE_UNIT = re.compile(f"(?<![^{_UNITS_BUT_TEN}])二(?=[{_UNITS_BUT_TEN}])")
_AMOUNT = r"(?:亿|千万|百万|万|千|百)"
# The amount alone is the first alternative, as in the reference: in 3万元5 the match ends after 万.
_MONEY_UNIT = f"(?:{_AMOUNT}|{_AMOUNT}?元|{_AMOUNT}?块|角|毛|分)"
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~！-－／：-＠［-｀｛-､、-〃〈-】〔-〟〰〾〿–—‘’‛“”„‟…‧﹏·]")


def expand_chinese_numbers(text: str) -> str:
    """Replaces the digits of a Chinese text by Chinese characters, and all punctuation by ASCII commas."""
    # The rules for telephone numbers and dates require a character before and after the match.
    text = f"^{text}$".replace("％", "%")
    for pattern, read in _RULES.items():
        for written in pattern.findall(text):
            text = text.replace(written, read(written), 1)
    return _PUNCTUATION.sub(",", text.lstrip("^").rstrip("$"))


def read_digits(digits: str) -> str:
    """Spells digits one by one: `2021` becomes 二零二一. A decimal point becomes 点. Drops plus, minus and spaces."""
    return "".join("点" if sign == "." else _DIGITS[int(sign)] for sign in digits if sign not in "+- ")


def read_number(number: str) -> str:
    """Spells an integer or decimal as a quantity: 2 is usually 两 before 百 and larger units; 10 is 十, not 一十."""
    integer, _, fraction = number.partition(".")
    words = _read_integer(integer) if len(integer) > 1 else read_digits(integer)
    words = _TWO_BEFORE_UNIT.sub("两", words) + ("点" + read_digits(fraction) if fraction else "")
    if words.startswith("点"):
        return "零" + words
    return words.removeprefix("一") if words.startswith("一十") else words


def _read_integer(digits: str) -> str:
    """Spells an integer. Zeros before another digit become a single 零; zeros alone become an empty string."""
    significant = digits.lstrip("0")
    if not significant:
        return ""
    if len(significant) == 1:
        return ("零" if len(digits) > 1 else "") + read_digits(significant)
    power, unit = next((power, unit) for power, unit in _UNITS.items() if power < len(significant))
    return _read_integer(digits[:-power]) + unit + _read_integer(significant[-power:])


def _read_numbers(text: str) -> str:
    return _NUMBER.sub(lambda number: read_number(number.group()), text)


def _read_date(date: str) -> str:
    year, mark, rest = date.rpartition("年")
    return read_digits(year) + mark + _read_numbers(rest)


_YEAR = r"(?:[089]\d|(?:19|20)\d{2})年"
_MONTH = r"\d{1,2}月(?:\d{1,2}[日号])?"
# Pattern -> function that reads its first group. Possessive quantifiers and look-behinds keep the search linear.
_RULES: dict[re.Pattern, Callable[[str], str]] = {
    re.compile(rf"\D({_YEAR}(?:{_MONTH})?|{_MONTH})"): _read_date,
    re.compile(rf"\D(\d+(?:\.\d+)?[多余几]?{_MONEY_UNIT}(?:\d{_MONEY_UNIT}?)?)"): _read_numbers,
    re.compile(r"\D((?:\+?86 ?)?1(?:[38]\d|5[0-35-9]|7[678]|9[89])\d{8})\D"): read_digits,  # mobile telephones
    re.compile(r"\D((?:0(?:10|2[1-3]|[3-9]\d{2})-?)?[1-9]\d{6,7})\D"): read_digits,  # landlines
    re.compile(r"(?<!\d)(\d++/\d+)"): lambda fraction: "分之".join(map(read_number, reversed(fraction.split("/")))),
    re.compile(r"(?<!\d)(\d++(?:\.\d++)?%)"): lambda percentage: "百分之" + read_number(percentage.strip("%")),
    re.compile(rf"(?<!\d)(\d++(?:\.\d++)?)[多余几]?{DESCRIPTIONS['zh']['module_words']}"): read_number,
    re.compile(r"(\d{4,32})"): read_digits,
    _NUMBER: read_number,
    re.compile("(?<![a-zA-Z])([a-zA-Z]++二[a-zA-Z]+)"): lambda letters: letters.replace("二", "2", 1),  # B2B, P2P
}


def chinese_to_pinyin(text: str) -> str:
    """Romanizes Chinese characters in Hanyu Pinyin with tone digits (5 is neutral), without spaces; other text is kept.

    你好 becomes `"ni3hao3"`. The first of several readings is used. Raises `UserError` if pypinyin is missing.
    """
    with needing(EXTRA.format("Chinese text", "pypinyin")):
        import pypinyin
    syllables = pypinyin.pinyin(text, style=pypinyin.Style.TONE3, heteronym=False, neutral_tone_with_five=True)
    return "".join(readings[0] for readings in syllables)


def spell_thousands(text: str) -> str:
    """Replaces numbers with commas between thousands by Chinese characters: 12,500 becomes 一万两千五百."""
    grouped = r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d|[.,]\d)(%?)"
    return re.sub(grouped, lambda one: "百分之" * bool(one[1]) + read_number(re.sub("[,%]", "", one[0])), text)


LANGUAGE = described("zh", write_out=spell_thousands, expand_numbers=expand_chinese_numbers, romanize=chinese_to_pinyin)

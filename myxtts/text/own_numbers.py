"""Numbers of the languages num2words cannot read, or reads wrongly: Hindi, Persian, Amharic, and Czech ordinals.

Persian integers do come from num2words; its decimals do not (it reads 12.05 as twelve and a half). num2words has no
Hindi, and its Amharic fails from 1,001 on. Hindi words follow CLDR's spell-out rules and common spelling.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_HINDI_BELOW_HUNDRED = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ "
    "दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस "
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस "
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस "
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास "
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ "
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर "
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उन्यासी "
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी "
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पंचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे"
).split()
_HINDI_UNITS = ((10**11, "खरब"), (10**9, "अरब"), (10**7, "करोड़"), (10**5, "लाख"), (10**3, "हज़ार"), (100, "सौ"))
_HINDI_ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}

_AMHARIC_ONES = "ዜሮ አንድ ሁለት ሦስት አራት አምስት ስድስት ሰባት ስምንት ዘጠኝ".split()
_AMHARIC_TENS = "አስር ሃያ ሠላሳ አርባ ሃምሳ ስድሳ ሰባ ሰማንያ ዘጠና".split()
_AMHARIC_UNITS = ((10**12, "ትሪሊዮን"), (10**9, "ቢሊዮን"), (10**6, "ሚሊዮን"), (1000, "ሺህ"), (100, "መቶ"))
# The last letter of a number in its form before the ordinal ending ኛ: አንድ, አንደኛ.
_AMHARIC_BEFORE_ENDING = {"ድ": "ደ", "ት": "ተ", "ኝ": "ነ", "ር": "ረ", "ህ": ""}
_ETHIOPIC_NUMERAL = re.compile("[፩-፼]+")

_CZECH_ONES = (
    "první druhý třetí čtvrtý pátý šestý sedmý osmý devátý desátý jedenáctý dvanáctý třináctý čtrnáctý "
    "patnáctý šestnáctý sedmnáctý osmnáctý devatenáctý".split()
)
_CZECH_TENS = "dvacátý třicátý čtyřicátý padesátý šedesátý sedmdesátý osmdesátý devadesátý".split()
_CZECH_HUNDREDS = "stý dvoustý třístý čtyřstý pětistý šestistý sedmistý osmistý devítistý".split()
_CZECH_THOUSANDS = (
    "tisící dvoutisící třítisící čtyřtisící pětitisící šestitisící sedmitisící osmitisící "
    "devítitisící desetitisící".split()
)


@dataclass(frozen=True)
class _Rules:
    digits: dict[int, str]
    """The script's own digits and number signs, as ASCII."""

    thousands: re.Pattern
    """A number whose commas separate groups."""

    point: str
    """The decimal point as a word."""

    currencies: dict[str, tuple[str, str]]
    """Sign to the words for the unit and its hundredth."""

    cents_joint: str
    """What stands between units and hundredths."""

    ordinal: re.Pattern
    """Group 1 the digits, group 2, if there is one, what follows the ordinal's own ending."""

    max_integer: int
    """Larger integers are read digit by digit."""

    pads: bool = False
    """Whether a word that touches the digits is set apart by a space."""

    own_cardinal: Callable[[int], str] | None = None
    to_ordinal: Callable[[str, int], str] = field(default=lambda cardinal, number: cardinal)


def expand_own_numbers(text: str, language: str, num2words_cardinal: Callable[[int], str]) -> str:
    """Writes the numbers of a Hindi, Persian or Amharic text in words.

    Args:
        text: Lower-case text.
        language: `"hi"`, `"fa"` or `"am"`.
        num2words_cardinal: Reads integers in Persian.

    Returns:
        The text without digits.
    """
    rules = OWN_NUMBERS[language]
    if language == "am":
        text = _ETHIOPIC_NUMERAL.sub(lambda match: str(ethiopic_to_int(match.group())), text)
    text = text.translate(rules.digits)
    if not _ASCII_DIGIT.search(text):
        return text
    cardinal = rules.own_cardinal or num2words_cardinal

    def integer(digits: str) -> str:
        if len(digits) <= 18 and int(digits) <= rules.max_integer:
            return cardinal(int(digits))
        return " ".join(cardinal(int(digit)) for digit in digits)

    def decimal(whole: str, fraction: str) -> str:
        return f"{integer(whole)} {rules.point} " + " ".join(cardinal(int(digit)) for digit in fraction)

    def amount(match: re.Match) -> str:
        unit, hundredth = rules.currencies[match["before"] or match["after"]]
        whole, _, fraction = (match["amount"] or match["number"]).partition(".")
        words = f"{integer(whole)} {unit}"
        if len(fraction) > 2:
            return f"{decimal(whole, fraction)} {unit}"
        if fraction.strip("0"):
            words += f"{rules.cents_joint}{integer(fraction.ljust(2, '0'))} {hundredth}"
        return words

    def ordinal(match: re.Match) -> str:
        number = int(match[1]) if len(match[1]) <= 18 else rules.max_integer + 1
        if number > rules.max_integer:
            return integer(match[1]) + match[0][len(match[1]) :]
        return rules.to_ordinal(cardinal(number), number) + (match[2] or "")

    text = rules.thousands.sub(lambda match: match.group().replace(",", ""), text)
    if language == "fa":
        text = _PERSIAN_DECIMAL_SLASH.sub(r"\1.\2", text)
        text = _SLASH_IN_DATE.sub(" ", text)
    if rules.pads:
        text = _LETTER_THEN_DIGIT.sub(" ", text)
    text = _amount_pattern(rules.currencies).sub(amount, text)
    text = rules.ordinal.sub(ordinal, text)
    if rules.pads:
        text = _DIGIT_THEN_LETTER.sub(" ", text)
    text = _DECIMAL.sub(lambda match: decimal(match[1], match[2]), text)
    return _INTEGER.sub(lambda match: integer(match.group()), text)


def hindi_cardinal(number: int) -> str:
    """Reads a natural number below 10^13 in Hindi, with lakh and crore: 100000 is एक लाख."""
    if number < 100:
        return _HINDI_BELOW_HUNDRED[number]
    return _with_units(number, _HINDI_UNITS, hindi_cardinal)


def amharic_cardinal(number: int) -> str:
    """Reads a natural number below 10^15 in Amharic: 1204 is አንድ ሺህ ሁለት መቶ አራት."""
    if number < 10:
        return _AMHARIC_ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        if not ones:
            return _AMHARIC_TENS[tens - 1]
        return f"{'አስራ' if tens == 1 else _AMHARIC_TENS[tens - 1]} {_AMHARIC_ONES[ones]}"
    return _with_units(number, _AMHARIC_UNITS, amharic_cardinal)


def ethiopic_to_int(numeral: str) -> int:
    """Value of an Ethiopic numeral: ፲፱፻፺፱ is 1999.

    Args:
        numeral: Characters U+1369 to U+137C.

    Returns:
        The number. Hundreds (፻) and ten thousands (፼) multiply what stands before them.
    """
    total = hundreds = pending = 0
    for character in numeral:
        index = ord(character) - ord("፩")
        if index < 9:
            pending += index + 1
        elif index < 18:
            pending += 10 * (index - 8)
        elif character == "፻":
            hundreds += 100 * (pending or 1)
            pending = 0
        else:
            total = (total + hundreds + pending or 1) * 10000
            hundreds = pending = 0
    return total + hundreds + pending


def czech_ordinal(number: int, cardinal: Callable[[int], str]) -> str:
    """Reads a Czech ordinal in the masculine nominative.

    Tens and ones are ordinals, what stands before them a cardinal, as in speech: 123 is sto dvacátý třetí.

    Args:
        number: A natural number.
        cardinal: Reads Czech cardinals.

    Returns:
        The ordinal; for round numbers above ten thousand, which have no ordinal in use, the cardinal.
    """
    if number == 0:
        return "nultý"
    rest, below_hundred = divmod(number, 100)
    if below_hundred:
        tens, ones = divmod(below_hundred, 10)
        words = [cardinal(rest * 100)] if rest else []
        if below_hundred < 20:
            words.append(_CZECH_ONES[below_hundred - 1])
        else:
            words.append(_CZECH_TENS[tens - 2])
            words.extend(_CZECH_ONES[ones - 1 : ones] if ones else ())
        return " ".join(words)
    thousands, hundreds = divmod(rest, 10)
    if hundreds:
        return " ".join(([cardinal(thousands * 1000)] if thousands else []) + [_CZECH_HUNDREDS[hundreds - 1]])
    return _CZECH_THOUSANDS[thousands - 1] if thousands <= len(_CZECH_THOUSANDS) else cardinal(number)


def _with_units(number: int, units: tuple[tuple[int, str], ...], cardinal: Callable[[int], str]) -> str:
    value, name = next((value, name) for value, name in units if value <= number)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def _hindi_ordinal(cardinal: str, number: int) -> str:
    return _HINDI_ORDINALS.get(number, cardinal + "वाँ")


def _persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم and سی, where a second vowel would meet, سی‌ام; others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌ام" if cardinal.endswith("ی") else cardinal + "م"


def _amharic_ordinal(cardinal: str, number: int) -> str:
    return cardinal[:-1] + _AMHARIC_BEFORE_ENDING.get(cardinal[-1], cardinal[-1]) + "ኛ"


def _amount_pattern(currencies: dict[str, tuple[str, str]]) -> re.Pattern:
    sign = "[" + "".join(currencies) + "]"
    number = r"[0-9]++(?:\.[0-9]++)?"
    return re.compile(f"(?P<before>{sign}) ?(?P<amount>{number})|(?<![0-9])(?P<number>{number}) ?(?P<after>{sign})")


def _digit_table(zeros: str, **marks: str) -> dict[int, str]:
    return {ord(zero) + digit: str(digit) for zero in zeros for digit in range(10)} | {
        ord(mark): plain for mark, plain in marks.items()
    }


_ASCII_DIGIT = re.compile("[0-9]")
_INTEGER = re.compile("[0-9]+")
_DECIMAL = re.compile(r"(?<![0-9])([0-9]++)\.([0-9]+)")
_GROUPS_OF_THREE = re.compile(r"\b[0-9]{1,3}(?:,[0-9]{3})+\b")
_INDIAN_GROUPS = re.compile(r"\b[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}\b")
# Persian writes a decimal fraction with a slash (۱۲/۵); two slashes make a date.
_PERSIAN_DECIMAL_SLASH = re.compile("(?<![0-9/])([0-9]++)/([0-9]++)(?!/)")
_SLASH_IN_DATE = re.compile("(?<=[0-9])/(?=[0-9])")
# Devanagari vowel signs are no letters to the `re` module.
_LETTER = r"[^\W\d_\u0900-\u0963]|[\u0900-\u0963]"
_LETTER_THEN_DIGIT = re.compile(rf"(?<={_LETTER})(?=[0-9])|(?<=\u200c)(?=[0-9])")
_DIGIT_THEN_LETTER = re.compile(rf"(?<=[0-9])\u200c?(?={_LETTER})(?!वाँ|वां|वें|वीं)")

OWN_NUMBERS = {
    "hi": _Rules(
        digits=_digit_table("०"),
        thousands=_INDIAN_GROUPS,
        point="दशमलव",
        currencies={"₹": ("रुपये", "पैसे"), "$": ("डॉलर", "सेंट"), "€": ("यूरो", "सेंट"), "£": ("पाउंड", "पेंस")},
        cents_joint=" ",
        ordinal=re.compile("(?<![0-9])([0-9]++)(?:st|nd|rd|th)()"),
        max_integer=10**13 - 1,
        pads=True,
        own_cardinal=hindi_cardinal,
        to_ordinal=_hindi_ordinal,
    ),
    "fa": _Rules(
        digits=_digit_table("۰٠", **{"٫": ".", "٬": ",", "٪": "%"}),
        thousands=_GROUPS_OF_THREE,
        point="ممیز",
        currencies={"$": ("دلار", "سنت"), "€": ("یورو", "سنت"), "£": ("پوند", "پنس")},
        cents_joint=" و ",
        ordinal=re.compile("(?<![0-9])([0-9]++)\u200c?(?:اُ?)?م(ین)?(?![^\\W\\d_])"),
        max_integer=10**12 - 1,
        pads=True,
        to_ordinal=_persian_ordinal,
    ),
    "am": _Rules(
        digits={},
        thousands=_GROUPS_OF_THREE,
        point="ነጥብ",
        currencies={"$": ("ዶላር", "ሳንቲም"), "€": ("ዩሮ", "ሳንቲም"), "£": ("ፓውንድ", "ፔንስ")},
        cents_joint=" ከ",
        ordinal=re.compile("(?<![0-9])([0-9]++)ኛ()"),
        max_integer=10**15 - 1,
        own_cardinal=amharic_cardinal,
        to_ordinal=_amharic_ordinal,
    ),
}

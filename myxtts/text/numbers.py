"""Numbers to words: cardinals, ordinals, decimals and amounts of money.

Languages of XTTS go through num2words in the order of the reference (thousands separators, currency, decimals,
ordinals, cardinals), so that token ids agree with released checkpoints. Chinese has its own rules
(`chinese_numbers.py`), and so have Hindi, Persian and Amharic (`own_numbers.py`), which num2words lacks or misreads.
"""

import re
import threading
from functools import lru_cache, partial

from myxtts.text.chinese_numbers import expand_chinese_numbers
from myxtts.text.extras import import_extra
from myxtts.text.own_numbers import OWN_NUMBERS, czech_ordinal, expand_own_numbers

_ANY_DIGIT = re.compile(r"\d")
_COMMA_THOUSANDS = re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b")
# The unescaped dot is the reference's: it also joins what any one character separates, which only matters for where
# the next match starts.
_DOT_THOUSANDS = re.compile(r"\b\d{1,3}(.\d{3})*(,\d+)?\b")
# Here and below, possessive quantifiers and look-behinds keep the search linear in long runs of digits.
_DECIMAL = re.compile(r"(?<![0-9])[0-9]++[.,][0-9]+")
_CARDINAL = re.compile(r"[0-9]+")
_NOT_AMOUNT = re.compile(r"[^\d.]")
_CURRENCIES = tuple(
    (currency, re.compile(rf"{sign}[0-9.,]*[0-9]|(?<![0-9.,])[0-9.,]*+(?<=[0-9]){sign}"))
    for currency, sign in (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
)
# What follows the digits of an ordinal.
_ORDINAL_ENDINGS = {
    "en": "st|nd|rd|th",
    "es": "º|ª|er|o|a|os|as",
    "fr": "º|ª|er|re|e|ème",
    "de": r"st|nd|rd|th|º|ª|\.(?=\s|$)",
    "pt": "º|ª|o|a|os|as",
    "it": "º|°|ª|o|a|i|e",
    "pl": "º|ª|st|nd|rd|th",
    "ar": "ون|ين|ث|ر|ى",
    # A number that ends the text ends its sentence; anywhere else the full stop makes it an ordinal.
    "cs": r"\.(?=\s+\S)",
    "ru": "-й|-я|-е|-ое|-ье|-го",
    "nl": "de|ste|e",
    "tr": r"\.|inci|nci|uncu|üncü",
    "hu": r"\.|adik|edik|odik|ödik|ödike|ik",
    "ko": "번째|번|차|째",
}
_ORDINALS = {
    language: re.compile(f"(?<![0-9])([0-9]++)(?:{endings})") for language, endings in _ORDINAL_ENDINGS.items()
}
# Arabic-Indic digits, decimal and thousands separators, percent sign. The thousands separator of ASCII is the dot here.
_ARABIC_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫٬٪", "01234567890123456789,.%")
# What joins the units and the hundredths in num2words's amounts of money.
_CENTS_JOINT = {"es": " con ", "fr": " et ", "de": " und ", "pt": " e ", "it": " e "}

# How num2words refuses: a language or currency it does not have (NotImplementedError, or TypeError where a converter
# takes no currency), a number beyond its tables (OverflowError and decimal.InvalidOperation, which are
# ArithmeticErrors; KeyError and IndexError, which are LookupErrors; RecursionError for large whole floats in
# Hungarian and ordinals from 10^15 on in Spanish), not a number (ValueError).
_REFUSALS = (NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError)

# Longer digit runs are no quantities but codes; Python itself refuses to read very long ones as integers.
_MAX_CARDINAL_DIGITS = 36
# Decimals and amounts of money are read from floats, which hold no more digits than these.
_MAX_FLOAT_DIGITS = 15

# Converters of num2words keep the number they work on in themselves.
_num2words_lock = threading.Lock()


def expand_numbers(text: str, language: str) -> str:
    """Writes the numbers of a text in words, in lower case.

    Args:
        text: Lower-case text.
        language: Language code as in `languages.LANGUAGES`, without region.

    Returns:
        The text with every run of ASCII digits, and the script's own digits where it has some, in words.

    Raises:
        ImportError: The text has digits and num2words is not installed.
    """
    if language == "zh":
        return expand_chinese_numbers(text)
    if language in OWN_NUMBERS:
        return expand_own_numbers(text, language, partial(number_to_words, language=language))
    if language == "ar":
        text = text.translate(_ARABIC_DIGITS)
    if not _ANY_DIGIT.search(text):
        return text
    if language in ("en", "ru"):
        text = _COMMA_THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    else:
        text = _DOT_THOUSANDS.sub(lambda match: match.group().replace(".", ""), text)
    text = _expand_currencies(text, language)
    if language != "tr":
        text = _DECIMAL.sub(lambda match: _decimal(match.group(), language), text)
    if language in _ORDINALS:
        text = _ORDINALS[language].sub(lambda match: _ordinal(match.group(1), language), text)
    return _CARDINAL.sub(lambda match: digits_to_words(match.group(), language), text)


def _expand_currencies(text: str, language: str) -> str:
    for currency, pattern in _CURRENCIES:
        try:
            text = pattern.sub(lambda match: _amount(match.group(), language, currency), text)
        except _REFUSALS:
            # As in the reference, the first amount that cannot be read leaves this and later currencies as they are.
            break
    return text


def _amount(written: str, language: str, currency: str) -> str:
    amount = _to_float(_NOT_AMOUNT.sub("", written.replace(",", ".")))
    words = number_to_words(amount, language, to="currency", currency=currency)
    if amount.is_integer():
        units, joint, _ = words.rpartition(_CENTS_JOINT.get(language, ", "))
        words = units if joint else words
    return words


def _decimal(written: str, language: str) -> str:
    try:
        return number_to_words(_to_float(written.replace(",", ".")), language)
    except _REFUSALS:
        return written  # Its two runs of digits are read by the rules that follow.


def _to_float(written: str) -> float:
    if len(written.partition(".")[0].lstrip("0")) > _MAX_FLOAT_DIGITS:
        raise OverflowError(f"{written} has more digits than a float holds.")
    return float(written)


def _ordinal(digits: str, language: str) -> str:
    if len(digits) > _MAX_CARDINAL_DIGITS:
        return digits_to_words(digits, language)
    try:
        if language == "cs":
            return czech_ordinal(int(digits), partial(number_to_words, language="cs"))
        return number_to_words(int(digits), language, to="ordinal")
    except _REFUSALS:
        return digits_to_words(digits, language) + (" 번째" if language == "ko" else "")


def digits_to_words(digits: str, language: str) -> str:
    """Reads a run of ASCII digits as a cardinal or, where it is too large for the language, digit by digit."""
    if len(digits) <= _MAX_CARDINAL_DIGITS:
        try:
            return number_to_words(int(digits), language)
        except _REFUSALS:
            pass
    return " ".join(number_to_words(int(digit), language) for digit in digits)


# Typed, as 2 and 2.0 are one key otherwise, and "two" is not "two point zero".
@lru_cache(maxsize=65536, typed=True)
def number_to_words(number: int | float, language: str, to: str = "cardinal", **kwargs: str) -> str:
    """Calls num2words and lower-cases what it returns.

    Args:
        number: The number.
        language: Language code.
        to: `"cardinal"`, `"ordinal"` or `"currency"`.
        **kwargs: Passed on, such as `currency="EUR"`.

    Returns:
        The number in words.

    Raises:
        ImportError: num2words is not installed.
        NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError: It cannot be said.
    """
    num2words = import_extra("num2words", "num2words", "Numbers in text").num2words
    with _num2words_lock:
        return num2words(number, lang=language, to=to, **kwargs).lower()

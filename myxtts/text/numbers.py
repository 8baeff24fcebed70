"""Numbers to words: cardinals, ordinals, decimals and amounts of money.

`Num2Words` follows the order of the reference (thousands separators, currency, decimals, ordinals, cardinals), so that
token ids agree with released checkpoints. Languages that num2words lacks or misreads use `SpelledNumbers` or a function
of their own.
"""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

# The unescaped dot of the second pattern is the reference's. It changes only where the next match starts.
_THOUSANDS = {",": re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b"), ".": re.compile(r"\b\d{1,3}(.\d{3})*(,\d+)?\b")}
# Here and below, possessive quantifiers and look-behinds keep the search linear in long runs of digits.
_DECIMAL = re.compile(r"(?<![0-9])[0-9]++[.,][0-9]+")
_INTEGER = re.compile("[0-9]+")
_NOT_AMOUNT = re.compile(r"[^\d.]")
_CURRENCIES = tuple(
    (currency, re.compile(rf"{sign}[0-9.,]*[0-9]|(?<![0-9.,])[0-9.,]*+(?<=[0-9]){sign}"))
    for currency, sign in (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
)
# Errors of num2words for an unknown language or currency (NotImplementedError, TypeError), a number beyond its tables
# (ArithmeticError, LookupError, RecursionError) and text that is not a number (ValueError).
_REFUSALS = (NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError)
# Longer digit runs are codes, not quantities; `int` rejects very long ones.
_MAX_CARDINAL_DIGITS = 36
# Decimals and amounts of money pass through floats, which hold no more digits.
_MAX_FLOAT_DIGITS = 15
# num2words' converters store the current number in the object, so they are not thread-safe.
_num2words_lock = threading.Lock()


@dataclass(frozen=True)
class Num2Words:
    """Expands every run of ASCII digits in a lower-case text to words by num2words."""

    code: str
    """Code of the language in num2words."""
    ordinal_endings: str = "(?!)"
    """Endings that mark the digits before them as an ordinal: alternatives of a regular expression."""
    thousands: Literal[".", ","] = "."
    """Separator of groups of three digits."""
    cents_joint: str = ", "
    """Text that num2words puts between the units and the hundredths of an amount of money."""
    reads_decimals: bool = True
    """Whether 2,5 is a decimal; otherwise it is two numbers."""
    to_ordinal: Callable[[int], str] | None = None
    """Replaces num2words for ordinals."""
    ordinal_suffix: str = ""
    """Text after the cardinal that replaces an ordinal which num2words lacks."""

    def __call__(self, text: str) -> str:
        text = _THOUSANDS[self.thousands].sub(lambda match: match.group().replace(self.thousands, ""), text)
        # As in the reference, the first amount that num2words cannot read ends the expansion of currencies.
        with suppress(*_REFUSALS):
            for currency, pattern in _CURRENCIES:
                text = pattern.sub(lambda match: self._read_amount(match.group(), currency), text)
        if self.reads_decimals:
            text = _DECIMAL.sub(lambda match: self._read_decimal(match.group()), text)
        ordinal = f"(?<![0-9])([0-9]++)(?:{self.ordinal_endings})"
        text = re.sub(ordinal, lambda match: self._read_ordinal(match[1]), text)
        return _INTEGER.sub(lambda match: self._read_cardinal(match.group()), text)

    def _read_amount(self, written: str, currency: str) -> str:
        amount = _to_float(_NOT_AMOUNT.sub("", written.replace(",", ".")))
        words = number_to_words(amount, self.code, to="currency", currency=currency)
        return words.rsplit(self.cents_joint, 1)[0] if amount.is_integer() else words

    def _read_decimal(self, written: str) -> str:
        with suppress(*_REFUSALS):
            return number_to_words(_to_float(written.replace(",", ".")), self.code)
        return written  # the rules that follow expand its two runs of digits

    def _read_ordinal(self, digits: str) -> str:
        with suppress(*_REFUSALS):
            if len(digits) <= _MAX_CARDINAL_DIGITS:
                number = int(digits)
                return self.to_ordinal(number) if self.to_ordinal else number_to_words(number, self.code, to="ordinal")
        return self._read_cardinal(digits) + self.ordinal_suffix

    def _read_cardinal(self, digits: str) -> str:
        """Reads digits as a cardinal, or one by one if num2words has no words for the number."""
        with suppress(*_REFUSALS):
            if len(digits) <= _MAX_CARDINAL_DIGITS:
                return number_to_words(int(digits), self.code)
        return " ".join(number_to_words(int(digit), self.code) for digit in digits)


def _to_float(written: str) -> float:
    if len(written.partition(".")[0].lstrip("0")) > _MAX_FLOAT_DIGITS:
        raise OverflowError(f"{written} has more digits than a float holds.")
    return float(written)


# `typed` keeps 2 ("two") and 2.0 ("two point zero") apart.
@lru_cache(maxsize=65536, typed=True)
def number_to_words(number: int | float, code: str, to: str = "cardinal", **kwargs: str) -> str:
    """Returns the lower-case words of num2words; `to` is `"cardinal"`, `"ordinal"` or `"currency"`.

    Raises one of `_REFUSALS` if num2words cannot read the number.
    """
    from num2words import num2words  # takes 0.1 s; most texts have no digits

    with _num2words_lock:
        return num2words(number, lang=code, to=to, **kwargs).lower()


_POINT_DECIMAL = re.compile(r"(?<![0-9])([0-9]++)\.([0-9]+)")
# The `re` module does not count Devanagari vowel signs as letters.
_LETTER = r"[^\W\d_\u0900-\u0963]|[\u0900-\u0963]"
_LETTER_THEN_DIGIT = re.compile(rf"(?<={_LETTER})(?=[0-9])|(?<=\u200c)(?=[0-9])")
# Above all `max_integer`; longer runs of digits are not converted by `int`.
_MAX_SPELLED_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class SpelledNumbers:
    """Expands every run of ASCII digits in a lower-case text to words, by a language's own cardinals."""

    cardinal: Callable[[int], str]
    """Returns the words of a natural number."""
    max_integer: int
    """Largest integer with words; larger ones are read digit by digit."""
    ordinal_ending: str
    """Pattern of the ending of an ordinal's digits; its group, if any, is kept after the words."""
    to_ordinal: Callable[[str, int], str]
    """Returns the ordinal of a cardinal in words and its number."""
    point: str
    """Word for the decimal point."""
    currencies: dict[str, str]
    """Words for the unit and its hundredth, separated by a space, by currency sign."""
    cents_joint: str
    """Text between units and hundredths."""
    thousands: str = r"\b[0-9]{1,3}(?:,[0-9]{3})+\b"
    """Pattern of a number with commas between groups of digits."""
    sets_words_apart: bool = False
    """Whether to put a space between digits and a letter next to them."""
    attached_endings: str = "(?!)"
    """Pattern of endings that stay attached to digits."""

    def __call__(self, text: str) -> str:
        sign, number = f"[{''.join(self.currencies)}]", r"[0-9]++(?:\.[0-9]++)?"
        amount = f"(?P<before>{sign}) ?(?P<amount>{number})|(?<![0-9])(?P<number>{number}) ?(?P<after>{sign})"
        text = re.sub(self.thousands, lambda match: match.group().replace(",", ""), text)
        if self.sets_words_apart:
            text = _LETTER_THEN_DIGIT.sub(" ", text)
        text = re.sub(amount, self._read_amount, text)
        text = re.sub(f"(?<![0-9])([0-9]++){self.ordinal_ending}", self._read_ordinal, text)
        if self.sets_words_apart:
            text = re.sub(rf"(?<=[0-9])\u200c?(?={_LETTER})(?!{self.attached_endings})", " ", text)
        text = _POINT_DECIMAL.sub(lambda match: self._read_decimal(match[1], match[2]), text)
        return _INTEGER.sub(lambda match: self._read_integer(match.group()), text)

    def _has_words_for(self, digits: str) -> bool:
        return len(digits) <= _MAX_SPELLED_DIGITS and int(digits) <= self.max_integer

    def _read_integer(self, digits: str) -> str:
        return self.cardinal(int(digits)) if self._has_words_for(digits) else self._read_digits(digits)

    def _read_digits(self, digits: str) -> str:
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def _read_decimal(self, whole: str, fraction: str) -> str:
        return f"{self._read_integer(whole)} {self.point} {self._read_digits(fraction)}"

    def _read_amount(self, match: re.Match) -> str:
        unit, hundredth = self.currencies[match["before"] or match["after"]].split()
        whole, _, fraction = (match["amount"] or match["number"]).partition(".")
        if len(fraction) > 2:
            return f"{self._read_decimal(whole, fraction)} {unit}"
        words = f"{self._read_integer(whole)} {unit}"
        if fraction.strip("0"):
            words += f"{self.cents_joint}{self._read_integer(fraction.ljust(2, '0'))} {hundredth}"
        return words

    def _read_ordinal(self, match: re.Match) -> str:
        digits, *kept_ending = match.groups(default="")
        if not self._has_words_for(digits):
            return self._read_integer(digits) + match[0][len(digits) :]
        return self.to_ordinal(self.cardinal(int(digits)), int(digits)) + "".join(kept_ending)


def join_units(number: int, units: dict[int, str], cardinal: Callable[[int], str]) -> str:
    """Reads a number by its largest unit, as count, name and rest: two thousand five. `units` are largest first."""
    value, name = next((value, name) for value, name in units.items() if value <= number)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")

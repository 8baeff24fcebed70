"""Conversion of numbers to words: cardinals, ordinals, decimals and amounts of money.

`Num2Words` has the same order of steps as Coqui's XTTS (thousands separators, currency, decimals, ordinals, cardinals),
so that token ids agree with released checkpoints. `SpelledNumbers` is for languages that num2words lacks or misreads.
"""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from myxtts.config.checks import needing

# The unescaped dot of the second pattern follows the reference. It changes only where the next match starts.
_THOUSANDS = {",": re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b"), ".": re.compile(r"\b\d{1,3}(.\d{3})*(,\d+)?\b")}
# Here and below, possessive quantifiers and look-behinds keep the search linear in long runs of digits.
_DECIMAL = re.compile(r"(?<![0-9])[0-9]++[.,][0-9]+")
_INTEGER = re.compile("[0-9]+")
_CURRENCIES = tuple(
    (currency, re.compile(rf"{sign}[0-9.,]*[0-9]|(?<![0-9.,])[0-9.,]*+(?<=[0-9]){sign}"))
    for currency, sign in (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
)
# num2words raises NotImplementedError or TypeError for an unknown language or currency, ArithmeticError, LookupError or
# RecursionError for a number beyond its tables, and ValueError for text that is not a number.
REFUSALS = (NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError)
_MAX_CARDINAL_DIGITS = 36  # longer numbers are codes, not quantities; `int` rejects very long ones
_num2words_lock = threading.Lock()  # num2words is not thread-safe: its converters store the current number


@dataclass(frozen=True)
class Num2Words:
    """Replaces all ASCII digits in a lower-case text by words, with num2words."""

    code: str
    """Code of the language in num2words."""
    ordinal_endings: str = "(?!)"
    """Regular expression of the endings that turn digits into an ordinal; by default, there are none."""
    thousands: Literal[".", ","] = "."
    """Thousands separator, which is removed."""
    cents_joint: str = ", "
    """Text that num2words puts between the units and the hundredths of an amount of money."""
    reads_decimals: bool = True
    """Whether `2,5` is read as a decimal; otherwise it is read as two numbers."""
    to_ordinal: Callable[[str], str] | None = None
    """Function that turns the words of a cardinal into an ordinal. If it is None, num2words spells ordinals."""
    ordinal_suffix: str = ""
    """Ending that is appended to a cardinal to form an ordinal, if num2words cannot spell the ordinal."""

    def __call__(self, text: str) -> str:
        text = _THOUSANDS[self.thousands].sub(lambda match: match.group().replace(self.thousands, ""), text)
        # As in the reference, no amounts are replaced after the first one that num2words cannot read.
        with suppress(*REFUSALS):
            for currency, pattern in _CURRENCIES:
                text = pattern.sub(lambda match: self._read_amount(match.group(), currency), text)
        if self.reads_decimals:
            text = _DECIMAL.sub(lambda match: self._read_decimal(match.group()), text)
        text = re.sub(f"(?<![0-9])([0-9]++)(?:{self.ordinal_endings})", lambda one: self._read_ordinal(one[1]), text)
        return _INTEGER.sub(lambda match: self._read_cardinal(match.group()), text)

    def _read_amount(self, written: str, currency: str) -> str:
        amount = _to_float(re.sub(r"[^\d.]", "", written.replace(",", ".")))
        words = number_to_words(amount, self.code, to="currency", currency=currency)
        return words.rsplit(self.cents_joint, 1)[0] if amount.is_integer() else words

    def _read_decimal(self, written: str) -> str:
        with suppress(*REFUSALS):
            return number_to_words(_to_float(written.replace(",", ".")), self.code)
        return written  # `__call__` then reads two integers

    def _read_ordinal(self, digits: str) -> str:
        with suppress(*REFUSALS):
            if len(digits) <= _MAX_CARDINAL_DIGITS:
                words = number_to_words(int(digits), self.code, "cardinal" if self.to_ordinal else "ordinal")
                return self.to_ordinal(words) if self.to_ordinal else words
        return self._read_cardinal(digits) + self.ordinal_suffix

    def _read_cardinal(self, digits: str) -> str:
        """Spells `digits` as one cardinal number or, if num2words cannot read the number, digit by digit."""
        with suppress(*REFUSALS):
            if len(digits) <= _MAX_CARDINAL_DIGITS:
                return number_to_words(int(digits), self.code)
        return " ".join(number_to_words(int(digit), self.code) for digit in digits)


def _to_float(written: str) -> float:
    if len(written.partition(".")[0].lstrip("0")) > 15:  # a float cannot represent more digits
        raise OverflowError(f"{written} has more digits than a float holds.")
    return float(written)


# `typed` keeps 2 ("two") and 2.0 ("two point zero") apart.
@lru_cache(maxsize=65536, typed=True)
def number_to_words(number: int | float, code: str, to: str = "cardinal", **kwargs: str) -> str:
    """Converts a number to lower-case words. Raises one of `REFUSALS` if num2words fails or is not installed."""
    with needing("Numbers need the package num2words: pip install num2words"):
        from num2words import num2words  # takes 0.1 s; most texts have no digits

    with _num2words_lock:
        return num2words(number, lang=code, to=to, **kwargs).lower()


_POINT_DECIMAL = re.compile(r"(?<![0-9])([0-9]++)\.([0-9]+)")
# The `re` module does not count Devanagari vowel signs as letters.
_LETTER = r"[^\W\d_\u0900-\u0963]|[\u0900-\u0963]"
_LETTER_THEN_DIGIT = re.compile(rf"(?<={_LETTER})(?=[0-9])|(?<=\u200c)(?=[0-9])")


@dataclass(frozen=True, kw_only=True)
class SpelledNumbers:
    """Replaces all ASCII digits in a lower-case text by words, without num2words."""

    cardinal: Callable[[int], str]
    """Function that returns the words of a number from 0 to `max_integer`."""
    max_integer: int
    """Largest number that `cardinal` accepts; larger numbers, and codes such as 00123, are read digit by digit."""
    ordinal_ending: str = "(?!)"
    """Regular expression of the ending that makes digits an ordinal. The words of the ordinal replace the digits
    and the ending. Text that a group of the expression matches, such as a case ending, is kept after the words."""
    to_ordinal: Callable[[str], str] = str
    """Function that turns the words of a cardinal into the words of the ordinal."""
    point: str  # the word for it
    currencies: dict[str, str]
    """For each currency sign, the words for the unit and for a hundredth, separated by a space: `dollar cent`."""
    cents_joint: str
    """Text between the units and the hundredths of an amount of money."""
    thousands: str = "(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])"
    """Regular expression of numbers with commas as thousands separators. The commas are removed."""
    sets_words_apart: bool = False
    """Whether to insert a space between digits and letters next to them."""
    attached_endings: str = "(?!)"
    """Regular expression of endings before which `sets_words_apart` inserts no space."""

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
        # More than 18 digits are more than any `max_integer` has, and `int` rejects very long numbers.
        return not (len(digits) > 18 or digits[0] == "0" and len(digits) > 4) and int(digits) <= self.max_integer

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
        return self.to_ordinal(self.cardinal(int(digits))) + "".join(kept_ending)


def spell_number(number: int, words: list[str], units: dict[int, str]) -> str:
    """Spells a number. `words[n]` is the word for n. `units` maps larger values to names, with the largest first."""
    if number < len(words):
        return words[number]
    value, name = next((value, name) for value, name in units.items() if value <= number)
    count, rest = divmod(number, value)
    return f"{spell_number(count, words, units)} {name}" + (f" {spell_number(rest, words, units)}" if rest else "")

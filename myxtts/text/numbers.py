"""Numbers to words: cardinals, ordinals, decimals and amounts of money.

`Num2Words` reads them by num2words. Its order is the reference's (thousands separators, currency, decimals, ordinals,
cardinals), so that token ids agree with released checkpoints. Languages that num2words lacks or misreads have
`SpelledNumbers` or a function of their own.
"""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

# In the second, the unescaped dot is the reference's: it also joins what any one character separates, which only
# matters for where the next match starts.
_THOUSANDS = {",": re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b"), ".": re.compile(r"\b\d{1,3}(.\d{3})*(,\d+)?\b")}
# Here and below, possessive quantifiers and look-behinds keep the search linear in long runs of digits.
_DECIMAL = re.compile(r"(?<![0-9])[0-9]++[.,][0-9]+")
_INTEGER = re.compile("[0-9]+")
_NOT_AMOUNT = re.compile(r"[^\d.]")
_CURRENCIES = tuple(
    (currency, re.compile(rf"{sign}[0-9.,]*[0-9]|(?<![0-9.,])[0-9.,]*+(?<=[0-9]){sign}"))
    for currency, sign in (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
)
# num2words refuses a language or currency that it lacks (NotImplementedError, TypeError), a number beyond its tables
# (ArithmeticError, LookupError, RecursionError), and what is no number (ValueError).
_REFUSALS = (NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError)
# Longer digit runs are no quantities but codes; Python itself refuses to read very long ones as integers.
_MAX_CARDINAL_DIGITS = 36
# Decimals and amounts of money are read from floats, which hold no more digits than these.
_MAX_FLOAT_DIGITS = 15
# Converters of num2words keep the number they work on in themselves.
_num2words_lock = threading.Lock()


@dataclass(frozen=True)
class Num2Words:
    """Writes the numbers of a lower-case text in words, every run of ASCII digits, as num2words reads them."""

    code: str
    """Code of the language in num2words."""
    ordinal_endings: str = ""
    """What follows the digits of an ordinal: alternatives of a regular expression."""
    thousands: Literal[".", ","] = "."
    """What separates groups of three digits."""
    cents_joint: str = ", "
    """What num2words says between the units and the hundredths of an amount of money."""
    reads_decimals: bool = True
    """Whether 2,5 is a decimal; two numbers otherwise."""
    to_ordinal: Callable[[int], str] | None = None
    """Reads ordinals in place of num2words."""
    ordinal_suffix: str = ""
    """What follows the cardinal by which an ordinal is read that num2words refuses."""

    @cached_property
    def _ordinal_pattern(self) -> re.Pattern:
        return re.compile(f"(?<![0-9])([0-9]++)(?:{self.ordinal_endings or '(?!)'})")

    def __call__(self, text: str) -> str:
        text = _THOUSANDS[self.thousands].sub(lambda match: match.group().replace(self.thousands, ""), text)
        # As in the reference, the first amount that cannot be read leaves this and later currencies as is.
        with suppress(*_REFUSALS):
            for currency, pattern in _CURRENCIES:
                text = pattern.sub(lambda match: self._read_amount(match.group(), currency), text)
        if self.reads_decimals:
            text = _DECIMAL.sub(lambda match: self._read_decimal(match.group()), text)
        text = self._ordinal_pattern.sub(lambda match: self._read_ordinal(match.group(1)), text)
        return _INTEGER.sub(lambda match: self._read_cardinal(match.group()), text)

    def _read_amount(self, written: str, currency: str) -> str:
        amount = _to_float(_NOT_AMOUNT.sub("", written.replace(",", ".")))
        words = number_to_words(amount, self.code, to="currency", currency=currency)
        return words.rsplit(self.cents_joint, 1)[0] if amount.is_integer() else words

    def _read_decimal(self, written: str) -> str:
        with suppress(*_REFUSALS):
            return number_to_words(_to_float(written.replace(",", ".")), self.code)
        return written  # Its two runs of digits are read by the rules that follow.

    def _read_ordinal(self, digits: str) -> str:
        if len(digits) > _MAX_CARDINAL_DIGITS:
            return self._read_cardinal(digits)
        try:
            number = int(digits)
            return self.to_ordinal(number) if self.to_ordinal else number_to_words(number, self.code, to="ordinal")
        except _REFUSALS:
            return self._read_cardinal(digits) + self.ordinal_suffix

    def _read_cardinal(self, digits: str) -> str:
        """Reads digits as a cardinal or, where it is too large for the language, one by one."""
        with suppress(*_REFUSALS):
            if len(digits) <= _MAX_CARDINAL_DIGITS:
                return number_to_words(int(digits), self.code)
        return " ".join(number_to_words(int(digit), self.code) for digit in digits)


def _to_float(written: str) -> float:
    if len(written.partition(".")[0].lstrip("0")) > _MAX_FLOAT_DIGITS:
        raise OverflowError(f"{written} has more digits than a float holds.")
    return float(written)


# Typed, as 2 and 2.0 are one key otherwise, and "two" is not "two point zero".
@lru_cache(maxsize=65536, typed=True)
def number_to_words(number: int | float, code: str, to: str = "cardinal", **kwargs: str) -> str:
    """Calls num2words (`to` is `"cardinal"`, `"ordinal"` or `"currency"`) and lower-cases what it returns.

    Raises:
        NotImplementedError, TypeError, ArithmeticError, LookupError, RecursionError, ValueError: It has no word for it.
    """
    from num2words import num2words  # 0.1 s, which texts without digits do not need

    with _num2words_lock:
        return num2words(number, lang=code, to=to, **kwargs).lower()


_POINT_DECIMAL = re.compile(r"(?<![0-9])([0-9]++)\.([0-9]+)")
_SLASH_DECIMAL = re.compile("(?<![0-9/])([0-9]++)/([0-9]++)(?!/)")
_SLASH_IN_DATE = re.compile("(?<=[0-9])/(?=[0-9])")
# Devanagari vowel signs are no letters to the `re` module.
_LETTER = r"[^\W\d_\u0900-\u0963]|[\u0900-\u0963]"
_LETTER_THEN_DIGIT = re.compile(rf"(?<={_LETTER})(?=[0-9])|(?<=\u200c)(?=[0-9])")
# Keeps `int` off runs of digits that are too long to convert; far above what any language has words for.
_MAX_SPELLED_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class SpelledNumbers:
    """Writes the numbers of a lower-case text in words, every run of ASCII digits. A point starts the decimals."""

    cardinal: Callable[[int], str]
    """Reads a natural number."""
    max_integer: int
    """Larger integers are read digit by digit."""
    ordinal_ending: str
    """What follows the digits of an ordinal, as a regular expression; its group, if any, follows the words too."""
    to_ordinal: Callable[[str, int], str]
    """Makes an ordinal of a cardinal in words and its number."""
    point: str
    """The decimal point as a word."""
    currencies: dict[str, str]
    """Sign to the words for the unit and its hundredth, with a space between them."""
    cents_joint: str
    """What is said between units and hundredths."""
    thousands: str = r"\b[0-9]{1,3}(?:,[0-9]{3})+\b"
    """A number whose commas separate groups, as a regular expression."""
    decimal_slash: bool = False
    """Whether a slash is a decimal point as well; two slashes make a date."""
    sets_words_apart: bool = False
    """Whether a word that touches digits is set apart by a space."""
    attached_endings: tuple[str, ...] = ()
    """Endings that are not set apart from digits."""

    def __call__(self, text: str) -> str:
        thousands, amount, ordinal, digit_then_letter = self._patterns
        text = thousands.sub(lambda match: match.group().replace(",", ""), text)
        if self.decimal_slash:
            text = _SLASH_IN_DATE.sub(" ", _SLASH_DECIMAL.sub(r"\1.\2", text))
        if self.sets_words_apart:
            text = _LETTER_THEN_DIGIT.sub(" ", text)
        text = ordinal.sub(self._read_ordinal, amount.sub(self._read_amount, text))
        if self.sets_words_apart:
            text = digit_then_letter.sub(" ", text)
        text = _POINT_DECIMAL.sub(lambda match: self._read_decimal(match[1], match[2]), text)
        return _INTEGER.sub(lambda match: self._read_integer(match.group()), text)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern, ...]:
        sign, number = f"[{''.join(self.currencies)}]", r"[0-9]++(?:\.[0-9]++)?"
        endings = "".join(f"(?!{ending})" for ending in self.attached_endings)
        patterns = (
            self.thousands,
            f"(?P<before>{sign}) ?(?P<amount>{number})|(?<![0-9])(?P<number>{number}) ?(?P<after>{sign})",
            f"(?<![0-9])([0-9]++){self.ordinal_ending}",
            rf"(?<=[0-9])\u200c?(?={_LETTER}){endings}",
        )
        return tuple(map(re.compile, patterns))

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
    """Reads a number by the largest of `units` (value to name, largest first) in it: how many, the name, the rest."""
    value, name = next((value, name) for value, name in units.items() if value <= number)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")

"""Numbers to words by a language's own rules, for languages that num2words cannot read or reads wrongly."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

_INTEGER = re.compile("[0-9]+")
_DECIMAL = re.compile(r"(?<![0-9])([0-9]++)\.([0-9]+)")
_DECIMAL_SLASH = re.compile("(?<![0-9/])([0-9]++)/([0-9]++)(?!/)")
_SLASH_IN_DATE = re.compile("(?<=[0-9])/(?=[0-9])")
# Devanagari vowel signs are no letters to the `re` module.
_LETTER = r"[^\W\d_\u0900-\u0963]|[\u0900-\u0963]"
_LETTER_THEN_DIGIT = re.compile(rf"(?<={_LETTER})(?=[0-9])|(?<=\u200c)(?=[0-9])")
# Keeps `int` off runs of digits that are too long to convert; far above what any language has words for.
_MAX_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class SpelledNumbers:
    """Writes the numbers of a lower-case text, every run of ASCII digits, in words. A point starts the decimals."""

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
        if not _INTEGER.search(text):
            return text
        thousands, amount, ordinal, digit_then_letter = self._patterns
        text = thousands.sub(lambda match: match.group().replace(",", ""), text)
        if self.decimal_slash:
            text = _SLASH_IN_DATE.sub(" ", _DECIMAL_SLASH.sub(r"\1.\2", text))
        if self.sets_words_apart:
            text = _LETTER_THEN_DIGIT.sub(" ", text)
        text = ordinal.sub(self._read_ordinal, amount.sub(self._read_amount, text))
        if self.sets_words_apart:
            text = digit_then_letter.sub(" ", text)
        text = _DECIMAL.sub(lambda match: self._read_decimal(match[1], match[2]), text)
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

    def _read_integer(self, digits: str) -> str:
        if len(digits) <= _MAX_DIGITS and int(digits) <= self.max_integer:
            return self.cardinal(int(digits))
        return self._read_digits(digits)

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
        if len(digits) > _MAX_DIGITS or int(digits) > self.max_integer:
            return self._read_integer(digits) + match[0][len(digits) :]
        return self.to_ordinal(self.cardinal(int(digits)), int(digits)) + "".join(kept_ending)


def join_units(number: int, units: dict[int, str], cardinal: Callable[[int], str]) -> str:
    """Reads a number by the largest of `units` (value to name, largest first) in it: how many, the name, the rest."""
    value, name = next((value, name) for value, name in units.items() if value <= number)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")

"""`Language`, and what the modules of this package are written with."""

import importlib
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from myxtts.text.numbers import Num2Words, SpelledNumbers


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """One language that the text front end reads aloud. Fields without a default must be stated."""

    code: str
    """ISO 639-1 code."""
    name: str
    """English name."""
    char_limit: int
    """Longest text, in characters, that is spoken in one go; longer text is split (`sentences.split_text`)."""
    tag: str = ""
    """The vocabulary entry that starts every text of the language; by default the code in brackets, such as `[en]`."""
    normalize: Callable[[str], str] = str
    """Brings the text as written to the script's plain letters and ASCII digits, before it is lower-cased."""
    expand_numbers: Num2Words | SpelledNumbers | Callable[[str], str]
    """Writes the numbers of a lower-case text in words."""
    abbreviations: dict[str, str]
    """Abbreviations, lower-case and without their final stop, and what they are read as, in order of replacement."""
    abbreviation_stop: Literal["always", "optional", "never"] = "always"
    """Whether the abbreviations are written with a final stop."""
    symbols: dict[str, str]
    """Symbols and the words that replace them."""
    symbol_readings: dict[str, str]
    """Words for symbols that a vocabulary lacks, used only then; already romanized if `romanize` is set."""
    romanize: Callable[[str], str] | None = None
    """Writes the cleaned text in Latin letters; raises as `import_extra`."""
    romanizes_as_written: bool = False
    """Whether `romanize` takes the text as written and is all the cleaning there is."""
    ordinal_stop: bool = False
    """Whether a number with a full stop is an ordinal more often than the end of a sentence."""
    other_names: tuple[str, ...] = ()
    """What else it is called, in lower case: by ISO 639-2 and 639-3, and by those who speak it."""
    scripts: tuple[str, ...] = ("LATIN",)
    """First words of the Unicode names of its letters; of the first of them every longer text has some."""
    letters: str = ""
    """Lower-case letters of cleaned text beyond a to z and marks beyond ,.?!; in another script, all that it has."""
    own_letters: str = ""
    """Letters that no other language of the same scripts has."""
    phonemize: Callable[[str, str], str] | None = None
    """Writes cleaned text as it sounds; called with the text and the alphabet, `"latin"` or `"ipa"`."""

    def __post_init__(self):
        object.__setattr__(self, "tag", self.tag or f"[{self.code}]")

    @property
    def alphabet(self) -> str:
        """Letters and marks of its cleaned texts."""
        is_latin = self.scripts[0] == "LATIN" or self.romanize
        return (string.ascii_lowercase if is_latin else "") + self.letters + ",.?!"

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called, in lower case."""
        return self.name.lower(), *self.other_names


def table(entries: str) -> dict[str, str]:
    """Reads a table written as `"mr mister, dhr de heer"`: entries end at commas or lines, keys at their first space.

    Raises:
        ValueError: A key has no words, or occurs twice.
    """
    words: dict[str, str] = {}
    for entry in filter(None, map(str.strip, re.split("[,\n]", entries))):
        key, _, value = entry.partition(" ")
        if not value or key in words:
            raise ValueError(f"{key!r} {'occurs twice' if value else 'has no words'} in the table {entries!r}.")
        words[key] = value
    return words


def import_extra(module: str, purpose: str) -> ModuleType:
    """Imports a package of the extra `languages`: `import_extra("hangul_romanize", "Korean text")`.

    Raises:
        ImportError: It is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        install = f'pip install {package} (for all languages, in the repository: pip install -e ".[languages]")'
        raise ImportError(f"{purpose} needs the package {package}. Install it with: {install}") from error

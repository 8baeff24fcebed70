"""`Language`, the description of one language, and helpers of the language modules."""

import importlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from myxtts.text.numbers import Num2Words, SpelledNumbers


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """A language as cleaning, splitting and tokenization see it."""

    code: str
    """ISO 639-1 code."""
    name: str
    """English name."""
    char_limit: int
    """Longest text, in characters, that is spoken in one go; longer text is split (`cleaners.split_text`)."""
    tag: str = ""
    """Vocabulary entry that starts every text of the language; by default the code in brackets, such as `[en]`."""
    normalize: Callable[[str], str] = str
    """Unifies the letters and digits of the text as written, before it is lower-cased."""
    expand_numbers: Num2Words | SpelledNumbers | Callable[[str], str]
    """Writes the numbers of a lower-case text in words."""
    abbreviations: dict[str, str] = field(default_factory=dict)
    """Expansions by abbreviation, lower-case and without the final stop, in order of replacement."""
    abbreviation_stop: Literal["always", "optional", "never"] = "always"
    """Whether abbreviations end with a full stop."""
    symbols: dict[str, str]
    """Words that replace each symbol."""
    symbol_readings: dict[str, str] = field(default_factory=dict)
    """Words for symbols that a vocabulary lacks, used only then; already romanized if `romanize` is set."""
    romanize: Callable[[str], str] | None = None
    """Writes the cleaned text in Latin letters; raises ImportError as `import_extra` does."""
    romanizes_as_written: bool = False
    """Whether `romanize` takes the text as written and replaces all other cleaning."""
    ordinal_stop: bool = False
    """Whether a number with a full stop is an ordinal more often than the end of a sentence."""
    other_names: tuple[str, ...] = ()
    """Lower-case ISO 639-2 and 639-3 codes, and names in the language itself."""
    scripts: tuple[str, ...] = ("LATIN",)
    """First words of the Unicode names of its letters; every longer text has letters of the first script."""
    letters: str = ""
    """Lower-case letters and marks of cleaned text beyond a to z and ,.?!; all letters if the script is another."""
    own_letters: str = ""
    """Letters that no other language of the same scripts has."""
    phonemize: Callable[[str, str], str] | None = None
    """Writes cleaned text as phonemes; called with the text and the alphabet, `"latin"` or `"ipa"`."""

    def __post_init__(self):
        object.__setattr__(self, "tag", self.tag or f"[{self.code}]")


def table(entries: str) -> dict[str, str]:
    """Parses a table written as `"mr mister, dhr de heer"`: entries end at commas or lines, keys at their first space.

    Raises `ValueError` if a key has no words, or occurs twice.
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

    Raises `ImportError` with the command that installs it if it is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        install = f'pip install {package}, or for all languages: pip install "myxtts[languages]"'
        raise ImportError(f"{purpose} needs the package {package}. Install it with: {install}") from error


DESCRIPTIONS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("languages.toml").read_text(encoding="utf-8")
)
"""Fields of the languages in `languages.toml` by code."""


def described(code: str, to_ordinal: Callable[[int], str] | None = None, **functions: Any) -> Language:
    """Makes the language of `DESCRIPTIONS` with this code; `functions` are the fields that TOML cannot hold.

    Its numbers are read by num2words, with `to_ordinal` for ordinals if given, unless `expand_numbers` is given.
    """
    fields = {"code": code} | DESCRIPTIONS[code]
    fields["expand_numbers"] = Num2Words(code, **fields.pop("numbers", {}), to_ordinal=to_ordinal)
    for name in {"abbreviations", "symbols", "symbol_readings"} & {*fields}:
        fields[name] = table(fields[name])
    for name in {"other_names", "scripts"} & {*fields}:
        fields[name] = tuple(fields[name])
    return Language(**fields | functions)

"""The class `Language`, which describes one language, and helper functions for the language modules."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from operator import methodcaller
from typing import Any, Literal

from myxtts.config.checks import read_toml
from myxtts.text.numbers import REFUSALS, Num2Words, SpelledNumbers, number_to_words, spell_number


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """Properties of one language that text cleaning, sentence splitting and tokenization need."""

    code: str
    """ISO 639-1 code."""
    name: str  # in English
    char_limit: int
    """Maximum length of the texts given to the model, in characters. `cleaners.split_text` splits longer texts."""
    tag: str = ""
    """Token at the start of every text of the language; by default the code in brackets, such as `[en]`."""
    normalize: Callable[[str], str] = str
    """Function that unifies variants of letters and digits, applied before the text is lower-cased."""
    write_out: Callable[[str], str] = str
    """Function that writes out dates, units and abbreviations in uncleaned text, for eSpeak NG and text comparison."""
    expand_numbers: Num2Words | SpelledNumbers | Callable[[str], str]
    """Function that replaces the numbers in a lower-case text by words."""
    abbreviations: dict[str, str] = field(default_factory=dict)
    """Words for each abbreviation, in order of replacement; keys are lower-case, without the final full stop."""
    abbreviation_stop: Literal["always", "optional", "never"] | str = "always"
    """Whether abbreviations end with a full stop, or a regular expression in which `{}` stands for the abbreviation."""
    within_sentences: tuple[str, ...] = ()
    """Other lower-case abbreviations whose full stop does not end a sentence; `no#` means `no.` before a digit."""
    shared_stop: str = ""
    """Pattern of an abbreviation whose full stop also ends the sentence, as the first word of the next one follows."""
    symbols: dict[str, str]
    """Words for each symbol, such as `%`."""
    symbol_readings: dict[str, str] = field(default_factory=dict)
    """Words that replace each symbol if the vocabulary lacks it. They are in Latin letters if `romanize` is set."""
    romanize: Callable[[str], str] | None = None
    """Function that converts cleaned text to Latin letters. It raises `UserError` if a package is not installed."""
    romanizes_as_written: bool = False
    """Whether cleaning passes the text as written to `romanize` and skips all other steps."""
    ordinal_stop: bool = False
    """Whether a number with a full stop is usually an ordinal, not the end of a sentence."""
    other_names: tuple[str, ...] = ()
    """Lower-case ISO 639-2 and 639-3 codes, and names in the language itself."""
    scripts: tuple[str, ...] = ("LATIN",)
    """Scripts of the language, named as in Unicode. Nearly every text has letters of the first script."""
    letters: str = ""
    """Lower-case letters and marks of cleaned text, without `,.?!` and, in Latin scripts, without a–z."""
    own_letters: str = ""
    """Letters that identify texts of the language, because no other language of the same scripts has them."""
    phonemize: Callable[[str, str], str] | None = None
    """Function `(cleaned text, "latin" or "ipa") -> phonemes`; None if the language has no rules."""

    def __post_init__(self):
        object.__setattr__(self, "tag", self.tag or f"[{self.code}]")


def table(entries: str) -> dict[str, str]:
    """Parses a table such as `"mr mister, dhr de heer"` into a dictionary: `{"mr": "mister", "dhr": "de heer"}`.

    Entries end at commas or line ends. Raises `ValueError` if a key has no value or occurs twice.
    """
    words: dict[str, str] = {}
    for entry in filter(None, map(str.strip, re.split("[,\n]", entries))):
        key, _, value = entry.partition(" ")
        if not value or key in words:
            raise ValueError(f"{key!r} {'occurs twice' if value else 'has no words'} in the table {entries!r}.")
        words[key] = value
    return words


DESCRIPTIONS, _READINGS, MARKS = (read_toml(__file__, f"{name}.toml") for name in ("languages", "readings", "marks"))
"""Parsed TOML files: fields of each `Language`, rules for `Language.write_out`, and variants of each ASCII mark."""
EXTRA = '{} needs: pip install {}, or for all languages: pip install "myxtts[languages]"'
"""Error message for packages that are not installed: `EXTRA.format("Korean text", "hangul-romanize")`."""
_MARK, _MARKED_NUMBER = "(?<=⟨)([^⟨⟩]+)(?=⟩)", r"⟦(\w+)((?: \w+=\w+)*)(\.?\w*) ([0-9]{1,36})⟧"
_CLOSING = "\"'”’»“"
_SHARED_STOP = rf"(?<!\w)(?:{{may_end}})\.[{_CLOSING}]*(?=\s+(?:{{first_words}})(?![\w.-]))"
_compiled = cache(re.compile)  # the cache of the `re` module is too small for the rules of all languages


def described(code: str, cardinal: Callable | None = None, **more: Any) -> Language:
    """Creates the language `code` from its entry in `languages.toml`. `more` sets other fields, such as functions.
    `cardinal` is a function that spells an integer. If it is given, or if the entry has number words, `SpelledNumbers`
    converts numbers to words; otherwise, `Num2Words` does."""
    fields = {"code": code} | DESCRIPTIONS[code]
    fields.pop("module_words", None)
    numbers = fields.pop("numbers", {})
    if ordinals := numbers.pop("ordinals", None):
        numbers["to_ordinal"] = partial(_rewrite, str, ordinals)
    if words := numbers.pop("words", None):
        units = {int(value): name for value, name in table(numbers.pop("units")).items()}
        cardinal = partial(spell_number, words=[word.strip() for word in words.split(",")], units=units)
    if "normalize" in fields:
        fields["normalize"] = methodcaller("translate", str.maketrans(*fields["normalize"]))
    if cardinal:
        numbers |= {"cardinal": cardinal, "currencies": table(numbers["currencies"])}
    fields["expand_numbers"] = SpelledNumbers(**numbers) if cardinal else Num2Words(code, **numbers)
    for name in {"abbreviations", "symbols", "symbol_readings"} & {*fields}:
        fields[name] = table(fields[name])
    for name in {"other_names", "scripts", "within_sentences"} & {*fields}:
        fields[name] = tuple(fields[name])
    if reading := _READINGS["languages"].get(code):
        read = partial(_read_number, reading.get("numbers", code), numbers.get("to_ordinal"))
        rules = _READINGS["rules"] | dict(numbers=[[_MARKED_NUMBER, read]], words=[[_MARK, table(reading["words"])]])
        fields["within_sentences"] = tuple(reading["within_sentences"].split())
        fields["shared_stop"] = stop = _SHARED_STOP.format_map(reading)
        eaten = {} if fields.get("abbreviation_stop") == "never" else fields["abbreviations"]  # with their full stops
        readings = [rule for step in reading["steps"] for rule in rules[step]]
        fields["write_out"] = partial(_write_out, readings, stop, eaten)
    fields |= more
    steps = dict(rewrites="normalize", rewrites_of_notation="write_out", rewrites_of_numbers="expand_numbers")
    for name in steps.keys() & fields:
        fields[steps[name]] = partial(_rewrite, fields.get(steps[name], str), fields.pop(name))
    return Language(**fields)


def _write_out(readings, shared_stop, eaten, text):
    """Splits a text after matches of `shared_stop`, and rewrites each part by the rules `readings`. If a part loses its
    full stop, adds it again. If a part ends with an abbreviation in `eaten`, doubles its stop: cleaning removes one."""
    ends = [0, *(match.end() for match in _compiled(shared_stop).finditer(text)), len(text)]
    parts = []
    for start, end in pairwise(ends):
        part = _rewrite(str, readings, text[start:end]).strip()
        last_word = part.rstrip(_CLOSING).rpartition(" ")[2]
        lacks_stop = last_word[-1:] not in "?!…." or last_word[:-1].lower() in eaten  # cleaning removes this stop
        parts.append(part + "." * (lacks_stop and text[:end].rstrip(_CLOSING + " ").endswith(".")))
    return " ".join(parts)


def _read_number(code, to_ordinal, mark):
    to, options, ending, digits = mark.groups()
    by_rules = to_ordinal if to == "ordinal" else None
    with suppress(*REFUSALS):
        options = dict(option.split("=") for option in options.split())
        words = number_to_words(int(digits), code, "cardinal" if by_rules else to, **options)
        digits = by_rules(words) if by_rules else words
    return f"⟦{ending} {digits}⟧"


def _rewrite(normalize, rewrites, text):
    text = normalize(text)
    for pattern, *inner, new in rewrites:
        pattern = _compiled(pattern)
        if isinstance(new, dict):
            key = str.lower if pattern.flags & re.IGNORECASE else str
            new = lambda match, words=new, key=key: words.get(key(match[1]), match[0])
        if inner:
            new = lambda match, within=_compiled(inner[0]), new=new: within.sub(new, match[0])
        text = pattern.sub(new, text)
    return text

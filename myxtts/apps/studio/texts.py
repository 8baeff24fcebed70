"""Texts of the page in English and Persian, loaded from `texts.yaml`, and errors with a translated message."""

from pathlib import Path
from string import Formatter

import yaml

from myxtts.config.checks import UserError

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""


class PersianText(str, Formatter):
    """Text whose `format` writes numbers, times and dates in Persian digits. Other strings, such as file names, keep
    their digits: each line is isolated (U+2068 … U+2069), so that its order does not depend on the words around it."""

    def format(self, *values: object) -> str:
        return self.vformat(self, values, {})

    def format_field(self, value: object, format_spec: str) -> str:
        if isinstance(value, str) and (":" not in value or value.strip("-: 0123456789")):
            return "\n".join(f"\u2068{line}\u2069" for line in value.split("\n"))
        return format(value, format_spec).translate(str.maketrans("0123456789.,%", "۰۱۲۳۴۵۶۷۸۹٫٬٪"))


_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items() if language in texts} for language in PREFIX}
"""Texts by language and key. The key of a setting's label is the Python name of the flag, such as `max_steps`; the key
of its help text is `max_steps_help`. In English, the page shows the help of the flag instead."""
TEXTS["fa"] = {key: PersianText(text) for key, text in TEXTS["fa"].items()}
EXAMPLES: dict[str, str] = _READ["example"]
"""Sample sentence in each language."""


class PageError(UserError):
    """Error with the message `key` from `TEXTS`, in which `values` are filled in. `str` returns the English message."""

    def __init__(self, key: str, *values: object):
        self.key, self.values = key, values
        super().__init__(self.in_language(TEXTS["en"]))

    def in_language(self, texts: dict[str, str]) -> str:
        """Returns the message in the language of `texts`, a dictionary such as `TEXTS["fa"]`."""
        return texts[self.key].format(*self.values)

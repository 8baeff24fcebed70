"""Texts of the page in English and Persian, from `texts.yaml`, and its own errors."""

from pathlib import Path

import yaml

from myxtts.config.checks import UserError

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""
_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items() if language in texts} for language in PREFIX}
"""Texts by language and key. The label of a setting has the name of its flag, its help ends in `_help`; English takes
the help of the flag."""


class PageError(UserError):
    """An error of the page itself: the text of a key, in English until `in_language` another language."""

    def __init__(self, key: str, *values: object):
        self.key, self.values = key, values
        super().__init__(self.in_language(TEXTS["en"]))

    def in_language(self, texts: dict[str, str]) -> str:
        """The message in the language of these texts."""
        return texts[self.key].format(*self.values)

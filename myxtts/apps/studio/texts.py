"""Texts of the page in English and Persian, loaded from `texts.yaml`, and errors with such a text."""

from pathlib import Path

import yaml

from myxtts.config.checks import UserError

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""
_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items() if language in texts} for language in PREFIX}
"""Texts by language and key. A setting's label has the name of its flag as key, its help the same with `_help`.
English has no help texts here and shows the help of the flag."""


class PageError(UserError):
    """Error whose message is the text `key`: `str` returns it in English, `in_language` in another language."""

    def __init__(self, key: str, *values: object):
        self.key, self.values = key, values
        super().__init__(self.in_language(TEXTS["en"]))

    def in_language(self, texts: dict[str, str]) -> str:
        """Returns the message in the language of `texts`."""
        return texts[self.key].format(*self.values)

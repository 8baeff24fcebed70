"""Texts of the page in English and Persian, loaded from `texts.yaml`, and errors whose message is one of them."""

from pathlib import Path

import yaml

from myxtts.config.checks import UserError

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""
_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items() if language in texts} for language in PREFIX}
"""Texts by language and key. A setting's label has the name of its flag as key, its help text that name with `_help`.
There are no help texts in English, because the page shows the help of the flag."""


class PageError(UserError):
    """Error with a translated message, the text `key` with `values` filled in. `str` returns the English message."""

    def __init__(self, key: str, *values: object):
        self.key, self.values = key, values
        super().__init__(self.in_language(TEXTS["en"]))

    def in_language(self, texts: dict[str, str]) -> str:
        """Returns the message in the language of `texts`, one of the values of `TEXTS`."""
        return texts[self.key].format(*self.values)

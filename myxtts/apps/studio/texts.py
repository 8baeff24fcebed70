"""Texts of the page in English and Persian, loaded from `texts.yaml`, and errors with a translated message."""

from pathlib import Path

import yaml

from myxtts.config.checks import UserError

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""
_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items() if language in texts} for language in PREFIX}
"""Texts by language and key. The key of a setting's label is the Python name of the flag, such as `max_steps`; the key
of its help text is `max_steps_help`. In English, the page shows the help of the flag instead."""
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

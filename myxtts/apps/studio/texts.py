"""Texts of the page in English and Persian, from `texts.yaml`."""

from pathlib import Path

import yaml

PREFIX = {"en": "/ui", "fa": "/ui-fa"}
"""URL prefix of the page in each language."""
RIGHT_TO_LEFT = ("fa",)
_READ = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
TEXTS = {language: {key: texts[language] for key, texts in _READ.items()} for language in PREFIX}
"""Texts by language and key; the label of a setting has the name of its flag."""

"""The languages MyXTTS speaks, one module each, found by their presence in this package.

Seventeen languages are those of XTTS v2 (Casanova et al. 2024, "XTTS: a Massively Multilingual Zero-Shot
Text-to-Speech Model", section 3); their tables hold what the reference reads, so that token ids agree with released
checkpoints, its slips included (`co.` is always a company). Character limits are the reference's as well. Persian and
Amharic are added here, with limits for the same duration of speech, some 17 s.
"""

import importlib
import pkgutil

from myxtts.text.languages.base import Language

LANGUAGES: dict[str, Language] = {}
"""Every language by its code."""


def register_language(language: Language) -> None:
    """Makes a language known to cleaning, splitting and tokenization.

    Raises:
        ValueError: There is a language with this code or tag.
    """
    for other in LANGUAGES.values():
        if language.code == other.code or language.tag == other.tag:
            raise ValueError(f"{language.name} has the code or tag of {other.name}: {other.code!r}, {other.tag}.")
    LANGUAGES[language.code] = language


def get_language(code: str) -> Language:
    """Looks a language up by its ISO 639-1 code; a region is ignored (`en-GB`, `zh-cn`, `pt_BR`), and so is case.

    Raises:
        ValueError: The language is not supported; the message lists those that are.
    """
    language = LANGUAGES.get(code.strip().replace("_", "-").split("-")[0].lower())
    if language is None:
        raise ValueError(f"Language {code!r} is not supported. Supported languages: {', '.join(sorted(LANGUAGES))}.")
    return language


for _module in pkgutil.iter_modules(__path__):
    if _module.name != "base":
        register_language(importlib.import_module(f"{__name__}.{_module.name}").LANGUAGE)

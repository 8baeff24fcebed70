"""The languages MyXTTS speaks, one module each, found by their presence in this package.

Seventeen languages are those of XTTS v2 (Casanova et al. 2024, "XTTS: a Massively Multilingual Zero-Shot
Text-to-Speech Model", section 3); their tables hold what the reference reads, so that token ids agree with released
checkpoints, its slips included (`co.` is always a company). Character limits are the reference's as well. Persian and
Amharic are added here, with limits for the same duration of speech, some 17 s.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Collection

from myxtts.text.languages.base import Language

DEFAULT_LANGUAGE = "en"
"""Of what nobody names the language of."""
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


def get_language(code: str, among: Collection[str] | None = None) -> Language:
    """Looks a language up by its code or name: `fa`, `fas`, `Persian`, `farsi`. Regions (`zh_CN`) and case are ignored.

    Args:
        among: Codes that a message may offer, such as those of a model; None for all.

    Raises:
        ValueError: The language is not supported; the message lists those that are.
    """
    name = code.strip().replace("_", "-").lower()
    language = LANGUAGES.get(name.split("-")[0]) or _by_name().get(name) or _by_name().get(name.split("-")[0])
    if language is None:
        among = LANGUAGES if among is None else among
        offered = [name for name, language in _by_name().items() if language.code in among]
        near = difflib.get_close_matches(name[:100], offered, n=1, cutoff=0.7)
        hint = "".join(f" Did you mean {_by_name()[one].code} ({_by_name()[one].name})?" for one in near)
        supported = ", ".join(sorted(among))
        raise ValueError(f"Language {code[:100]!r} is not supported.{hint} Supported languages: {supported}.")
    return language


def _by_name() -> dict[str, Language]:
    names = {language: (language.name.lower(), *language.other_names) for language in LANGUAGES.values()}
    return {name: language for language, own in names.items() for name in own}


for _module in pkgutil.iter_modules(__path__):
    if _module.name != "base":
        register_language(importlib.import_module(f"{__name__}.{_module.name}").LANGUAGE)

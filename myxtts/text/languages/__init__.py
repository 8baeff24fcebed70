"""The supported languages. `languages.toml` describes all of them; modules of this package add functions for a few.

Seventeen languages come from XTTS v2 (Casanova et al. 2024, "XTTS: a Massively Multilingual Zero-Shot Text-to-Speech
Model", section 3). Their tables and character limits are copied from Coqui with all errors (`co.` is always "company"),
so that token ids agree with released checkpoints. The limits of Persian and Amharic allow about 17 s of speech.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Collection

from myxtts.text.languages.base import DESCRIPTIONS, Language, described

DEFAULT_LANGUAGE = "en"
"""Code of the language of texts for which no language is given."""
LANGUAGES: dict[str, Language] = {}
"""All supported languages by code."""


def register_language(language: Language) -> None:
    """Adds a language to `LANGUAGES`. Raises `ValueError` if its code or tag is already in use."""
    for other in LANGUAGES.values():
        if language.code == other.code or language.tag == other.tag:
            raise ValueError(f"{language.name} has the code or tag of {other.name}: {other.code!r}, {other.tag}.")
    LANGUAGES[language.code] = language


def get_language(code: str, among: Collection[str] | None = None) -> Language:
    """Finds a language by code or name (`fa`, `fas`, `Persian`, `farsi`). Regions (`zh_CN`) and case are ignored.

    Raises `ValueError` if the language is not in `among` (default: all languages). The message lists these languages.
    """
    by_name = {name: one for one in LANGUAGES.values() for name in (one.code, one.name.lower(), *one.other_names)}
    name = code.strip().replace("_", "-").lower()
    language = by_name.get(name) or by_name.get(name.split("-")[0])
    among = LANGUAGES if among is None else among
    if language is None:
        offered = [name for name, one in by_name.items() if one.code in among]
        near = [one for one in offered if len(one) == len(name) == 2 and one[0] == name[0]]
        near = near or difflib.get_close_matches(name[:100], offered, n=1, cutoff=0.7)
        named, supported = (f"{by_name[one].code} ({by_name[one].name})" for one in near), ", ".join(sorted(among))
        hint = f" Did you mean {' or '.join(named)}?" * bool(near)
        raise ValueError(f"Language {code[:100]!r} is not supported.{hint} Supported languages: {supported}.")
    if language.code not in among:
        raise ValueError(f"The model speaks {', '.join(sorted(among))}, not {language.name}. A fine-tune can add it.")
    return language


_modules = (importlib.import_module(one.name) for one in pkgutil.iter_modules(__path__, f"{__name__}."))
_found = {value for module in _modules for value in vars(module).values() if isinstance(value, Language)}
_found |= {described(code) for code in DESCRIPTIONS.keys() - {language.code for language in _found}}
for _language in sorted(_found, key=lambda language: language.code):
    register_language(_language)

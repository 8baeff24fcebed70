"""Letters to sounds, for languages that have rules for it (`Language.phonemize`)."""

from typing import Literal

from myxtts.text.cleaners import clean_text
from myxtts.text.languages import LANGUAGES, get_language


def text_to_phonemes(text: str, language: str, alphabet: Literal["latin", "ipa"] = "latin") -> str:
    """Writes a text as it sounds, after cleaning it (`cleaners.clean_text`): `"sälam"` for ሰላም. Amharic has rules.

    Consonant length is not marked. Punctuation and words in other scripts are kept. The result can be tokenized as
    its language instead of the written text.

    Args:
        alphabet: `"latin"`, whose letters are all in the vocabulary of released XTTS checkpoints (for Amharic `ä` for
            ə, `ı` for ɨ, `ñ`, and `q t' p' ts' ch'` for the ejectives), or `"ipa"`.

    Raises:
        ValueError: The alphabet is unknown, or there are no rules for the language.
    """
    if alphabet not in ("latin", "ipa"):
        raise ValueError(f'alphabet must be "latin" or "ipa". Received: {alphabet!r}.')
    phonemize = get_language(language).phonemize
    if phonemize is None:
        known = ", ".join(sorted(code for code, entry in LANGUAGES.items() if entry.phonemize))
        raise ValueError(f"There are no rules for the sounds of {language!r}. Languages that have them: {known}.")
    return phonemize(clean_text(text, language), alphabet)

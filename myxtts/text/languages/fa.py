"""Persian. num2words is used only for integers, because it reads the decimal 12.05 as twelve and a half."""

import re
import unicodedata

from myxtts.text.languages.base import DESCRIPTIONS, described
from myxtts.text.numbers import number_to_words

_CHARACTERS = str.maketrans(*DESCRIPTIONS["fa"]["normalize"])


def normalize_persian(text: str) -> str:
    """Unifies variants of letters and digits, and removes invisible characters."""
    # Programs that write PDF files use the forms that letters have in a word, and ligatures.
    text = re.sub("[\ufb50-\ufdff\ufe70-\ufefc]+", lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", text.translate(_CHARACTERS))


def persian_cardinal(number: int) -> str:
    return re.sub(r"\bنه\b", "نُه", number_to_words(number, "fa"))  # without its vowel, nine is written like no


def persian_ordinal(cardinal: str, number: int) -> str:
    # سه becomes سوم, سی becomes سی‌اُم (two vowels would meet), others take م.
    if cardinal.endswith("سه"):
        return cardinal[:-1] + "وم"
    return cardinal + "‌اُم" if cardinal.endswith("ی") else cardinal + "م"


LANGUAGE = described("fa", normalize=normalize_persian, cardinal=persian_cardinal, to_ordinal=persian_ordinal)

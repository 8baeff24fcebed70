"""Amharic letters to sounds.

The Ethiopic script writes a consonant and its vowel in one letter. What it leaves out is whether a letter of the
sixth order has its vowel ɨ or none, and which consonants are long. The first is told here by rule (below); length is
not, as nothing in the spelling shows it.

Epenthesis. A word is made of syllables of one consonant, a vowel and at most one more consonant, or two at the end
of the word (Leslau 1995, "Reference Grammar of Amharic"). Consonants without vowel are taken in runs, and ɨ is put

1. after the first consonant of a run that starts a word: ብዙ bɨzu, ስም sɨm;
2. in a run before a vowelled letter: the first consonant closes the syllable before it, the second opens one, the
   third closes that, and so on: ትግርኛ tɨgrɨña, ቤተክርስቲያን betäkrɨstiyan;
3. in a run that ends a word: its last two consonants close the word together if the second is less sonorous (glides >
   liquids > nasals > fricatives > stops), else its last one does: ክንፍ kɨnf, but ክፍል kɨfɨl. The one before opens
   that syllable, and so on backwards: መንግሥት mängɨst, ወንድም wändɨm.
"""

import re
from typing import Literal

from myxtts.text.cleaners import clean_text

# Rows of the syllabary: code point of the first order and its consonant in IPA.
_ROWS = {
    0x1200: "h",
    0x1208: "l",
    0x1210: "h",
    0x1218: "m",
    0x1220: "s",
    0x1228: "r",
    0x1230: "s",
    0x1238: "ʃ",
    0x1240: "kʼ",
    0x1248: "kʼw",
    0x1260: "b",
    0x1268: "v",
    0x1270: "t",
    0x1278: "tʃ",
    0x1280: "h",
    0x1288: "hw",
    0x1290: "n",
    0x1298: "ɲ",
    0x12A0: "",
    0x12A8: "k",
    0x12B0: "kw",
    0x12B8: "h",
    0x12C0: "hw",
    0x12C8: "w",
    0x12D0: "",
    0x12D8: "z",
    0x12E0: "ʒ",
    0x12E8: "j",
    0x12F0: "d",
    0x1300: "dʒ",
    0x1308: "g",
    0x1310: "gw",
    0x1320: "tʼ",
    0x1328: "tʃʼ",
    0x1330: "pʼ",
    0x1338: "sʼ",
    0x1340: "sʼ",
    0x1348: "f",
    0x1350: "p",
    # Letters of Tigrinya, Oromo and Blin, by the nearest Amharic sound.
    0x1250: "kʼ",
    0x1258: "kʼw",
    0x12F8: "d",
    0x1318: "g",
}
_PALATALISED = {"ፘ": "rj", "ፙ": "mj", "ፚ": "fj"}
# The first order of these letters is said as the fourth: ሀገር is hagär.
_GUTTURAL_ROWS = frozenset({0x1200, 0x1210, 0x1280, 0x12A0, 0x12D0})
_VOWELS = ("ə", "u", "i", "a", "e", "", "o", "wa")
_EPENTHETIC = "ɨ"
_SONORITY = (("j", "w"), ("l", "r"), ("m", "n", "ɲ"), ("f", "v", "s", "z", "ʃ", "ʒ", "h"))

_IPA_TO_LATIN = {
    "ʃ": "sh",
    "ʒ": "zh",
    "ɲ": "ñ",
    "tʃʼ": "ch'",
    "tʃ": "ch",
    "dʒ": "j",
    "kʼ": "q",
    "tʼ": "t'",
    "pʼ": "p'",
    "sʼ": "ts'",
    "j": "y",
    "ə": "ä",
    "ɨ": "ı",
}
_IPA_SYMBOL = re.compile("|".join(sorted(_IPA_TO_LATIN, key=len, reverse=True)))
_AMHARIC_WORD = re.compile("[ሀ-ፚ]+")


def amharic_to_phonemes(text: str, alphabet: Literal["latin", "ipa"] = "latin") -> str:
    """Writes Amharic text as it sounds.

    Numbers, abbreviations and symbols are read first (`cleaners.clean_text`); punctuation and words in other scripts
    are kept. Consonant length is not marked.

    Args:
        text: Amharic text as written.
        alphabet: `"latin"`, whose letters are all in the vocabulary of released XTTS checkpoints (`ä` for ə, `ı` for
            ɨ, `ñ`, and `q t' p' ts' ch'` for the ejectives), or `"ipa"`.

    Returns:
        Such as `"sälam"` for ሰላም. It can be tokenized as Amharic in place of the written text.

    Raises:
        ValueError: The alphabet is unknown.
    """
    if alphabet not in ("latin", "ipa"):
        raise ValueError(f'alphabet must be "latin" or "ipa". Received: {alphabet!r}.')

    def speak(match: re.Match) -> str:
        sounds = _word_to_ipa(match.group())
        return sounds if alphabet == "ipa" else _IPA_SYMBOL.sub(lambda symbol: _IPA_TO_LATIN[symbol.group()], sounds)

    return _AMHARIC_WORD.sub(speak, clean_text(text, "am"))


def _word_to_ipa(word: str) -> str:
    # Runs of consonants without vowel, each followed by the vowelled letter that ends it.
    sounds = ""
    run: list[str] = []
    for letter in word:
        consonant, vowel = _letter_to_sounds(letter)
        if not vowel and consonant:
            run.append(consonant)
            continue
        sounds += _speak_run(run, at_start=not sounds, at_end=False) + consonant + (vowel or _EPENTHETIC)
        run = []
    return sounds + _speak_run(run, at_start=not sounds, at_end=True)


def _letter_to_sounds(letter: str) -> tuple[str, str]:
    """Consonant and vowel of a letter; the vowel of the sixth order is empty, and so is the glottal consonant."""
    order = ord(letter) % 8
    row = ord(letter) - order
    if letter in _PALATALISED:
        return _PALATALISED[letter], "a"
    if row in _GUTTURAL_ROWS and order == 0:
        return _ROWS[row], "a"
    return _ROWS[row], _VOWELS[order]


def _speak_run(run: list[str], at_start: bool, at_end: bool) -> str:
    if not run:
        return ""
    if at_start:
        return run[0] + _EPENTHETIC + _speak_run(run[1:], at_start=False, at_end=at_end)
    if not at_end:
        return "".join(consonant + (_EPENTHETIC if index % 2 else "") for index, consonant in enumerate(run))
    num_closing = 2 if len(run) > 1 and _sonority(run[-2]) > _sonority(run[-1]) else 1
    opening, closing = run[:-num_closing], run[-num_closing:]
    # The last consonant before those that close the word needs the vowel; the one before it closes a syllable.
    last = len(opening) - 1
    return "".join(
        consonant + ("" if (last - index) % 2 else _EPENTHETIC) for index, consonant in enumerate(opening)
    ) + "".join(closing)


def _sonority(consonant: str) -> int:
    """Rank of a consonant, larger for more sonorous; affricates and ejectives count as stops, labialised as bare."""
    base = consonant[0] if len(consonant) > 1 and consonant.endswith("w") else consonant
    return next((4 - rank for rank, sounds in enumerate(_SONORITY) if base in sounds), 0)

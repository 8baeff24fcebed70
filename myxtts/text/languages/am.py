"""Amharic: Ethiopic numerals and grapheme-to-phoneme rules.

An Ethiopic letter stands for a consonant and a vowel. The script does not show whether a letter of the sixth order
has the vowel ɨ or no vowel, nor which consonants are long. The rules below decide the vowel; length is not marked.

A syllable is a consonant, a vowel and at most one closing consonant; the last syllable of a word may have two (Leslau
1995, "Reference Grammar of Amharic"). Where several consonants follow each other, ɨ is inserted (epenthesis):

1. At the start of a word, after the first consonant: ብዙ bɨ-zu, ስም sɨm. The next rules apply to the rest of the word.
2. Inside a word, after every second consonant. In ቤተክርስቲያን be-täk-rɨs-ti-yan, k closes a syllable, and ɨ follows r.
   There are two exceptions. The second of three consonants closes the new syllable if it is more sonorous than the
   third and is not a stop: ክርስቶስ is kɨ-rɨs-tos, not kɨr-sɨ-tos. And ɨ is always inserted before the long consonant ñ
   (ትግርኛ tɨg-rɨ-ña), and between an ejective and the corresponding plain consonant, such as t' and t.
3. The last two consonants of a word close its last syllable if the second is less sonorous than the first (glides >
   liquids > nasals > v z ʃ ʒ h > b > f s > d g > other stops): ክንፍ kɨnf. If not, the last one closes it: ክፍል kɨ-fɨl.
   The consonants before them alternately open and close a syllable, from right to left: መንግሥት män-gɨst, ወንድም wän-dɨm.
"""

import re
import unicodedata

from myxtts.text.languages.base import DESCRIPTIONS, described, table

_NUMERAL = re.compile("[፩-፼]+")
_SOUNDS = DESCRIPTIONS["am"]["module_words"]
_ROWS, _GUTTURALS, _VOWELS = _SOUNDS["rows"].split(), _SOUNDS["gutturals"], _SOUNDS["vowels"]
_PALATALIZED, _IPA_TO_LATIN = table(_SOUNDS["palatalized"]), table(_SOUNDS["latin"])
_EPENTHETIC = "ɨ"
_SONORITY = {sound: rank for rank, row in enumerate(_SOUNDS["sonority"], 1) for sound in row}
_IPA_SYMBOL = re.compile("|".join(sorted(_IPA_TO_LATIN, key=len, reverse=True)))
_WORD = re.compile("[ሀ-ፚ]+")


def ethiopic_to_int(numeral: str) -> int:
    """Converts an Ethiopic numeral, U+1369 to U+137C, to an integer: ፲፱፻፺፱ becomes 1999."""
    # ፻ (100) and ፼ (10,000) multiply what precedes them.
    total = hundreds = pending = 0
    for character in numeral:
        if character == "፼":
            total, hundreds, pending = (total + hundreds + pending or 1) * 10000, 0, 0
        elif character == "፻":
            hundreds, pending = hundreds + 100 * (pending or 1), 0
        else:
            pending += int(unicodedata.numeric(character))
    return total + hundreds + pending


def amharic_to_phonemes(text: str, alphabet: str) -> str:
    """Converts the Amharic words of a cleaned text to phonemes. `alphabet` is "latin" or "ipa", see `text.g2p`."""

    def to_phonemes(match: re.Match) -> str:
        ipa = _word_to_ipa(match.group())
        return ipa if alphabet == "ipa" else _IPA_SYMBOL.sub(lambda symbol: _IPA_TO_LATIN[symbol.group()], ipa)

    return _WORD.sub(to_phonemes, text)


def _word_to_ipa(word: str) -> str:
    ipa, run = "", []  # `run`: the consonants since the last vowel
    for letter in word:
        row, order = divmod(ord(letter) - 0x1200, 8)
        vowel = "a" if letter in _GUTTURALS or letter in _PALATALIZED else _VOWELS[0 if letter == "ኧ" else order]
        consonant = _PALATALIZED.get(letter) or _ROWS[row].strip("-")
        if consonant and not vowel:
            run.append(consonant)
        else:
            ipa += _run_to_ipa(run, consonant, at_start=not ipa) + consonant + (vowel or _EPENTHETIC)
            run = []
    return ipa + _run_to_ipa(run, None, at_start=not ipa)


def _run_to_ipa(run: list[str], onset: str | None, at_start: bool) -> str:
    """Inserts ɨ into a `run` of consonants. `onset` is the consonant after the run, or None at the end of a word."""
    if not run:
        return ""
    if at_start:
        return run[0] + _EPENTHETIC + _run_to_ipa(run[1:], onset, at_start=False)
    # Affricates and ejectives count as stops; labialization does not count.
    ranks = [_SONORITY.get(one.removesuffix("w") or "w", 0) for one in [*run, onset][-3:] if one is not None][-2:]
    falls = len(ranks) == 2 and ranks[0] > ranks[1]
    num_closing = 1 + falls
    if onset is not None:
        moves = falls and len(run) == 2 and run[-1] not in "bdg"
        num_closing = 0 if onset == "ɲ" or run[-1] == onset + "ʼ" else 1 if moves else len(run) % 2
    opening, closing = run[: len(run) - num_closing], run[len(run) - num_closing :]
    # Counted from the end of `opening`, every second consonant gets the vowel.
    vowelled = (one + _EPENTHETIC * (count % 2) for count, one in zip(range(len(opening), 0, -1), opening))
    return "".join([*vowelled, *closing])


LANGUAGE = described(
    "am",
    letters="".join(filter(str.isalpha, map(chr, range(ord("ሀ"), ord("ፚ") + 1)))),
    normalize=lambda text: _NUMERAL.sub(lambda match: str(ethiopic_to_int(match.group())), text),
    phonemize=amharic_to_phonemes,
)

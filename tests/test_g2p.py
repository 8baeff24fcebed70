"""Amharic grapheme-to-phoneme conversion, by worked examples."""

import json
from pathlib import Path

import pytest

from myxtts.text.g2p import text_to_phonemes

VOCABULARY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "xtts_vocab.json"


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("ሰላም", "səlam"),
        ("ሀገር", "hagər"),  # A guttural of the first order has the vowel of the fourth.
        ("ኢትዮጵያ", "itjopʼja"),
        ("ቋንቋ", "kʼwankʼwa"),  # Labialized letters.
        ("ብዙ", "bɨzu"),  # Rule 1: no cluster starts a word.
        ("እግር", "ɨgɨr"),
        ("ትግርኛ", "tɨgrɨɲa"),  # Rule 2: at most two consonants between vowels.
        ("ቤተክርስቲያን", "betəkrɨstijan"),
        ("ክንፍ", "kɨnf"),  # Rule 3: falling sonority closes a word, rising does not.
        ("ክፍል", "kɨfɨl"),
        ("ወንድም", "wəndɨm"),
        ("መንግሥት", "məngɨst"),
        ("ትምህርት", "tɨmhɨrt"),
        ("አምስት", "amɨst"),
    ],
)
def test_words_sound_as_spoken(word, phonemes):
    assert text_to_phonemes(word, "am", "ipa") == phonemes


def test_sentences_keep_their_marks_and_numbers_are_read():
    assert text_to_phonemes("ሰላም ለዓለም፣ 5% Hejsan።", "am") == "sälam läaläm, amıst bämäto hejsan."


def test_latin_letters_are_all_in_the_released_vocabulary():
    if not VOCABULARY.exists():
        pytest.skip("shared/reference is not beside the repository")
    known = json.loads(VOCABULARY.read_text(encoding="utf-8"))["model"]["vocab"]
    letters = "".join(chr(code) for code in range(0x1200, 0x1358) if chr(code).isalpha())
    assert set(text_to_phonemes(letters, "am")) <= set(known)


def test_every_letter_of_the_syllabary_is_written_out():
    letters = [chr(code) for code in range(0x1200, 0x1358) if chr(code).isalpha()]
    assert not [letter for letter in letters if any("ሀ" <= sound <= "ፚ" for sound in text_to_phonemes(letter, "am"))]


def test_an_unknown_alphabet_is_refused():
    with pytest.raises(ValueError, match='alphabet must be "latin" or "ipa"'):
        text_to_phonemes("ሰላም", "am", "sampa")


def test_a_language_without_rules_is_refused_with_those_that_have_them():
    with pytest.raises(ValueError, match="no rules for the sounds of 'en'. Languages that have them: am"):
        text_to_phonemes("hello", "en")

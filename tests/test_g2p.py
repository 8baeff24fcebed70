"""Grapheme-to-phoneme conversion: worked examples in Amharic, eSpeak NG, the setting, and rules of other packages."""

import json
import sys
from pathlib import Path

import pytest
from test_corpora import make_corpus
from tiny import tiny_run_config, write_run

from myxtts.config.checks import ConfigError
from myxtts.data.dataset import SpeechDataset
from myxtts.inference.loading import load_model
from myxtts.models.xtts import XTTS
from myxtts.storage.files import write_json
from myxtts.text import espeak, g2p
from myxtts.text.g2p import text_to_phonemes
from myxtts.text.tokenizer import XTTSTokenizer

VOCABULARY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "xtts_vocab.json"


@pytest.mark.parametrize("row", (Path(__file__).parent / "data/amharic.txt").read_text("utf-8").splitlines())
def test_words_become_phonemes_as_spoken(row):
    word, phonemes, *_ = row.split(" | ")
    assert text_to_phonemes(word, "am", "ipa") == phonemes


def test_sentences_keep_their_marks_and_numbers_are_read():
    assert text_to_phonemes("ሰላም ለዓለም፣ 5% Hejsan።", "am") == "sälam läaläm, amıst bämäto hejsan."


@pytest.mark.parametrize(
    ("text", "language", "sounds"),
    [
        # Stress, long vowels and marks, as eSpeak NG's documentation and dictionaries of pronunciation have them.
        ("Guten Tag, 2 Äpfel!", "de", "ɡˈuːtən tˈɑːk, tsvˈaɪ ˈɛpfəl!"),
        ("Scho\u0308n, ﬁnden", "de", "ʃˈøːn, fˈɪndən"),  # as macOS and PDF files write it
        ("Hello, world.", "en", "həlˈoʊ, wˈɜːld."),
        ("سلام دنیا، ۹ مُعَلِّم", "fa", "salˈɑm dˈonjɑ، nˈoh moʔˈallem"),
        ("ሰላም", "am", "ሰላም"),
        ("1,000، 4.05، $5.50", "ar", "ʔˈallaf، ʔrbʕt fˈaːs̪ilˌa s̪ˈifr χmst، χmst rˈiːaːlˌaːt wˈa χˌumusˈuːna hˈalalˌa"),
        ("你好 12,500%", "zh", "ni3hao3 bai3fen1zhi1yi1wan4liang3qian1wu3bai3"),
        ("12,500", "ko", "man icheon-obaeg"),
        ("नमस्ते", "hi", "nəmˈʌsteː"),
    ],
)
def test_espeak_writes_languages_in_their_own_letters_that_have_no_rules(text, language, sounds):
    assert g2p.written(text, language, g2p.g2p_codes(["espeak"])) == sounds


def test_tokenizer_writes_as_espeak_does_beside_rules_of_a_language():
    tokenizer = XTTSTokenizer.train([("Hello.", "en"), ("ሰላም", "am")], g2p=["espeak", "amharic"])
    assert tokenizer.g2p == ("am", "espeak")
    assert tokenizer.decode(tokenizer.encode("Hello.", "en")) == "[en]həlˈoʊ."
    assert tokenizer.decode(tokenizer.encode("ሰላም", "am")) == "[am]sälam"


def test_voice_of_espeak_is_set_only_where_the_language_changes_since_that_leaks(monkeypatch):
    library, calls = espeak.load_library(), []
    set_voice = library.espeak_SetVoiceByName
    monkeypatch.setattr(library, "espeak_SetVoiceByName", lambda name: calls.append(name) or set_voice(name))
    for language in ("nl", "de", "de", "fr", "fr"):
        espeak.text_to_ipa("la", language)
    assert calls[-2:] == [b"de", b"fr"]
    set_voice(b"de")  # another package, or the copy of an exported model
    assert espeak.text_to_ipa("nation", "fr") == "nasjˈɔ̃"


def test_letters_of_other_scripts_are_kept_and_not_spelled_by_their_names():
    assert espeak.text_to_ipa("hello አዲስ, α", "en-us") == "həlˈoʊ አዲስ, ˈælfə"


def test_missing_espeak_is_one_error_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    espeak.load_library.cache_clear()
    with pytest.raises(ValueError, match="pip install espeakng-loader"):
        g2p.g2p_codes(["espeak"])


def test_every_letter_of_the_syllabary_is_written_out_in_letters_of_the_released_vocabulary():
    letters = [chr(code) for code in range(0x1200, 0x1358) if chr(code).isalpha()]
    sounds = [text_to_phonemes(letter, "am") for letter in (*letters, "".join(letters))]
    assert not [one for one in sounds if any("ሀ" <= sound <= "ፚ" for sound in one)]
    if VOCABULARY.exists():  # shared/reference is beside the repository
        assert {*"".join(sounds)} <= {*json.loads(VOCABULARY.read_text(encoding="utf-8"))["model"]["vocab"]}


TEXTS = [("ሰላም ለዓለም", "am"), ("ክንፍ እና ክፍል", "am"), ("good day", "en")]


def test_the_setting_changes_the_ids_of_its_language_alone_and_back():
    spoken = XTTSTokenizer.train(TEXTS, g2p=["Amharic"])
    assert spoken.g2p == ("am",) and spoken.decode(spoken.encode("ክንፍ", "am")) == "[am]kınf"
    written = XTTSTokenizer.train(TEXTS).with_g2p(["am"])
    assert written.decode(written.encode("good day", "en")) == "[en]good day"
    assert written.with_g2p(()).decode(written.with_g2p(()).encode("ክንፍ", "am")) == "[am]ክንፍ"
    grown = spoken.extend([("ቋንቋ", "am")])
    assert grown.g2p == ("am",) and "q" in grown.decode(grown.encode("ቋንቋ", "am"))


def test_the_setting_is_stored_with_the_run_and_cannot_be_changed(tmp_path):
    corpus, home = make_corpus(tmp_path / "set", "a|ሰላም|\nb|ክንፍ|\n"), tmp_path / "run"
    home.mkdir()

    def opened(asked):
        return SpeechDataset.open(tiny_run_config(corpus, home, data={"language": "am", "g2p": asked}))

    first = opened(("amh",))
    assert first.config.data.g2p == ("am",)
    first.tokenizer.save(home / "vocab.json")
    write_json(home / "config.json", first.config.to_dict())
    again = opened(None)
    assert again.config.data.g2p == ("am",) and [c.tokens for c in again.train] == [c.tokens for c in first.train]
    with pytest.raises(ConfigError, match="--g2p must be .*: am. Received: .*--reset-training"):
        opened(())
    with pytest.raises(ConfigError, match="--g2p: .* no phoneme rules for 'fa'"):
        opened(("fa",))


def test_a_loaded_model_reads_as_it_was_trained(tmp_path):
    tokenizer = XTTSTokenizer.train(TEXTS, vocab_size=60, g2p=["am"])
    config = tiny_run_config(model=dict(num_text_tokens=tokenizer.num_tokens), data={"g2p": ("am",)})
    model = XTTS(config.model, parts=("dvae", "gpt"))
    loaded, _ = load_model(write_run(tmp_path / "run", model, tokenizer, config)).preset
    assert loaded.g2p == ("am",) and loaded.encode("ሰላም", "am") == tokenizer.encode("ሰላም", "am")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package that converts every German word to "bah", and one for Persian that cannot be loaded."""
    (tmp_path / "bahs.py").write_text("def rules(text, alphabet):\n    return ' '.join('bah' for _ in text.split())\n")
    (tmp_path / "bahs-1.dist-info").mkdir()
    (tmp_path / "bahs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bahs\nVersion: 1\n")
    (tmp_path / "bahs-1.dist-info" / "entry_points.txt").write_text("[myxtts.g2p]\nde = bahs:rules\nfa = gone:rules\n")
    monkeypatch.syspath_prepend(tmp_path)
    g2p._hooks.cache_clear()
    yield
    g2p._hooks.cache_clear()
    sys.modules.pop("bahs", None)


def test_an_installed_package_brings_rules_for_a_language(package):
    assert text_to_phonemes("Guten Tag", "de") == "bah bah"
    assert g2p.espeak_voice("de", ("espeak",)) and not g2p.espeak_voice("de", ("de", "espeak"))  # as it was trained
    with pytest.raises(ValueError, match="gone:rules for Persian cannot be loaded: No module"):
        text_to_phonemes("سلام", "fa")
    with pytest.raises(ValueError, match="Languages with rules: am, de, fa"):
        text_to_phonemes("hello", "en")

"""Languages by name, and identification by letters and words."""

import pytest
from test_corpora import make_corpus, reasons

from myxtts.data.corpora import CorpusError, load_corpus
from myxtts.text.language_guess import _identifier, guess_language, identify_language, language_to_read
from myxtts.text.languages import LANGUAGES, get_language

SENTENCES = {
    "am": "ሰላም ለዓለም። እንደምን አደርክ?",
    "fa": "من فردا به کتابخانه می‌روم و چند کتاب پارسی می‌گیرم.",
    "hi": "मैं कल पुस्तकालय जाऊँगा।",
    "ja": "明日は図書館に行きます。",
    "ko": "내일 도서관에 갑니다.",
    "ru": "Завтра я пойду в библиотеку.",
    "zh": "我明天去图书馆借几本书。",
}


NAMES = {
    "am": ("amh", "Amharic"),
    "de": ("de-DE", "deu", "Deutsch", "deu-DE"),
    "en": ("english", "ENG", "en-GB"),
    "fa": ("persian", "farsi", "Farsi", "fas", "per", "fa_IR", "فارسی"),
    "fr": (" French ",),
    "pt": ("pt_BR",),
    "zh": ("zh_CN", "zh-cn", "cmn", "chinese"),
}


@pytest.mark.parametrize("code", NAMES)
def test_languages_are_known_by_code_name_and_region(code):
    assert {get_language(name).code for name in NAMES[code]} == {code}


def test_messages_offer_the_languages_of_a_model_alone():
    with pytest.raises(ValueError, match="is not supported. Supported languages: am, de.$"):
        get_language("persain", ("de", "am"))
    with pytest.raises(ValueError, match=r"speaks am, de, not Japanese."):
        get_language("Japanese", ("de", "am"))
    reported = guess_language(["Guten Tag"], "fa", ("fa", "de", "en"))[1]
    assert "Persian letters" in reported and reported.endswith("--language de or en.")
    assert guess_language(["سلام"], "en", ("en", "fa"))[0] == "fa"
    assert guess_language([SENTENCES["ru"]], "en", ("en", "fa"))[0] == "ru", "whoever speaks it not says so"


def test_every_language_is_known_by_its_names_and_no_name_means_two():
    names = [name for language in LANGUAGES.values() for name in (language.name.lower(), *language.other_names)]
    assert len(set(names)) == len(names) and not set(names) & set(LANGUAGES)
    for language in LANGUAGES.values():
        assert all(get_language(name) is language for name in (language.name, *language.other_names))


@pytest.mark.parametrize("code", SENTENCES)
def test_letters_of_one_language_identify_it(code):
    language, reported = guess_language([SENTENCES[code]], "en")
    assert language == code and f"{code} ({LANGUAGES[code].name}), not as en" in reported
    assert guess_language([SENTENCES[code]], code) == (code, "")


def test_letters_of_several_languages_give_a_hint():
    language, reported = guess_language(["سلام"], "en")
    assert language == "en" and "Arabic letters" in reported and "--language ar or fa." in reported
    assert guess_language(["سلام"], None)[1].endswith("--language ar or fa.")
    assert guess_language(["سلام بر همه دوستان"], None)[0] == "fa", "by its words"
    found, reported = language_to_read("مرحبا بك في بيتنا", None, None, "", ("en", "fa"))
    assert found == "ar" and "ar (Arabic)" in reported and " en" not in reported
    assert guess_language(["الكتاب على الطاولة في الغرفة. " * 20], "en")[0] == "ar"
    assert guess_language(["Guten Tag"], "fa")[1].find("Latin letters") > 0
    assert guess_language(["Καλημέρα"], "en")[1].endswith("language has them.")


@pytest.mark.parametrize(
    "text", ["", "12.50 €", "He said ሰላም and went to the library", "OK Google را باز کن لطفا دوست من"]
)
def test_texts_with_few_or_foreign_letters_keep_their_label(text):
    language = "fa" if "را" in text else "en"
    assert guess_language([text], language) == (language, "")


def test_data_that_names_no_language_is_read_as_the_only_one_that_fits(tmp_path):
    corpus = load_corpus(make_corpus(tmp_path, f"a|{SENTENCES['am']}\nb|{SENTENCES['am']}\n"), None)
    assert {u.language for u in corpus.utterances} == {"am"}
    assert "am (Amharic). 2 clips " in corpus.notes[0]
    assert {u.language for u in load_corpus(tmp_path, "amh").utterances} == {"am"}


def test_list_that_names_a_language_of_other_letters_is_refused_like_the_option_or_loses_few_clips(tmp_path):
    wrong = "file|text|language\na|Selam lealem, dehna nachu.|am\n"
    with pytest.raises(CorpusError, match="1 clip cannot be read. .* Amharic is not written in them.* list names"):
        load_corpus(make_corpus(tmp_path, wrong), None)
    # The labels of the other clips are wrong, too; this is only noted.
    german = "Morgen gehe ich in die Bibliothek. Dann kaufen wir neue Schuhe. Am Abend regnet es wieder sehr stark."
    lines = [f"{name}|{german} {name} ist der nächste Buchstabe im Alphabet.|en\n" for name in "bcdefghij"]
    few = wrong.replace("\n", "\n" + "".join(lines), 1)
    assert reasons(load_corpus(make_corpus(tmp_path, few, "abcdefghij"), None)) == [(11, "wrong letters")]


def test_data_that_names_no_language_is_read_as_english_with_a_note_unless_a_language_is_given(tmp_path):
    home = make_corpus(tmp_path, "a|Guten Tag.\nb|Good morning.\n")
    corpus = load_corpus(home, None)
    assert {one.language for one in corpus.utterances} == {"en"}
    (note,) = corpus.notes
    assert "English (en)" in note and "--language" in note
    assert load_corpus(home, "en").notes == load_corpus(home, "de").notes == ()
    (home / "speakers.csv").write_text("id,speaker,language\na,x,de\nb,y,\n")
    corpus = load_corpus(home, None)
    assert [one.language for one in corpus.utterances] == ["de", "en"] and len(corpus.notes) == 1
    (home / "speakers.csv").write_text("id,speaker,language\na,x,de\nb,y,en\n")
    assert load_corpus(home, None).notes == ()


GERMAN = (
    "Der Wind weht heute sehr stark über die Felder.",
    "Wir haben gestern lange auf den letzten Bus gewartet.",
    "Am Abend essen die Kinder gerne warme Suppe.",
    "Meine Schwester liest jeden Tag die Zeitung.",
)
ENGLISH = (
    "The wind is blowing very hard over the fields today.",
    "Yesterday we waited a long time for the bus.",
    "In the evening the children like to eat warm soup.",
    "My sister reads the newspaper every single day.",
)


def listed(texts):
    return "".join(f"{number}|{text}\n" for number, text in enumerate(texts))


def test_clips_without_a_language_get_the_language_of_their_words(tmp_path, monkeypatch):
    monkeypatch.setitem(LANGUAGES, "qaa", LANGUAGES["en"])  # unknown to the identifier, as a registered language may be
    _identifier.cache_clear()
    assert language_to_read("Guten Morgen, mein Freund!", None, None, "", ["qaa"]) == ("en", "")
    corpus = load_corpus(make_corpus(tmp_path, listed(GERMAN), map(str, range(4))), None)
    assert {one.language for one in corpus.utterances} == {"de"}
    assert len(corpus.notes) == 1 and "German (de)" in corpus.notes[0]


def test_words_of_another_language_than_the_label_are_noted_and_the_label_stays(tmp_path):
    corpus = load_corpus(make_corpus(tmp_path, listed(GERMAN), map(str, range(4))), "en")
    assert {one.language for one in corpus.utterances} == {"en"}
    assert len(corpus.notes) == 1 and "German (de)" in corpus.notes[0] and "--language de" in corpus.notes[0]
    assert load_corpus(tmp_path, "de").notes == ()


def test_each_labelled_language_is_judged_by_its_own_clips(tmp_path):
    home = make_corpus(tmp_path, listed(GERMAN + ENGLISH), map(str, range(8)))
    languages = lambda *labels: "".join(f"{n},x,{labels[n // 4]}\n" for n in range(8))
    (home / "speakers.csv").write_text("id,speaker,language\n" + languages("de", "en"))
    assert load_corpus(home, None).notes == ()
    (home / "speakers.csv").write_text("id,speaker,language\n" + languages("de", "fr"))
    (note,) = load_corpus(home, None).notes
    assert "4 clips" in note and "English (en)" in note and "French (fr)" in note
    (home / "speakers.csv").write_text("id,speaker\n" + "".join(f"{n},{'Anna' if n else 'anna'}\n" for n in range(8)))
    assert [note for note in load_corpus(home, "en").notes if note.startswith("Anna and anna are ")]


@pytest.mark.parametrize(
    "text, asked, own, language",
    [
        ("Guten Morgen, wie geht es?", None, None, "de"), ("Guten Morgen, wie geht es?", None, "fr", "fr"),
        ("Guten Morgen, wie geht es?", "en", None, "en"), ("Ja!", None, None, "en"), ("12 %", None, None, "en"),
        ("Good morning, my friend.", None, None, "en"), ("Goedemorgen, hoe gaat het met u?", None, None, "en"),
        ("گوشی Samsung Galaxy S24 Ultra خوب است", None, None, "fa"), ("Say سلام to her", None, None, "en"),
        (SENTENCES["fa"], None, "de", "fa"), (None, None, None, "en"), ("Ja!", None, "de", "de"),
    ],
)  # fmt: skip
def test_language_is_the_requested_one_then_of_the_voice_then_of_the_words(text, asked, own, language):
    found, note = language_to_read(text, asked, own, "she", ("de", "en", "fa", "fr"))
    assert found == language and bool(note) == (not asked and language != "en")
    assert identify_language(["Guten Tag"] * 100) is None

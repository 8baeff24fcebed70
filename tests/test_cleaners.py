"""Cleaners against the reference's output and against spoken forms; splitting text for synthesis."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_reference import REFERENCE, digest, skip_without_packages

from myxtts.text.cleaners import _CLAUSE_END, clean_text, split_sentences, split_text
from myxtts.text.languages import LANGUAGES, get_language

ROOT = Path(__file__).resolve().parents[1]
rows = lambda name: (Path(__file__).parent / "data" / name).read_text("utf-8").splitlines()
# Languages whose cleaned text differs from the reference where the reference emits [UNK]; listed in docs/text.md.


@pytest.mark.parametrize("language", REFERENCE["languages"])
def test_cleaned_text_equals_the_reference(language):
    skip_without_packages(language)
    compared = 0
    for text, *expected in REFERENCE["languages"][language]:
        cleaned = clean_text(text, language)
        # A row without digests is a sentence on which the reference fails; [UNK] marks unknown characters.
        if expected and (language not in ("de", "ar") or not expected[2]):
            assert digest(cleaned) == expected[0], (text, cleaned)
            compared += 1
    assert compared >= 40


@pytest.mark.parametrize("row", rows("read_aloud.txt"))
def test_text_is_expanded_as_spoken(row):
    language, text, words = row.split(" | ")
    assert clean_text(text, language) == words


@pytest.mark.parametrize("language", sorted({row[:2] for row in rows("readings.txt")}))
def test_notation_is_read_as_native_speakers_say_it(language):
    expected = dict(row.split(" | ")[1:] for row in rows("readings.txt") if row.startswith(language))
    read = {text: clean_text(get_language(language).write_out(text), language) for text in expected}
    assert read == expected and len(read) >= 60


def test_persian_keeps_non_joiners_and_diacritics_and_drops_invisible_characters():
    assert clean_text("می\u200c\u200cرود\u200c .", "fa") == "می\u200cرود ."
    assert clean_text("می¬رود می\u200bرود", "fa") == "می\u200cرود می\u200cرود"
    assert {clean_text(f"خان{ending} ما", "fa") for ending in ("ۀ", "ه\u0654", "ه\u200cی")} == {"خانۀ ما"}
    assert clean_text("مع\u0651\u064eلم", "fa") == clean_text("مع\u064e\u0651لم", "fa")
    assert clean_text("\ufeffمادۀ گُل، دقیقاً \u200fکتـــاب", "fa") == "مادۀ گُل، دقیقاً کتاب"


@pytest.mark.parametrize("case", ["pypinyin zh 你好", "hangul-romanize ko 안녕", "cutlet ja 猫", "num2words en 7"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(case):
    package, language, text = case.split()
    code = f"""
import sys
sys.modules[{package.replace("-", "_")!r}] = None
from myxtts.config.checks import UserError
from myxtts.text.cleaners import clean_text
assert clean_text("Plain text, Mr. Pike & co!", "en") == "plain text, mister pike and co!"
try:
    clean_text({text!r}, {language!r})
except UserError as error:
    assert "pip install {package}" in str(error), error
else:
    raise SystemExit("no error")
"""
    if package == "cutlet":
        pytest.importorskip("unidic_lite")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_well_written_persian_is_left_as_it_is():
    path = Path(__file__).resolve().parents[2] / "shared" / "reference" / "text_fa_manatts.txt"
    if not path.exists():
        pytest.skip("shared/reference is not beside the repository")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 50 and sum(line.count("\u200c") for line in lines) == 60
    assert [clean_text(line, "fa") for line in lines] == [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize("row", rows("sentences.txt"))
def test_sentences_end_at_their_marks(row):
    language, *sentences = row.split(" | ")
    assert split_sentences(" ".join(sentences), language) == sentences


def test_sentences_end_at_marks_without_spaces_and_before_direction_marks_in_linear_time():
    assert split_sentences("今日は寒い。明日も！そう", "ja") == ["今日は寒い。", "明日も！", "そう"]
    assert split_sentences("አዎ፡፡ሰላም", "am") == ["አዎ፡፡", "ሰላም"] and split_sentences("  ", "en") == []
    assert split_sentences("در ق.م.\u200f بود.\u202c خوب", "fa") == ["در ق.م.\u200f بود.\u202c", "خوب"]
    assert len(split_sentences("A b. " + "a b. " * 30_000 + "." * 30_000 + "a", "en")) == 1  # quadratic: minutes


def test_sentences_are_packed_up_to_a_limit_from_one_and_long_ones_cut_after_a_comma_at_a_space_or_anywhere():
    assert split_text("One two. Three four. Five.", "en", max_chars=21) == ["One two. Three four.", "Five."]
    assert split_text("aaaa bbbb cc, dddd eeee", "en", max_chars=20) == ["aaaa bbbb cc,", "dddd eeee"]
    assert split_text("aaaa\nbbbb cccc\r\ndddd", "en", max_chars=14) == ["aaaa bbbb cccc", "dddd"]
    assert split_text("all met Dr. Vale on 3 May there", "en", max_chars=24) == ["all met Dr. Vale", "on 3 May there"]
    assert split_text("a war of 1939–1945 and one", "en", max_chars=14) == ["a war of", "1939–1945 and", "one"]
    page = (ROOT / "myxtts/interchange/onnx/web/speaker.js").read_text("utf-8")
    assert f"/{_CLAUSE_END.pattern}/gu".replace(r"\d", r"\p{Nd}") in page
    assert split_text("猫" * 150, "ja") == ["猫" * 71, "猫" * 71, "猫" * 8]
    with pytest.raises(ValueError, match="max_chars .* 1"):
        split_text("a", "en", max_chars=0)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab. ,!?—\n3)\"'。፣؟我", max_size=200),
    language=st.sampled_from(sorted(LANGUAGES)),
    max_chars=st.integers(1, 40),
)
def test_pieces_fit_and_lose_nothing(text, language, max_chars):
    pieces = split_text(text, language, max_chars)
    assert all(piece and len(piece) <= max_chars for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())

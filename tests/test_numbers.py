"""Numbers to words, against num2words' own answers, CLDR's rules and worked examples."""

import pytest

from myxtts.text.languages import get_language
from myxtts.text.languages.am import amharic_cardinal, ethiopic_to_int
from myxtts.text.languages.cs import czech_ordinal
from myxtts.text.languages.hi import hindi_cardinal
from myxtts.text.languages.zh import expand_chinese_numbers, read_number


def expand_numbers(text, code):
    language = get_language(code)
    return language.expand_numbers(language.normalize(text))


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        (
            "en",
            "$20.15 or 12,345.67",
            "twenty dollars, fifteen cents or twelve thousand, three hundred and forty-five point six seven",
        ),
        ("cs", "2 a 2,0 a 2", "dva a dva celá nula nula a dva"),
        ("fr", "1er prix: 20,15€", "premier prix: vingt euros et quinze centimes"),
        ("es", "100.000,5", "cien mil punto cinco"),
        ("de", "am 2. tag", "am zweite tag"),
        ("tr", "12,5", "oniki,beş"),
        ("hu", "az 1. nap", "az első nap"),
        ("ko", "800번째", "팔백 번째"),
        ("pl", "£3 i 5€", "£trzy i pięć€"),
    ],
)
def test_numbers_are_read_as_the_reference_reads_them(language, text, words):
    assert expand_numbers(text, language) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "první"),
        (23, "dvacátý třetí"),
        (100, "stý"),
        (123, "sto dvacátý třetí"),
        (2000, "dvoutisící"),
        (1999, "tisíc devětset devadesátý devátý"),
        (0, "nultý"),
    ],
)
def test_czech_ordinals(number, words):
    assert czech_ordinal(number) == words


def test_a_czech_number_at_the_end_of_the_text_is_a_cardinal():
    assert expand_numbers("2. den jich bylo 20.", "cs") == "druhý den jich bylo dvacet."


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "शून्य"),
        (28, "अट्ठाईस"),
        (99, "निन्यानवे"),
        (105, "एक सौ पाँच"),
        (1986, "एक हज़ार नौ सौ छियासी"),
        (100_000, "एक लाख"),
        (25_000_000, "दो करोड़ पचास लाख"),
        (10**9 + 1, "एक अरब एक"),
    ],
)
def test_hindi_cardinals_count_in_lakh_and_crore(number, words):
    assert hindi_cardinal(number) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("₹1,00,000 और ५० बजे", "एक लाख रुपये और पचास बजे"),
        ("₹12.50", "बारह रुपये पचास पैसे"),
        ("12.05 किलो, 5वाँ, 2nd", "बारह दशमलव शून्य पाँच किलो, पाँचवाँ, दूसरा"),
    ],
)
def test_hindi_text(text, words):
    assert expand_numbers(text, "hi") == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("۱۲٫۵ یا ۱۲/۰۵", "دوازده ممیز پنج یا دوازده ممیز صفر پنج"),
        ("۲۱ام، ۳م، ۳۰م و ۲مین", "بیست و یکم، سوم، سی‌ام و دومین"),
        ("1,204 و ٣", "هزار و دویست و چهار و سه"),
        ("۱۴۰۲/۰۵/۱۲", "هزار و چهارصد و دو پنج دوازده"),
        ("کووید۱۹ و ۳تا", "کووید نوزده و سه تا"),
        ("$12.50", "دوازده دلار و پنجاه سنت"),
    ],
)
def test_persian_text(text, words):
    assert expand_numbers(text, "fa") == words


@pytest.mark.parametrize(
    ("number", "words"), [(0, "ዜሮ"), (14, "አስራ አራት"), (40, "አርባ"), (1204, "አንድ ሺህ ሁለት መቶ አራት"), (2_000_000, "ሁለት ሚሊዮን")]
)
def test_amharic_cardinals(number, words):
    assert amharic_cardinal(number) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [("1ኛ, 2ኛው", "አንደኛ, ሁለተኛው"), ("$5.25", "አምስት ዶላር ከሃያ አምስት ሳንቲም"), ("፲፬", "አስራ አራት"), ("0.5", "ዜሮ ነጥብ አምስት")],
)
def test_amharic_text(text, words):
    assert expand_numbers(text, "am") == words


@pytest.mark.parametrize(
    ("numeral", "number"),
    [("፩", 1), ("፲፭", 15), ("፻", 100), ("፲፱፻፺፱", 1999), ("፳፻፲", 2010), ("፼", 10_000), ("፲፪፼፫፻፵፭", 120_345)],
)
def test_ethiopic_numerals(numeral, number):
    assert ethiopic_to_int(numeral) == number


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("10", "十"),
        ("102", "一百零二"),
        ("2000", "两千"),
        ("22000", "两万两千"),
        ("10012", "一万零一十二"),
        ("12.5", "十二点五"),
        ("100000000", "一亿"),
        ("007", "零七"),
    ],
)
def test_chinese_quantities(number, words):
    assert read_number(number) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2021年10月5日", "二零二一年十月五日"),
        ("花了12.5元", "花了十二点五元"),
        ("拨打13812345678。", "拨打一三八一二三四五六七八,"),
        ("约1/3，5%", "约三分之一,百分之五"),
        ("b2b有2张", "b2b有二张"),
        ("编号2048", "编号二零四八"),
    ],
)
def test_chinese_text(text, words):
    assert expand_chinese_numbers(text) == words


@pytest.mark.parametrize("language", ["en", "es", "pt", "tr", "cs", "ar", "hu", "ko", "hi", "fa", "am"])
def test_numbers_beyond_the_tables_are_read_digit_by_digit(language):
    digit = expand_numbers("7", language)
    assert expand_numbers("7" * 60, language) == " ".join([digit] * 60)


@pytest.mark.parametrize("language", ["en", "de", "hu", "zh", "fa"])
def test_very_long_digit_runs_are_read(language):
    # Rules of quadratic cost would not come to an end here.
    words = expand_numbers("7" * 200_000 + "," + "1," * 20_000, language)
    assert len(words) > 200_000 and not any(digit in words for digit in "17")
